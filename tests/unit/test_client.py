"""The frontend's end: what it makes of commits, ends and losses, against the leader's own session."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

import numpy as np
import pytest

from dist_spec.core.messages import Commit, Message
from dist_spec.core.prefix import Prefix
from dist_spec.core.types import Sampling
from dist_spec.errors import ProtocolError
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
        self.client = Client(self.hub.connect("f"), name="f")
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


def test_margins_stay_beside_their_tokens() -> None:
    stream = Stream(
        request="r",
        generation=0,
        prefix=Prefix(TEXT[:PROMPT]),
        sampling=Sampling(),
        opened_s=0.0,
        heard_s=0.0,
        prompt_length=PROMPT,
    )
    for count, margins in ((1, [0.5]), (2, []), (1, [0.25])):
        base = len(stream.prefix)
        commit = Commit(
            request="r",
            generation=0,
            base_length=base,
            base_digest=stream.prefix.digest,
            tokens=ints(TEXT[base : base + count]),
            margins=np.array(margins, np.float32),
        )
        assert stream.take(commit, now=1.0) == count
    np.testing.assert_array_equal(stream.margins, [0.5, nan, nan, 0.25])
