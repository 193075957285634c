"""One contract for every transport: order, draining, many peers, faults, bounded queues, and a ledger that adds up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dist_spec.core.messages import Bye, Close, Commit, Message, Need, Open, Propose
from dist_spec.core.types import Sampling
from dist_spec.errors import ProtocolError, TransportError
from dist_spec.transports.base import LEADER, Received
from dist_spec.transports.codec import encode
from dist_spec.transports.names import Names
from tests.contracts.transport_cases import (
    CollectiveKind,
    ComposedKind,
    InprocKind,
    Kind,
    ZmqKind,
    collect,
    commit,
    greeting,
    joined,
    ping,
    propose,
    wait_for,
)

KINDS: dict[type[Kind], str] = {
    InprocKind: "inproc",
    ZmqKind: "zmq",
    CollectiveKind: "collective",
    ComposedKind: "composed",
}


@pytest.fixture(params=list(KINDS), ids=KINDS.values())
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    with ExitStack() as stack:
        yield request.param(stack)


def test_messages_arrive_in_order_both_ways(kind: Kind) -> None:
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    for start in range(0, 40, 5):
        for number in range(start, start + 5):
            peer.send(LEADER, ping(number))
            leader.send("d0", ping(1000 + number))
        assert collect(leader, 5) == [("d0", ping(number)) for number in range(start, start + 5)]
        arrived = collect(peer, 5, sender=leader)
        assert arrived == [(LEADER, ping(1000 + number)) for number in range(start, start + 5)]


def test_one_receive_drains_everything(kind: Kind) -> None:
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    for pause_s in (0.2, 1.0, 5.0):  # a busy machine takes its time to carry all six
        for number in range(6):
            peer.send(LEADER, ping(number))
        time.sleep(pause_s)
        first = leader.receive(0.0)
        if len(first) == 6:
            break
        collect(leader, 6 - len(first))
    assert len(first) == 6
    assert leader.receive(0.0) == []


def test_arrays_survive(kind: Kind) -> None:
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    peer.send(LEADER, propose(3))
    leader.send("d0", Open(request="r1", generation=0, prompt=np.arange(5000, dtype=np.int32), sampling=Sampling()))
    [(_, got)] = collect(leader, 1)
    assert isinstance(got, Propose)
    np.testing.assert_array_equal(got.parents, [-1, 0])
    [(_, opened)] = collect(peer, 1)
    assert isinstance(opened, Open)
    np.testing.assert_array_equal(opened.prompt, np.arange(5000))


LONG = "chatcmpl-0123456789abcdef0123456789abcdef"


def opening(request: str) -> Open:
    return Open(request=request, generation=3, prompt=np.arange(4, dtype=np.int32), sampling=Sampling())


def named(message: Commit | Propose) -> Commit | Propose:
    return replace(message, request=LONG, generation=3)


def part_with_names(end: Any) -> Any:
    end = getattr(end, "_zmq", end)
    return getattr(end, "_channel", getattr(end, "lanes", end))


def test_a_long_name_is_told_once(kind: Kind) -> None:
    """Whoever was told a request's name, or has spoken of it, is sent four bytes instead; nobody above notices."""
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    leader.send("d0", opening(LONG))
    leader.send("d0", named(commit(1)))  # the peer may have lost the opening: by name
    assert [message.request for _, message in collect(peer, 2)] == [LONG, LONG]
    peer.send(LEADER, named(propose(1)))
    [(_, proposed)] = collect(leader, 1)
    leader.send("d0", named(commit(2)))
    [(_, committed)] = collect(peer, 1)
    assert [(one.request, one.generation) for one in (proposed, committed)] == [(LONG, 3)] * 2
    rows = {(row.direction, row.kind): row for row in leader.ledger.rows()}
    assert rows["in", "propose"].num_bytes < len(LONG) + 10
    assert rows["out", "commit"].num_bytes < 2 * 30 + len(LONG)


