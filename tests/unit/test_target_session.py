"""The leader's end: a request's life, step by step."""

from __future__ import annotations

import itertools

import pytest

from dist_spec.core.messages import Close, Commit, Open
from dist_spec.core.prefix import Prefix
from dist_spec.core.settings import Speculation
from dist_spec.core.types import Sampling
from dist_spec.errors import RequestError
from tests.unit.leader_cases import OTHER, TEXT, answer, attached, leader, length
from tests.unit.session_cases import PROMPT, VOCAB, chain, ints, kinds, tree_below


def test_without_anyone_it_is_plain_decoding() -> None:
    made = leader()
    made.open(max_tokens=7)
    made.run()
    assert made.generated["r"] == TEXT[PROMPT : PROMPT + 7]
    assert made.session.counts.steps == 7
    assert made.session.counts.verified == 0


def test_what_was_drafted_is_verified_and_what_is_right_accepted() -> None:
    made = attached()
    at = length(made)
    answer(made, [*TEXT[at : at + 3], (TEXT[at + 3] + 1) % VOCAB])
    plan, out = made.step()
    assert plan.num_nodes == 4
    [commit] = kinds(out, Commit, "d")
    assert commit.tokens.tolist() == TEXT[at - 1 : at + 4]
    before = commit.base_length  # the commit before this one is told again with it
    assert before == at - 1
    assert (commit.base_digest, commit.num_accepted) == (Prefix(TEXT[:before]).digest, 3)
    counts = made.session.counts
    assert (counts.drafted, counts.verified, counts.accepted, counts.ready_rows) == (4, 4, 3, 1)
    assert counts.depths == {0: [1, 1], 4: [1, 4]}
    by_depth = [counts.tree_depths[depth] for depth in sorted(counts.tree_depths)]
    assert ([trees for trees, _, _ in by_depth], [right for _, _, right in by_depth]) == ([1, 1, 1, 1], [1, 1, 1, 0])


def test_a_branch_is_followed() -> None:
    made = attached()
    at = length(made)
    wrong = (TEXT[at] + 1) % VOCAB
    made.send("d", tree_below(TEXT, at, [wrong, wrong, TEXT[at], TEXT[at + 1]], [-1, 0, -1, 2]))
    _, out = made.step()
    assert kinds(out, Commit, "d")[0].tokens.tolist() == TEXT[at - 1 : at + 3]


def test_a_lost_commit_needs_no_question() -> None:
    """Drafters are told every commit twice: the next message makes up for one that was lost."""
    made = attached()
    told = [kinds(made.step()[1], Commit, "d")[0] for _ in range(3)]
    for earlier, later in itertools.pairwise(told):
        end = earlier.base_length + len(earlier.tokens)
        assert later.base_length < end < later.base_length + len(later.tokens)
    assert len(told[-1].tokens) == 2


def test_the_frontend_hears_of_everything_and_drafters_of_what_they_need() -> None:
    made = leader()
    made.hello("d")
    made.hello("f", role="frontend")
    made.open(peer="f", max_tokens=2)
    plan, out = made.begin()
    assert [type(message) for message in kinds(out, Open, "d")] == [Open]
    assert not kinds(out, Open, "f")
    out = made.finish(plan)
    assert len(kinds(out, Commit, "d")) == len(kinds(out, Commit, "f")) == 1
    _, out = made.step()
    assert not kinds(out, Commit, "d")
    assert len(kinds(out, Commit, "f")) == 1
    assert [close.reason for close in kinds(out, Close, "d")] == ["length"]
    [close] = kinds(out, Close, "f")
    assert close.stats["committed"] == 2
    assert close.stats["steps"] == 2


def test_a_resumed_request_goes_on_where_it_was() -> None:
    made = leader()
    message = Open(
        request="r",
        generation=0,
        prompt=ints(TEXT[:PROMPT]),
        generated=ints(TEXT[PROMPT : PROMPT + 3]),
        generated_offset=2,
        sampling=Sampling(max_tokens=6),
    )
    made.session.open(message, now=0.0)
    plan, _ = made.begin()
    assert plan.rows[0].forward.num_pending == PROMPT + 3
    assert plan.rows[0].noise_index == 5
    made.finish(plan)
    made.run()
    assert made.generated["r"] == TEXT[PROMPT : PROMPT + 6]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"prompt": []}, "empty"),
        ({"prompt": TEXT[:60]}, "context"),
        ({"prompt": [1, VOCAB]}, "vocabulary"),
        ({"prompt": [1, -1]}, "vocabulary"),
        ({"generated": TEXT[:9], "max_tokens": 8}, "max_tokens"),
        ({"stop": ("x",)}, "tokenizer"),
        ({"prompt": TEXT[:40], "max_tokens": 60}, "KV cache"),
    ],
)
def test_a_request_that_cannot_be_served_is_closed_alone(change: dict[str, object], why: str) -> None:
    made = leader(max_model_len=50, num_blocks=3)
    made.hello("f", role="frontend")
    made.open("s", max_tokens=4)
    message = Open(
        request="r",
        generation=0,
        prompt=ints(change.pop("prompt", TEXT[:PROMPT])),
        generated=ints(change.pop("generated", [])),
        sampling=Sampling(**{"max_tokens": 4, **change}),  # type: ignore[arg-type]
    )
    out = made.send("f", message)
    assert [(peer, sent.reason.split(":")[0], why in sent.reason) for peer, sent in out] == [("f", "error", True)]
    made.run()
    assert made.generated["s"] == OTHER[PROMPT : PROMPT + 4]


def test_a_failing_row_ends_its_own_request_only() -> None:
    made = leader()
    made.hello("f", role="frontend")
    for request in ("r", "s"):
        made.open(request, peer="f", max_tokens=5)
    made.step()
    plan, _ = made.begin()
    verdict = made.backend.collect(plan)[1]
    out = made.session.apply(plan, [RequestError("NaN logits"), verdict], now=made.now)
    [close] = kinds(out, Close, "f")
    assert (close.request, close.reason) == ("r", "error: NaN logits")
    made.run()
    assert made.generated["s"] == OTHER[PROMPT : PROMPT + 5]


def test_long_prompts_are_prefilled_in_chunks_without_taking_budget() -> None:
    made = leader(Speculation(budget=4), max_pending=8)
    made.hello("d")
    made.open("s")
    made.step()
    prompt = ints(TEXT[:30])
    made.session.open(Open(request="r", generation=0, prompt=prompt, sampling=Sampling(max_tokens=5)), now=0.0)
    made.session.admit(now=0.0)
    made.send("d", chain(TEXT, 30, TEXT[30:34]))  # its drafter was quicker than the prefill
    at = length(made, "s")
    made.send("d", chain(OTHER, at, OTHER[at : at + 4], request="s"))
    plan, _ = made.begin()
    assert [(row.forward.num_pending, row.forward.num_nodes, row.final) for row in plan.rows] == [
        (1, 4, True),
        (7, 0, False),
    ]
    made.finish(plan)
    steps = 0
    while not made.generated["r"]:
        made.step()
        steps += 1
    assert steps == 4  # 7 + 7 + 7 + 7 + 2 tokens
    made.run()
    assert made.generated["r"] == TEXT[30:35]
