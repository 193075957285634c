"""One contract for every transport: order, draining, many peers, faults, bounded queues, and a ledger that adds up."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import zmq

from dist_spec.core.messages import Bye, Commit, Hello, Message, Open, Ping, Propose
from dist_spec.core.types import Sampling
from dist_spec.errors import ProtocolError, TransportError
from dist_spec.transports.base import LEADER, Received, Transport
from dist_spec.transports.codec import MAX_FRAME_BYTES, encode
from dist_spec.transports.inproc import InprocHub
from dist_spec.transports.zmq import ZmqLeader, ZmqPeer


def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"


def collect(end: Transport, count: int, timeout_s: float = 10.0) -> list[Received]:
    received: list[Received] = []
    deadline = time.monotonic() + timeout_s
    while len(received) < count and time.monotonic() < deadline:
        received += end.receive(0.05)
    return received


def ping(number: int) -> Ping:
    return Ping(progress=number)


def commit(number: int, size: int = 3) -> Commit:
    tokens = np.full(size, 7, np.int32)
    return Commit(request="r1", generation=0, base_length=number, base_digest=1, tokens=tokens)


def propose(number: int) -> Propose:
    return Propose(
        request="r1",
        generation=0,
        base_length=number,
        base_digest=1,
        tokens=np.array([5, 6], np.int32),
        parents=np.array([-1, 0], np.int32),
        scores=np.array([-0.5, -1.0], np.float32),
    )


def greeting(name: str) -> Hello:
    return Hello(role="drafter", name=name)


@dataclass
class InprocKind:
    """The in-process hub behind the fixture's interface."""

    stack: ExitStack
    hub: InprocHub = field(default_factory=lambda: InprocHub(high_water=8))

    def leader(self) -> Transport:
        end = self.hub.leader()
        self.stack.callback(end.close)
        return end

    def connect(self, name: str) -> Transport:
        end = self.hub.connect(name)
        self.stack.callback(end.close)
        return end

    def deliver(self, name: str, frames: Sequence[bytes]) -> None:
        self.hub.deliver(name, frames)


@dataclass
class ZmqKind:
    """ZeroMQ over TCP on loopback behind the fixture's interface."""

    stack: ExitStack
    address: str = "tcp://127.0.0.1:0"

    def leader(self) -> Transport:
        end = ZmqLeader(self.address, high_water=8)
        self.address = end.address
        self.stack.callback(end.close)
        return end

    def connect(self, name: str) -> Transport:
        if self.address.endswith(":0"):
            probe = ZmqLeader(self.address)
            self.address = probe.address
            probe.close()
        end = ZmqPeer(self.address, name, high_water=8)
        self.stack.callback(end.close)
        return end

    def deliver(self, name: str, frames: Sequence[bytes]) -> None:
        context = zmq.Context()
        with context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.ROUTING_ID, name.encode())
            dealer.connect(self.address)
            dealer.send_multipart(frames)
            dealer.close(linger=2000)
        context.term()


Kind = InprocKind | ZmqKind


@pytest.fixture(params=[InprocKind, ZmqKind], ids=["inproc", "zmq"])
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    with ExitStack() as stack:
        yield request.param(stack)


def joined(kind: Kind, leader: Transport, name: str) -> Transport:
    """A peer that the leader has heard of."""
    peer = kind.connect(name)
    peer.send(LEADER, greeting(name))
    received: list[Received] = []

    def arrived() -> bool:
        assert peer.receive(0.0) == []
        received.extend(leader.receive(0.02))
        return bool(received)

    wait_for(arrived)
    assert received == [(name, greeting(name))]
    return peer


def test_messages_arrive_in_order_both_ways(kind: Kind) -> None:
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    for start in range(0, 40, 5):
        for number in range(start, start + 5):
            peer.send(LEADER, ping(number))
            leader.send("d0", ping(1000 + number))
        assert collect(leader, 5) == [("d0", ping(number)) for number in range(start, start + 5)]
        assert collect(peer, 5) == [(LEADER, ping(1000 + number)) for number in range(start, start + 5)]


def test_one_receive_drains_everything(kind: Kind) -> None:
    leader = kind.leader()
    peer = joined(kind, leader, "d0")
    for number in range(6):
        peer.send(LEADER, ping(number))
    time.sleep(0.2)
    assert len(leader.receive(0.0)) == 6
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


@pytest.mark.parametrize("frames", [[b""], [b"garbage"], [b"a"] * 5, [bytes(encode(commit(1))[0])], [b"\x91" * 5000]])
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
        rows = [row for row in end.ledger.rows() if row.direction == direction]
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


# ------------------------------------------------------------------------------------------------- ZeroMQ alone