def test_who_lost_a_name_asks_for_it(kind: Kind) -> None:
    """A drafter that was restarted unnoticed meets a handle, calls the request by it, and is understood."""
    leader = kind.leader()
    peer: Any = joined(kind, leader, "d0")
    leader.send("d0", opening(LONG))
    peer.send(LEADER, named(propose(1)))
    assert len(collect(peer, 1)) == len(collect(leader, 1)) == 1
    part_with_names(peer).names = Names()
    leader.send("d0", named(commit(1)))
    [(_, unknown)] = collect(peer, 1)
    assert unknown.request.startswith("#")
    peer.send(LEADER, Need(request=unknown.request, generation=unknown.generation, have_length=0))
    [(_, need)] = collect(leader, 1)
    assert need == Need(request=LONG, generation=3, have_length=0)
    leader.send("d0", opening(LONG))
    leader.send("d0", named(commit(2)))
    assert [message.request for _, message in collect(peer, 2)] == [LONG, LONG]


def test_the_name_of_an_end_that_is_not_known_any_more(kind: Kind) -> None:
    """A leader that was restarted closes what it does not know, by the handle; the drafter knows which one is meant."""
    leader: Any = kind.leader()
    peer = joined(kind, leader, "d0")
    leader.send("d0", opening(LONG))
    collect(peer, 1)
    part_with_names(leader).names = Names()
    peer.send(LEADER, named(propose(1)))
    [(_, unknown)] = collect(leader, 1)
    leader.send("d0", Close(request=unknown.request, generation=unknown.generation, reason="unknown"))
    assert collect(peer, 1) == [(LEADER, Close(request=LONG, generation=3, reason="unknown"))]


def test_who_greets_again_is_told_names_again(kind: Kind) -> None:
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    leader.send("d0", opening(LONG))
    peer.send(LEADER, named(propose(1)))
    collect(leader, 1)
    peer.close()
    again = joined(kind, leader, "d0")
    leader.send("d0", named(commit(1)))
    [(_, committed)] = collect(again, 1)
    assert committed.request == LONG


def test_messages_say_when_they_were_sent(kind: Kind) -> None:
    """Time under way is what lies between the two calls; the part of it behind a verification is hidden."""
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    peer.send(LEADER, ping(1))
    collect(leader, 1)
    before = time.monotonic()
    peer.send(LEADER, propose(1))
    sent = time.monotonic()
    time.sleep(0.05)
    leader.ledger.verifying(sent + 0.01, sent + 0.03)
    collect(leader, 1)
    row = leader.ledger.total("propose", direction="in")
    assert 0.05 <= row.transit_s < time.monotonic() - before + 1e-3
    assert row.hidden_s == pytest.approx(0.02, abs=1e-3)


def test_two_peers_are_told_apart(kind: Kind) -> None:
    leader = kind.leader()
    first, second = joined(kind, leader, "d0"), joined(kind, leader, "d1")
    leader.send("d0", ping(1))
    leader.send("d1", ping(2))
    assert collect(first, 1) == [(LEADER, ping(1))]
    assert collect(second, 1) == [(LEADER, ping(2))]
    first.send(LEADER, ping(3))
    second.send(LEADER, ping(4))
    assert sorted(collect(leader, 2), key=lambda one: one[0]) == [("d0", ping(3)), ("d1", ping(4))]


@pytest.mark.parametrize("name", ["nobody", "", "?zz", "?00ff"])
def test_unknown_peers_cost_a_drop(kind: Kind, name: str) -> None:
    leader = kind.leader()
    leader.send(name, ping(1))
    assert leader.ledger.total("ping", direction="out").drops == 1
    assert leader.ledger.total("ping", direction="out").messages == 0
    peer = joined(kind, leader, "d0")
    peer.send("d1", ping(1))
    assert peer.ledger.total("ping", direction="out").drops == 1


@pytest.mark.parametrize(
    "frames", [[b""], [b"garbage"], [b"a"] * 5, [bytes(encode(commit(1))[0])[:-1]], [b"\x91" * 5000]]
)
def test_malformed_bytes_come_as_errors_and_harm_nobody(kind: Kind, frames: list[bytes]) -> None:
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    kind.deliver("evil", frames)
    [(name, error)] = collect(leader, 1)
    assert name == "evil"
    assert isinstance(error, ProtocolError)
    assert leader.ledger.total("malformed", direction="in").drops == 1
    peer.send(LEADER, ping(5))
    assert collect(leader, 1) == [("d0", ping(5))]


def test_the_vocabulary_bounds_what_is_let_in(kind: Kind) -> None:
    leader: Any = kind.leader()
    leader.vocab_size = 6
    peer = joined(kind, leader, "d0")
    peer.send(LEADER, propose(1))
    [(_, error)] = collect(leader, 1)
    assert isinstance(error, ProtocolError)


