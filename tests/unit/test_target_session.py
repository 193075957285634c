"""The leader's end: every message, garbage, requests that end in every way, and disorder of all kinds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dist_spec.core.messages import Bye, Close, Commit, Hello, Need, Open, Ping, Propose
from dist_spec.core.plan import Plan, Wait
from dist_spec.core.prefix import Prefix
from dist_spec.core.settings import Speculation
from dist_spec.core.types import Expansion, Sampling
from dist_spec.errors import RequestError
from tests.unit.session_cases import PROMPT, VOCAB, Leader, chain, ints, kinds, text_of, tree_below

TEXT = text_of(1)
OTHER = text_of(2)
PULL = Speculation(delivery="pull", pull_timeout_s=0.5)


def leader(settings: Speculation | None = None, **options: object) -> Leader:
    return Leader({"r": TEXT, "s": OTHER}, settings, **options)


def attached(settings: Speculation | None = None, **options: object) -> Leader:
    """A leader with one drafter and one running request that has made its first step."""
    made = leader(settings, **options)
    made.hello("d")
    made.open()
    if settings is not None and settings.delivery == "pull":
        made.step()
        answer(made, [])
    else:
        made.step()
    return made


def length(made: Leader, request: str = "r") -> int:
    return len(made.session.live[request, 0].sequence.prefix)


def answer(made: Leader, tokens: list[int], *, peer: str = "d") -> None:
    made.send(peer, chain(TEXT, length(made), tokens))


# ---- a request's life ---------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("sampling", "reason", "generated"),
    [
        ({"ignore_eos": False}, "stop", 6),
        ({"stop_token_ids": (TEXT[PROMPT + 3],)}, "stop", 4),
        ({"max_tokens": 3}, "length", 3),
        ({"stop": (chr(TEXT[PROMPT + 2]) + chr(TEXT[PROMPT + 3]),)}, "stop", 4),
    ],
)
def test_an_end_inside_an_accepted_block(sampling: dict[str, object], reason: str, generated: int) -> None:
    made = leader(eos_ids=(TEXT[PROMPT + 5],), decode=lambda tokens: "".join(map(chr, tokens)))
    made.hello("d")
    made.open(**sampling)
    made.step()
    answer(made, TEXT[PROMPT + 1 : PROMPT + 9])
    _, out = made.step()
    assert made.closed["r"] == reason
    assert made.generated["r"] == TEXT[PROMPT : PROMPT + generated]
    assert kinds(out, Close, "d")[0].reason == reason
    assert made.session.counts.committed == generated
    assert made.session.idle
    assert made.session.scheduler.blocks.num_free == made.session.scheduler.blocks.num_blocks


def test_a_draft_longer_than_the_room_left_is_capped() -> None:
    made = leader()
    made.hello("d")
    made.open(max_tokens=4)
    made.step()
    answer(made, TEXT[PROMPT + 1 : PROMPT + 9])
    plan, _ = made.begin()
    assert plan.num_nodes == 2  # three tokens of room: two drafted and the target's own
    made.finish(plan)
    assert made.generated["r"] == TEXT[PROMPT : PROMPT + 4]


def test_the_context_ends_the_text_like_a_limit() -> None:
    made = leader(max_model_len=PROMPT + 4)
    made.hello("d")
    made.open(max_tokens=100)
    made.step()
    answer(made, TEXT[PROMPT + 1 : PROMPT + 9])
    plan, _ = made.begin()
    row = plan.rows[0].forward
    assert row.cached + len(row.tokens) <= PROMPT + 4
    made.finish(plan)
    assert (made.closed["r"], len(made.generated["r"])) == ("length", 4)


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
        ({"generated": TEXT[:8], "max_tokens": 8}, "max_tokens"),
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


# ---- aborts -------------------------------------------------------------------------------------------------------


def test_an_abort_in_mid_step_leaves_the_others_alone() -> None:
    made = leader()
    made.hello("d")
    made.hello("f", role="frontend")
    for request in ("r", "s"):
        made.open(request, peer="f", max_tokens=6)
    made.step()
    plan, _ = made.begin()
    out = made.send("f", Close(request="r", generation=0, reason="abort"))
    assert {peer for peer, message in out if isinstance(message, Close)} == {"d", "f"}
    out = made.finish(plan)
    assert {message.request for message in kinds(out, Commit)} == {"s"}
    made.run()
    assert made.generated["s"] == OTHER[PROMPT : PROMPT + 6]
    assert made.session.scheduler.blocks.num_free == made.session.scheduler.blocks.num_blocks


def test_a_request_begun_anew_in_mid_step_does_not_get_the_old_verdict() -> None:
    made = leader()
    made.hello("f", role="frontend")
    made.open(peer="f", max_tokens=6)
    made.step()
    plan, _ = made.begin()
    made.send("f", Close(request="r", generation=0, reason="abort"))
    made.open(peer="f", max_tokens=6)
    made.finish(plan)
    assert length(made) == PROMPT
    made.run()
    assert made.generated["r"] == TEXT[PROMPT : PROMPT + 6]


def test_a_request_can_be_aborted_while_it_waits() -> None:
    made = leader(max_sequences=1)
    made.hello("f", role="frontend")
    made.open("s", max_tokens=3)
    made.open("r", peer="f")
    made.step()
    assert kinds(made.send("f", Close(request="r", generation=0, reason="abort")), Close, "f")
    made.run()
    assert made.generated["s"] == OTHER[PROMPT : PROMPT + 3]


def test_only_its_owner_can_abort_a_request() -> None:
    made = attached()
    made.hello("f", role="frontend")
    for peer in ("d", "f"):
        assert made.send(peer, Close(request="r", generation=0, reason="abort")) == []
    assert not made.session.idle


@pytest.mark.parametrize("how", ["bye", "silence"])
def test_a_frontend_that_leaves_takes_its_requests_along(how: str) -> None:
    made = leader()
    made.hello("d")
    made.hello("f", role="frontend")
    made.open("r", peer="f")
    made.open("s", max_tokens=3)
    made.step()
    if how == "bye":
        out = made.send("f", Bye(reason="done"))
    else:
        made.now = 6.0
        made.session.membership.heard("d", now=6.0)
        out = made.session.tick(now=made.now)
    assert [(peer, sent.request) for peer, sent in out if isinstance(sent, Close)] == [("d", "r")]
    made.run()
    assert made.generated["s"] == OTHER[PROMPT : PROMPT + 3]


def test_a_frontend_that_greets_again_keeps_its_requests() -> None:
    """It does so whenever the leader was too busy to ping."""
    made = leader()
    made.hello("f", role="frontend")
    made.open(peer="f", max_tokens=4)
    made.step()
    assert not kinds(made.hello("f", role="frontend"), Close)
    made.run()
    assert made.generated["r"] == TEXT[PROMPT : PROMPT + 4]


# ---- opening twice ------------------------------------------------------------------------------------------------


def test_a_repeated_open_changes_nothing() -> None:
    made = leader()
    made.hello("f", role="frontend")
    made.open(peer="f", max_tokens=4)
    made.step()
    assert made.open(peer="f", max_tokens=4) == []
    made.run()
    assert made.session.counts.committed == 4


def test_a_new_generation_replaces_the_old_and_a_late_old_one_does_not() -> None:
    made = leader()
    made.hello("f", role="frontend")
    made.open(peer="f")
    made.step()
    out = made.open(peer="f", generation=1, max_tokens=3)
    assert [(close.generation, close.reason) for close in kinds(out, Close, "f")] == [(0, "abort")]
    assert made.open(peer="f") == []
    assert list(made.session.live) == [("r", 1)]
    made.run()
    assert made.generated["r"] == TEXT[PROMPT : PROMPT + 3]


def test_two_frontends_with_one_name_for_their_requests() -> None:
    made = leader()
    for peer in ("f", "g"):
        made.hello(peer, role="frontend")
    made.open(peer="f", max_tokens=3)
    for generation in (0, 1):
        [(peer, close)] = made.open(peer="g", generation=generation)
        assert peer == "g"
        assert isinstance(close, Close)
        assert close.reason.startswith("error: another frontend")
    made.run()
    assert made.generated["r"] == TEXT[PROMPT : PROMPT + 3]


def test_a_drafter_opens_no_request() -> None:
    made = leader()
    made.hello("d")
    made.open(peer="d")
    assert made.session.idle


# ---- drafters that come, go, and say strange things ---------------------------------------------------------------


def test_a_stranger_is_asked_to_greet() -> None:
    made = leader()
    for message in (Ping(), chain(TEXT, 5, [1]), Need(request="r", generation=0, have_length=0)):
        [(peer, bye)] = made.send("x", message)
        assert peer == "x"
        assert isinstance(bye, Bye)
        assert not bye.fatal
    assert made.send("x", Bye()) == []


def test_a_drafter_with_another_tokenizer_is_refused() -> None:
    made = leader(vocabulary=b"\x01" * 8, vocabulary_tokens=[str(i) for i in range(128)])
    [(peer, bye)] = made.hello("d", vocabulary=b"\x02" * 8, vocab_size=128)
    assert peer == "d"
    assert isinstance(bye, Bye)
    assert bye.fatal
    assert made.session.membership.drafters() == []


def test_a_drafter_that_joins_late_is_told_all_there_is() -> None:
    made = leader()
    made.open()
    made.open("s")
    for _ in range(3):
        made.step()
    out = made.hello("d")
    told = {message.request: message for message in kinds(out, Open, "d")}
    assert set(told) == {"r", "s"}
    assert told["r"].prompt.tolist() == TEXT[:PROMPT]
    assert told["r"].generated.tolist() == TEXT[PROMPT : PROMPT + 3]
    assert kinds(out, Ping, "d")[0].num_drafters == 1
    answer(made, TEXT[length(made) : length(made) + 2])
    made.step()
    assert made.session.counts.accepted == 2


def test_a_drafter_that_revives_after_silence_is_told_everything_anew() -> None:
    made = attached()
    made.now = 6.0
    made.session.tick(now=made.now)
    _, out = made.step()
    assert not kinds(out, Commit, "d")
    out = made.send("d", Ping())
    assert [message.request for message in kinds(out, Open, "d")] == ["r"]
    assert made.send("d", Ping()) == []
    _, out = made.step()
    assert len(kinds(out, Commit, "d")) == 1


def test_a_restarted_drafter_is_told_everything_anew() -> None:
    made = attached(PULL)
    made.step()
    assert "d" in made.session.live["r", 0].asked
    out = made.hello("d")
    assert [message.request for message in kinds(out, Open, "d")] == ["r"]
    assert made.session.live["r", 0].asked == set()  # it no longer knows that it was asked
    assert isinstance(made.begin()[0], Plan)


def test_need_is_answered_from_where_the_asker_is() -> None:
    made = attached()
    for _ in range(4):
        made.step()
    [(_, commit)] = made.send("d", Need(request="r", generation=0, have_length=PROMPT + 2))
    assert isinstance(commit, Commit)
    assert (commit.base_length, commit.base_digest) == (PROMPT + 2, Prefix(TEXT[: PROMPT + 2]).digest)
    assert commit.tokens.tolist() == TEXT[PROMPT + 2 : PROMPT + 5]
    for have in (0, 1000):
        [(_, opening)] = made.send("d", Need(request="r", generation=0, have_length=have))
        assert isinstance(opening, Open)
        assert opening.generated.tolist() == TEXT[PROMPT : PROMPT + 5]
    [(_, close)] = made.send("d", Need(request="r", generation=9, have_length=0))
    assert isinstance(close, Close)


def test_need_repeats_an_open_question() -> None:
    made = attached(PULL)
    made.step()
    for have in (0, PROMPT):
        [(_, told)] = made.send("d", Need(request="r", generation=0, have_length=have))
        assert told.ask


@pytest.mark.parametrize("base_off", [-1, 0, 1, 300])
def test_a_proposal_below_another_prefix_is_dropped(base_off: int) -> None:
    made = attached()
    at = length(made)
    message = Propose(
        request="r",
        generation=0,
        base_length=at + base_off,
        base_digest=12345,
        tokens=ints([1, 2]),
        parents=ints([-1, 0]),
        scores=np.zeros(2, np.float32),
    )
    assert made.send("d", message) == []
    assert made.session.live["r", 0].tree.is_empty()
    assert made.session.counts.stale == 1


@pytest.mark.parametrize("token", [-1, VOCAB, 2**31 - 1])
def test_a_proposal_of_what_is_no_token_is_dropped(token: int) -> None:
    made = attached()
    answer(made, [TEXT[length(made)], token])
    assert made.session.live["r", 0].tree.is_empty()
    assert made.session.counts.stale == 1


def test_a_proposal_for_a_request_that_is_over_is_answered_so() -> None:
    made = attached()
    for message in (chain(TEXT, PROMPT, [1], generation=4), chain(TEXT, PROMPT, [1], request="gone")):
        [(_, close)] = made.send("d", message)
        assert isinstance(close, Close)
        assert close.reason == "unknown"


def test_repeated_late_and_reordered_proposals() -> None:
    made = attached()
    at = length(made)
    whole = chain(TEXT, at, TEXT[at : at + 8])
    first = chain(TEXT, at, TEXT[at : at + 2])
    for message in (whole, first, whole):
        made.send("d", message)
    assert made.session.live["r", 0].tree.size() == 8
    plan, _ = made.begin()
    late = chain(TEXT, PROMPT, TEXT[PROMPT : at + 10])
    made.send("d", late)  # during the verification
    made.finish(plan)
    at = length(made)
    assert made.session.live["r", 0].tree.size() == 1  # what was said beyond the new head
    made.send("d", chain(TEXT, PROMPT, TEXT[PROMPT : at + 3]))
    plan, _ = made.step()
    assert plan.num_nodes == 3
    assert length(made) == at + 4


def test_garbage_is_counted_and_ignored() -> None:
    made = attached()
    assert made.session.garbage("d") == made.session.garbage("x") == []
    assert made.session.counts.garbage == 2
    assert made.session.membership.members["d"].garbage == 1
    commit = Commit(
        request="r", generation=0, base_length=PROMPT, base_digest=Prefix(TEXT[:PROMPT]).digest, tokens=ints([7])
    )
    assert made.send("d", commit) == []  # only the target commits
    assert made.send("d", Open(request="q", generation=0, prompt=ints([1]), sampling=Sampling())) == []
    made.run()
    assert made.generated["r"] == TEXT[PROMPT : PROMPT + 40]


def test_a_mirror_takes_only_so_many_nodes() -> None:
    made = attached(Speculation(max_nodes=16))
    for token in range(200):
        answer(made, [token, token])
    assert len(made.session.live["r", 0].tree) <= 2 * 16 + 2


def test_two_drafters_share_one_mirror() -> None:
    made = attached()
    made.hello("e")
    at = length(made)
    answer(made, TEXT[at : at + 3])
    answer(made, TEXT[at : at + 5], peer="e")
    members = made.session.membership.members
    assert (members["d"].useful_nodes, members["e"].useful_nodes) == (3, 2)
    made.step()
    assert made.session.counts.accepted == 5


def test_guesses_of_the_leader_itself() -> None:
    made = leader()
    made.open(max_tokens=8)
    assert made.session.without_guess() == []  # not begun
    made.step()
    [live] = made.session.without_guess()
    at = length(made)
    guess = Expansion(tokens=ints(TEXT[at : at + 2]), parents=ints([-1, 0]), scores=np.zeros(2, np.float32))
    made.session.guess(live.sequence.key, guess)
    assert made.session.without_guess() == []
    made.step()
    assert made.session.counts.accepted == 2
    made.run()
    assert made.session.take_closed() == [("r", 0)]
    assert leader(Speculation(budget=0)).session.without_guess() == []


# ---- waiting ------------------------------------------------------------------------------------------------------


def test_push_never_waits() -> None:
    made = attached()
    for _ in range(10):
        assert isinstance(made.step()[0], Plan)
    assert made.session.counts.waits == 0


def test_pull_waits_for_the_answer_and_counts_it_once() -> None:
    made = attached(PULL)
    _, out = made.step()
    assert kinds(out, Commit, "d")[0].ask
    for _ in range(3):
        wait, _ = made.begin()
        assert isinstance(wait, Wait)
        assert wait.until_s == pytest.approx(made.now + 0.5)
        assert wait.cause == "pull"
    at = length(made)
    answer(made, TEXT[at : at + 2])
    assert made.step()[0].num_nodes == 2
    assert made.session.counts.waits == 1


def test_pull_goes_on_after_the_deadline_and_does_not_wait_again_until_it_hears() -> None:
    made = attached(PULL)
    made.step()
    made.now += 0.6
    plan, _ = made.begin()
    assert isinstance(plan, Plan)
    out = made.finish(plan)
    # It is asked again, as its answer would end its lateness, but nobody waits for it.
    assert kinds(out, Commit, "d")[0].ask
    assert isinstance(made.begin()[0], Plan)
    made.send("d", Ping())
    _, out = made.step()
    assert kinds(out, Commit, "d")[0].ask
    assert isinstance(made.begin()[0], Wait)


def test_nobody_is_asked_where_only_the_targets_own_token_is_left() -> None:
    made = leader(PULL)
    made.hello("d")
    made.open(max_tokens=3)
    _, out = made.step()
    assert [commit.ask for commit in kinds(out, Commit, "d")] == [True]
    answer(made, [])
    _, out = made.step()
    assert [commit.ask for commit in kinds(out, Commit, "d")] == [False]
    made.step()
    assert made.closed["r"] == "length"


def test_a_drafter_that_goes_is_not_waited_for() -> None:
    for leave in (lambda made: made.send("d", Bye()), lambda made: made.session.lost("d")):
        made = attached(PULL)
        made.step()
        leave(made)
        assert isinstance(made.begin()[0], Plan)
    made = attached(PULL)
    made.step()
    made.session.membership.dead_after_s = 0.1
    made.now += 0.2
    made.session.tick(now=made.now)
    assert isinstance(made.begin()[0], Plan)


def test_a_wait_on_a_miss_ends_with_the_first_guess() -> None:
    made = leader(Speculation(on_miss="wait", max_wait_s=0.01))
    made.hello("d")
    made.open()
    _, out = made.step()
    assert kinds(out, Commit, "d")[0].ask
    wait, _ = made.begin()
    assert isinstance(wait, Wait)
    assert wait.cause == "miss"
    assert wait.until_s <= made.now + 0.01
    at = length(made)
    answer(made, TEXT[at : at + 2])
    _, out = made.step()
    assert made.session.counts.accepted == 2
    answer(made, TEXT[length(made) : length(made) + 12])
    _, out = made.step()
    assert not kinds(out, Commit, "d")[0].ask  # part of the guess survives: no miss


def test_no_budget_asks_nobody() -> None:
    made = leader(Speculation(delivery="pull", budget=0))
    made.hello("d")
    made.open(max_tokens=3)
    made.run()
    assert made.session.counts.waits == 0
    assert made.now < 0.1


def test_heartbeats_reach_everyone() -> None:
    made = attached()
    made.hello("f", role="frontend")
    made.now = 1.5
    assert {peer for peer, message in made.session.tick(now=1.5) if isinstance(message, Ping)} == {"d", "f"}
    assert made.session.tick(now=1.6) == []


def test_hello_and_hello_again_leave_one_member() -> None:
    made = leader()
    for _ in range(3):
        made.send("d", Hello(role="drafter", name="d"))
    assert list(made.session.membership.members) == ["d"]


def test_a_frontend_that_missed_the_end_is_told_again_and_nothing_is_decoded_twice() -> None:
    made = leader()
    made.hello("f", role="frontend")
    made.open(peer="f", max_tokens=3)
    for _ in range(3):
        made.step()
    assert made.session.idle
    steps = made.session.counts.steps
    out = made.open(peer="f", max_tokens=3)
    commits = [message for _, message in out if isinstance(message, Commit)]
    closes = [message for _, message in out if isinstance(message, Close)]
    assert [len(commit.tokens) for commit in commits] == [3]
    assert [close.reason for close in closes] == ["length"]
    assert made.session.idle
    assert made.session.counts.steps == steps
    # Another request of that name (other settings) is another request.
    made.open(peer="f", max_tokens=4)
    assert not made.session.idle
