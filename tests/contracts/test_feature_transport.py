"""Hidden features on every transport: they arrive whole, are counted as what they are, and never stand in a commit's way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

from dist_spec.core.messages import Commit, Features
from dist_spec.transports.base import LEADER, Received, Transport
from dist_spec.transports.zmq import ZmqLeader, ZmqPeer
from tests.contracts.transport_cases import InprocKind, Kind, ZmqKind, collect, commit, greeting, joined, wait_for


@pytest.fixture(params=[InprocKind, ZmqKind])
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    with ExitStack() as stack:
        yield request.param(stack)


def rows(count: int, size: int = 96, *, value: float = 0.5) -> np.ndarray:
    return np.full((count, size), value, np.float16)


def features(number: int, *, count: int = 4, size: int = 96) -> Features:
    return Features(
        request="r1", generation=0, base_length=count + number, base_digest=1, rows=rows(count, size, value=number)
    )


def test_they_arrive_whole_and_in_order(kind: Kind) -> None:
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    for number in range(5):
        leader.send("d0", features(number))
    leader.send("d0", replace(commit(7), features=rows(3)))
    received = [message for _, message in collect(peer, 6, sender=leader)]
    came = [message for message in received if isinstance(message, Features)]
    assert [message.base_length for message in came] == [4, 5, 6, 7, 8]
    assert all((message.rows == number).all() for number, message in enumerate(came))
    [told] = [message for message in received if isinstance(message, Commit)]
    np.testing.assert_array_equal(told.features, rows(3))


def test_both_ends_count_them_apart_from_commits(kind: Kind) -> None:
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    leader.send("d0", commit(6))
    collect(peer, 1)
    plain = leader.ledger.total("commit", direction="out").num_bytes
    leader.send("d0", replace(commit(6), features=rows(3)))
    leader.send("d0", features(0))
    collect(peer, 2, sender=leader)
    for end, direction in ((leader, "out"), (peer, "in")):
        commits = end.ledger.total("commit", direction=direction)  # type: ignore[arg-type]
        found = end.ledger.total("features", direction=direction)  # type: ignore[arg-type]
        assert commits.messages == 2
        assert plain < commits.num_bytes - plain <= plain + 4  # the shape is part of the commit
        assert found.messages == 2
        assert 7 * 96 * 2 < found.num_bytes < 7 * 96 * 2 + 40


def test_a_flood_of_them_delays_no_commit_and_the_oldest_go() -> None:
    with ExitStack() as stack:
        kind = ZmqKind(stack)
        leader = kind.leader()
        peer = joined(kind, leader, "d0")
        slowest, count = 0.0, 400
        for number in range(count):
            start = time.monotonic()
            leader.send("d0", features(number, count=16, size=16_384))
            slowest = max(slowest, time.monotonic() - start)
        leader.send("d0", commit(9))
        assert slowest < 0.5
        assert leader.ledger.total("features", direction="out").drops > 0
        received: list[Received] = []

        def commit_came() -> bool:
            received.extend(peer.receive(0.01))
            return any(isinstance(one, Commit) for _, one in received)

        wait_for(commit_came)
        assert sum(isinstance(one, Features) for _, one in received) < 100, "it had to wait behind the flood"

        def newest_came() -> bool:
            leader.receive(0.0)
            received.extend(peer.receive(0.01))
            return any(isinstance(one, Features) and one.base_length == count - 1 + 16 for _, one in received)

        wait_for(newest_came)


@pytest.fixture
def leader() -> Iterator[ZmqLeader]:
    end = ZmqLeader()
    yield end
    end.close()


def hello(leader: Transport, peer: Transport, name: str) -> None:
    peer.send(LEADER, greeting(name))
    assert collect(leader, 1, sender=peer)


def test_without_a_second_connection_they_are_given_up_and_commits_go_on(
    leader: ZmqLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dist_spec.transports.zmq._BULK_PATIENCE_S", 0.1)
    peer = ZmqPeer(leader.address, "d0")
    try:
        hello(leader, peer, "d0")
        leader.send("d0", features(0))
        leader.send("d0", commit(5))
        assert [type(one) for _, one in collect(peer, 1)] == [Commit]

        def given_up() -> bool:
            leader.receive(0.02)
            return leader.ledger.total("features", direction="out").drops == 1

        wait_for(given_up)
    finally:
        peer.close()


def test_they_wait_for_a_second_connection_that_comes_late(leader: ZmqLeader) -> None:
    first = ZmqPeer(leader.address, "d0")
    hello(leader, first, "d0")
    first.close()
    leader.send("d0", features(3))
    again = ZmqPeer(leader.address, "d0", bulk=True)
    try:
        [(_, came)] = collect(again, 1, sender=leader)
        assert isinstance(came, Features)
    finally:
        again.close()