def test_a_restarted_peer_takes_the_place_of_its_predecessor(kind: Kind) -> None:
    leader = kind.leader()
    joined(kind, leader, "d0").close()
    again = joined(kind, leader, "d0")
    leader.send("d0", ping(1))
    assert collect(again, 1) == [(LEADER, ping(1))]


def test_a_last_word_is_delivered(kind: Kind) -> None:
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    peer.send(LEADER, Bye(reason="done"))
    peer.close()
    assert collect(leader, 1) == [("d0", Bye(reason="done"))]


def test_a_peer_may_come_before_the_leader(kind: Kind) -> None:
    peer = kind.connect("d0")
    peer.send(LEADER, greeting("d0"))
    assert peer.receive(0.01) == []
    leader = kind.leader()
    received: list[Received] = []

    def arrived() -> bool:
        peer.receive(0.01)
        received.extend(leader.receive(0.01))
        return bool(received)

    wait_for(arrived)
    assert received == [("d0", greeting("d0"))]


def test_a_peer_outlives_its_leader(kind: Kind) -> None:
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    leader.close()
    second = kind.leader()
    received: list[Received] = []

    def arrived() -> bool:
        peer.send(LEADER, ping(2))
        peer.receive(0.01)
        received.extend(second.receive(0.01))
        return bool(received)

    wait_for(arrived)
    assert set(received) == {("d0", ping(2))}


def test_a_receiver_that_stands_still_never_blocks_the_sender(kind: Kind) -> None:
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    count, size, slowest = 600, 20_000, 0.0
    keep = Open(request="keep", generation=0, prompt=np.zeros(1, np.int32), sampling=Sampling())
    for number in range(count):
        start = time.monotonic()
        leader.send("d0", commit(number, size))
        slowest = max(slowest, time.monotonic() - start)
        if number == count - 5:
            leader.send("d0", keep)
    assert slowest < 0.5
    dropped = leader.ledger.total("commit", direction="out").drops
    assert dropped > 0
    received: list[Received] = []

    def arrived() -> bool:
        leader.receive(0.0)
        received.extend(peer.receive(0.01))
        return len(received) >= count + 1 - dropped

    wait_for(arrived)
    messages = [message for _, message in received]
    numbers = [message.base_length for message in messages if isinstance(message, Commit)]
    assert numbers == sorted(numbers)
    assert numbers[-1] == count - 1, "the newest must survive, the oldest go"
    assert len(numbers) == count - dropped
    assert any(isinstance(message, Open) for message in messages), "what opens a request is kept"
    assert leader.ledger.total("commit", direction="out").drops == dropped


def test_ledgers_of_both_ends_agree_with_the_frames(kind: Kind) -> None:
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    sent: list[Message] = [propose(1), propose(2), commit(5), ping(8)]
    for message in sent:
        peer.send(LEADER, message)
    assert len(collect(leader, len(sent))) == len(sent)
    expected = sum(len(frame) for message in [greeting("d0"), *sent] for frame in encode(message))
    for end, direction, other in ((peer, "out", LEADER), (leader, "in", "d0")):
        rows = [row for row in end.ledger.rows() if row.direction == direction and row.kind != "link"]
        assert {row.peer for row in rows} == {other}
        assert sum(row.num_bytes for row in rows) == expected
        assert {row.kind: row.messages for row in rows} == {"hello": 1, "propose": 2, "commit": 1, "ping": 1}
        assert all(row.local_s > 0 for row in rows)


def test_bad_messages_are_refused_where_they_are_made(kind: Kind) -> None:
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    with pytest.raises(ProtocolError):
        leader.send("d0", ping(-1))
    assert peer.receive(0.05) == []


def test_close_twice_and_use_after_close(kind: Kind) -> None:
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    for end, other in ((peer, LEADER), (leader, "d0")):
        end.close()
        end.close()
        with pytest.raises(TransportError):
            end.send(other, ping(1))
        with pytest.raises(TransportError):
            end.receive(0.0)


@pytest.mark.parametrize("name", ["", LEADER])
def test_impossible_names(kind: Kind, name: str) -> None:
    kind.leader()
    with pytest.raises(TransportError):
        kind.connect(name)