@pytest.fixture
def leader() -> Iterator[ZmqLeader]:
    end = ZmqLeader()
    yield end
    end.close()


def test_oversized_frames_never_arrive(leader: ZmqLeader) -> None:
    context = zmq.Context()
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(leader.address)
        dealer.send(b"\0" * (MAX_FRAME_BYTES + 1))
        assert leader.receive(0.5) == []
        peer = ZmqPeer(leader.address, "d0")
        peer.send(LEADER, ping(1))
        received = []

        def arrived() -> bool:
            peer.receive(0.0)
            received.extend(leader.receive(0.02))
            return bool(received)

        wait_for(arrived)
        assert received == [("d0", ping(1))]
        peer.close()
        dealer.close(linger=0)
    context.term()


def test_bytes_that_are_no_zeromq_at_all(leader: ZmqLeader) -> None:
    host, port = leader.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        assert leader.receive(0.2) == []


def test_anonymous_peers_can_be_answered(leader: ZmqLeader) -> None:
    context = zmq.Context()
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(leader.address)
        dealer.send_multipart(encode(ping(4)))
        [(name, message)] = collect(leader, 1)
        assert name.startswith("?")
        assert message == ping(4)
        leader.send(name, Bye(reason="no name", fatal=True))
        assert dealer.poll(5000)
        assert dealer.recv_multipart() == encode(Bye(reason="no name", fatal=True))
        dealer.close(linger=0)
    context.term()


def test_a_living_predecessor_is_replaced(leader: ZmqLeader) -> None:
    old = ZmqPeer(leader.address, "d0")
    received: list[Received] = []

    def arrived(end: ZmqPeer, message: Message) -> bool:
        end.receive(0.0)
        received.extend(leader.receive(0.02))
        return ("d0", message) in received

    old.send(LEADER, ping(1))
    wait_for(lambda: arrived(old, ping(1)))
    new = ZmqPeer(leader.address, "d0")
    new.send(LEADER, ping(2))
    wait_for(lambda: arrived(new, ping(2)))
    old.close()
    new.close()


def test_an_end_that_nobody_closed_does_not_hang_the_collector() -> None:
    code = (
        "import gc\n"
        "from dist_spec.transports.zmq import ZmqLeader\n"
        "for _ in range(5):\n"
        "    end = ZmqLeader(); end.me = end\n"
        "    del end; gc.collect()\n"
        "print('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "alive\n"


def test_receive_waits_no_longer_than_told_and_no_shorter(leader: ZmqLeader) -> None:
    start, busy = time.monotonic(), time.process_time()
    assert leader.receive(0.3) == []
    assert 0.29 <= time.monotonic() - start < 2.0
    assert time.process_time() - busy < 0.1, "waiting must not spin"


def test_port_in_use(leader: ZmqLeader) -> None:
    with pytest.raises(TransportError, match="in use") as caught:
        ZmqLeader(leader.address)
    assert caught.value.fix


@pytest.mark.parametrize("address", ["tcp://*:0", "tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://eth0:0"])
def test_open_addresses_need_consent(address: str) -> None:
    with pytest.raises(TransportError, match="other hosts") as caught:
        ZmqLeader(address)
    assert "allow_plaintext" in str(caught.value.fix)


def test_open_address_with_consent() -> None:
    leader = ZmqLeader("tcp://0.0.0.0:0", allow_plaintext=True)
    peer = ZmqPeer(leader.address.replace("0.0.0.0", "127.0.0.1"), "d0")
    peer.send(LEADER, ping(1))
    received: list[Received] = []

    def arrived() -> bool:
        peer.receive(0.0)
        received.extend(leader.receive(0.02))
        return bool(received)

    wait_for(arrived)
    peer.close()
    leader.close()


@pytest.mark.parametrize("address", ["", "nonsense", "tcp://127.0.0.1", "tcp://127.0.0.1:99999", "udp://127.0.0.1:1"])
def test_malformed_addresses(address: str) -> None:
    with pytest.raises(TransportError):
        ZmqLeader(address)
    with pytest.raises(TransportError):
        ZmqPeer(address, "d0")


def test_an_address_of_another_host() -> None:
    with pytest.raises(TransportError, match="not an address of this host"):
        ZmqLeader("tcp://192.0.2.1:0", allow_plaintext=True)


@pytest.mark.parametrize("address", ["tcp://localhost:0", "tcp://127.0.0.1:*", "tcp://127.0.0.1:0"])
def test_loopback_addresses(address: str) -> None:
    leader = ZmqLeader(address)
    assert leader.address.startswith("tcp://127.0.0.1:")
    assert not leader.address.endswith((":0", ":*"))
    leader.close()
