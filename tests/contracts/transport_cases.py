"""What the tests of transports share: the kinds behind one interface, waiting, and messages to send."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import zmq

from dist_spec.core.messages import Commit, Hello, Ping, Propose
from dist_spec.free_port import free_port
from dist_spec.transports.base import LEADER, Received, Transport
from dist_spec.transports.collective import CollectiveLeader, CollectivePeer
from dist_spec.transports.composed import ComposedLeader, ComposedPeer
from dist_spec.transports.inproc import InprocHub
from dist_spec.transports.zmq import ZmqLeader, ZmqPeer


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"


def collect(end: Transport, count: int, timeout_s: float = 60.0, *, sender: Transport | None = None) -> list[Received]:
    """What arrives at an end. A `sender` that has more under way than its high-water mark hands it over meanwhile."""
    received: list[Received] = []
    deadline = time.monotonic() + timeout_s
    while len(received) < count and time.monotonic() < deadline:
        if sender is not None:
            assert sender.receive(0.0) == []
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
        self._settle_address()
        end = ZmqPeer(self.address, name, high_water=8, bulk=True)
        self.stack.callback(end.close)
        return end

    def _settle_address(self) -> None:
        """A peer may come before its leader: both must mean the same port."""
        if self.address.endswith(":0"):
            probe = ZmqLeader(self.address)
            self.address = probe.address
            probe.close()

    def deliver(self, name: str, frames: Sequence[bytes]) -> None:
        context = zmq.Context()
        with context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.ROUTING_ID, name.encode())
            dealer.connect(self.address)
            dealer.send_multipart(frames)
            dealer.close(linger=2000)
        context.term()


@dataclass
class CollectiveKind:
    """torch.distributed point-to-point on loopback behind the fixture's interface."""

    stack: ExitStack
    address: str = "127.0.0.1:0"

    def leader(self) -> Transport:
        end = self.host = CollectiveLeader(self.address, high_water=8)
        self.address = end.address
        self.stack.callback(end.close)
        return end

    def connect(self, name: str) -> Transport:
        if self.address.endswith(":0"):
            self.address = f"127.0.0.1:{free_port()}"
        end = CollectivePeer(self.address, name, high_water=8)
        self.stack.callback(end.close)
        return end

    def deliver(self, name: str, frames: Sequence[bytes]) -> None:
        evil = CollectivePeer(self.address, name)
        self.stack.callback(evil.close)
        wait_for(lambda: self.host.receive(0.0) == [] and evil.is_up)
        assert evil.lanes.lanes[LEADER].offer(frames)


@dataclass
class ComposedKind(ZmqKind):
    """ZeroMQ with a lane for tensors beside it."""

    def leader(self) -> Transport:
        zmq_end = ZmqLeader(self.address, high_water=8)
        end = ComposedLeader(zmq_end, device="cpu", allow_plaintext=False, deadline_s=2.0)
        self.address = end.address
        self.stack.callback(end.close)
        return end

    def connect(self, name: str) -> Transport:
        self._settle_address()
        end = ComposedPeer(
            ZmqPeer(self.address, name, high_water=8, bulk=True),
            connect=self.address,
            carries="tensors",
            device="cpu",
            backend=None,
            deadline_s=2.0,
        )
        self.stack.callback(end.close)
        return end


Kind = InprocKind | ZmqKind | CollectiveKind


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
    if isinstance(leader, ComposedLeader):
        lanes = leader._collective.lanes
        wait_for(lambda: leader.receive(0.0) == peer.receive(0.0) == [] and lanes.reaches(name))
    return peer
