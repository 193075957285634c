"""The frontend's end: what it makes of commits, ends and losses, against the leader's own session."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

from dist_spec.core.messages import DRAINING, Close, Commit, Forget, Hello, Message, Ping
from dist_spec.core.prefix import Prefix
from dist_spec.core.types import Sampling
from dist_spec.errors import ProtocolError, TransportError
from dist_spec.server.client import Client, Stream
from dist_spec.transports.inproc import InprocHub
from tests.unit.session_cases import PROMPT, Leader, ints, text_of

TEXT = text_of(1)


class Link:
    """A client and a leader; everything for the client passes `tamper`."""

    def __init__(self, tamper: Callable[[Message], bool] = lambda message: True) -> None:
        self.hub = InprocHub()
        self.end = self.hub.leader()
        self.leader = Leader({"r": TEXT})
        self.client = Client(self.hub.connect("f"), name="f", repeat_s=0.02, heartbeat_s=0.01)
        self.keep = tamper

    def open(self, **sampling: object) -> Stream:
        fields = {"max_tokens": 6, "ignore_eos": True, **sampling}
        return self.client.open("r", prompt=TEXT[:PROMPT], sampling=Sampling(**fields))  # type: ignore[arg-type]

    def round(self) -> None:
        out = []
        for peer, message in self.end.receive(0.0):
            assert not isinstance(message, ProtocolError)
            out += self.leader.send(peer, message)
        if not self.leader.session.idle:
            out += self.leader.step()[1]
        for peer, message in out:
            if self.keep(message):
                self.end.send(peer, message)
        self.client.poll(timeout_s=0.0)

    def settle(self) -> None:
        """As `run`, where something is told again after a while."""
        deadline = monotonic() + 10
        while self.client.streams:
            self.round()
            sleep(0.002)
            assert monotonic() < deadline, "the request does not end"

    def run(self, limit: int = 30) -> None:
        for _ in range(limit):
            if not self.client.streams:
                return
            self.round()
        raise AssertionError("the request does not end")


@pytest.mark.parametrize("lost", [0, 2, 4, 5])
def test_a_lost_commit_costs_no_token(lost: int) -> None:
    seen: list[Commit] = []

    def keep(message: Message) -> bool:
        if isinstance(message, Commit):
            seen.append(message)
        return not (isinstance(message, Commit) and len(seen) == lost + 1)

    link = Link(keep)
    stream = link.open()
    link.run()
    assert stream.tokens == TEXT[PROMPT : PROMPT + 6]
    assert stream.reason == "length"
    assert link.leader.session.counts.committed == 6


def test_an_end_whose_text_is_lost_altogether_is_told_again() -> None:
    link = Link(lambda message: link.leader.session.idle or not isinstance(message, Commit))
    stream = link.open()
    link.run()
    assert stream.tokens == TEXT[PROMPT : PROMPT + 6]
    assert link.leader.session.counts.committed == 6


def test_an_abort_ends_at_once_whatever_is_missing() -> None:
    link = Link(lambda message: not isinstance(message, Commit))
    stream = link.open()
    link.round()
    link.client.abort(stream)
    link.run()
    assert stream.reason == "abort"


def test_a_request_that_cannot_be_sent_is_not_waited_for() -> None:
    link = Link()
    with pytest.raises(ProtocolError, match="stop string"):
        link.open(stop=("x" * 5000,))
    assert not link.client.streams


def empty_stream(**sampling: Any) -> Stream:
    return Stream(
        request="r",
        generation=0,
        prefix=Prefix(TEXT[:PROMPT]),
        sampling=Sampling(**sampling),
        opened_s=0.0,
        heard_s=0.0,
        prompt_length=PROMPT,
    )


def commit_of(start: int, count: int, **fields: Any) -> Commit:
    """Tokens `start` and following of the text, counted after the prompt."""
    base = PROMPT + start
    return Commit(
        request="r",
        generation=0,
        base_length=base,
        base_digest=Prefix(TEXT[:base]).digest,
        tokens=ints(TEXT[base : base + count]),
        **fields,
    )


def test_margins_stay_beside_their_tokens() -> None:
    stream = empty_stream()
    for start, count, margins in ((0, 1, [0.5]), (1, 2, []), (3, 1, [0.25])):
        commit = commit_of(start, count, margins=np.array(margins, np.float32))
        assert stream.take(commit, now=1.0) == count
    np.testing.assert_array_equal(stream.margins, [0.5, nan, nan, 0.25])


def test_every_token_has_its_kind_also_where_commits_overlap() -> None:
    stream = empty_stream()
    first = commit_of(0, 3, num_accepted=2, last_kind="recovered")
    assert stream.take(first, now=1.0) == 3
    assert stream.take(first, now=1.5) == 0  # a repeat
    assert stream.take(commit_of(2, 3, num_accepted=2, last_kind="bonus"), now=2.0) == 2
    assert stream.take(commit_of(5, 1), now=3.0) == 1
    assert stream.take(commit_of(6, 1, num_accepted=1, last_kind="bonus"), now=3.5) == 1  # ended by an accepted token
    assert stream.take(commit_of(7, 2), now=4.0) == 2  # told again: nobody knows what was drafted
    assert stream.take(commit_of(12, 1), now=4.5) is None  # something is missing in between
    expected = ["accepted", "accepted", "recovered", "accepted", "bonus", "plain", "accepted", "unknown", "unknown"]
    assert stream.kinds == expected
    assert stream.times == [(1.0, 3), (2.0, 2), (3.0, 1), (3.5, 1), (4.0, 2)]
    assert stream.tokens == TEXT[PROMPT : PROMPT + 9]


def test_probabilities_stay_beside_their_tokens() -> None:
    stream = empty_stream(logprobs=2)
    told = {
        "logprobs": np.array([-0.5, -1.0], np.float32),
        "top_ids": np.array([[7, 8], [9, 5]], np.int32),
        "top_logprobs": np.array([[-0.5, -2.0], [-0.25, -1.0]], np.float32),
    }
    assert stream.take(commit_of(0, 2, **told), now=1.0) == 2
    assert stream.take(commit_of(2, 1), now=2.0) == 1  # lost, and told again without
    assert stream.take(commit_of(2, 2, num_accepted=1, **told), now=3.0) == 1
    np.testing.assert_array_equal(stream.logprobs, [-0.5, -1.0, nan, -1.0])
    assert stream.top_logprobs == [((7, -0.5), (8, -2.0)), ((9, -0.25), (5, -1.0)), (), ((9, -0.25), (5, -1.0))]


def test_probabilities_of_the_chosen_tokens_alone() -> None:
    stream = empty_stream(logprobs=0)
    told = {"logprobs": np.array([-0.5], np.float32), "top_ids": np.empty((1, 0), np.int32)}
    assert stream.take(commit_of(0, 1, **told, top_logprobs=np.empty((1, 0), np.float32)), now=1.0) == 1
    assert (stream.logprobs, stream.top_logprobs) == ([-0.5], [()])


def test_a_client_can_let_the_drafters_forget() -> None:
    link = Link()
    link.client.forget()
    assert [message for _, message in link.end.receive(0.0) if not isinstance(message, Hello)] == [Forget()]


def test_a_request_outlives_its_leader_at_any_point_of_its_text() -> None:
    """The next leader knows nothing; what was committed is told to it, and the end when that was all that was lost."""
    for committed in range(6):
        link = Link()
        stream = link.open()
        while len(stream.tokens) < committed:
            link.round()
        link.leader = Leader({"r": TEXT})
        link.settle()
        assert stream.tokens == TEXT[PROMPT : PROMPT + 6]
        assert stream.reason == "length"
        assert link.leader.session.counts.committed == 6 - committed


def test_an_abort_that_was_lost_with_its_leader_is_told_to_the_next() -> None:
    link = Link()
    stream = link.open()
    link.round()
    link.client.abort(stream)
    link.end.receive(0.0)  # it died before it read that
    link.leader = Leader({"r": TEXT})
    link.settle()
    assert stream.reason == "abort"
    assert len(stream.tokens) < 6


def test_an_aborted_request_is_not_taken_elsewhere() -> None:
    link = Link()
    stream = link.open()
    link.round()
    link.client.abort(stream)
    link.end.send("f", Close(request="r", generation=0, reason=DRAINING))
    link.client.poll(timeout_s=0.0)
    assert (stream.reason, link.client.streams) == ("abort", {})


def test_an_end_that_was_lost_with_its_leader_is_found_by_the_next() -> None:
    for sampling, reason in (({"stop_token_ids": (TEXT[PROMPT + 3],)}, "stop"), ({"max_tokens": 4}, "length")):
        link = Link(lambda message: not isinstance(message, Close))
        stream = link.open(**{"max_tokens": 6, **sampling})
        for _ in range(5):
            link.round()
            if link.leader.session.idle:
                break
        assert (len(stream.tokens), stream.reason) == (4, "")
        link.leader, link.keep = Leader({"r": TEXT}), lambda message: True
        link.settle()
        assert (stream.tokens, stream.reason) == (TEXT[PROMPT : PROMPT + 4], reason)
        assert link.leader.session.counts.committed == 0


def test_what_an_ending_leader_gives_back_goes_to_the_next() -> None:
    link = Link()
    stream = link.open()
    for _ in range(3):
        link.round()
    for peer, message in link.leader.session.give_back():
        link.end.send(peer, message)
    link.client.poll(timeout_s=0.0)
    assert 0 < len(stream.tokens) < 6
    assert (stream.reason, stream.refused_s > 0) == ("", True)
    link.leader = Leader({"r": TEXT})
    link.settle()
    assert stream.tokens == TEXT[PROMPT : PROMPT + 6]


def test_a_draining_leader_finishes_what_runs_and_refuses_the_rest() -> None:
    link = Link()
    running = link.open()
    link.round()
    link.leader.session.drain()
    late = link.client.open("late", prompt=TEXT[:PROMPT], sampling=Sampling(max_tokens=3))
    for _ in range(6):
        link.round() if running.reason == "" else link.client.poll(timeout_s=0.0)
    assert (running.reason, len(running.tokens)) == ("length", 6)
    assert (late.reason, late.tokens) == ("", [])
    assert late.refused_s > 0


def test_patience_with_a_leader_that_is_gone_or_only_refuses_has_an_end() -> None:
    hub = InprocHub()
    end = hub.leader()
    client = Client(hub.connect("f"), name="f", silence_s=0.0)
    client.open("r", prompt=TEXT[:PROMPT], sampling=Sampling())
    refusal = Close(request="r", generation=0, reason=DRAINING)
    end.send("f", refusal)
    client.poll(timeout_s=0.0)
    end.send("f", refusal)
    with pytest.raises(TransportError, match="no other took its place within 0 s"):
        client.poll(timeout_s=0.0)
    client = Client(hub.connect("g"), name="g", silence_s=0.0)
    end.send("g", Ping())
    with pytest.raises(TransportError, match="said nothing for 0 s"):
        client.poll(timeout_s=0.0)
