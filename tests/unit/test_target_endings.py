"""Requests that end in every way, are aborted, or are opened twice: each touches nothing but itself."""

from __future__ import annotations

import pytest

from dist_spec.core.messages import Bye, Close, Commit
from tests.unit.leader_cases import OTHER, TEXT, answer, attached, leader, length
from tests.unit.session_cases import PROMPT, kinds


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
