"""Two links to one peer as one transport: messages go over ZeroMQ, tensors over a lane of torch.distributed beside it, for
peers that want one. It routes; it knows neither sockets nor what a message does.

What goes over the lane: hidden features, those that ride on a commit too (they are named by the text that they belong to,
so it does not matter which of the two comes first), and proposals with dense laws; with `carries: messages`, everything
once the lane is up. Where no lane is up, and after one broke, everything goes over ZeroMQ: that costs speed only. A drafter
asks for a lane whenever it greets, and again after a while where it has none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from time import monotonic

from dist_spec.core.feature_inbox import features_of
from dist_spec.core.messages import Bye, Commit, Features, Hello, Link, LinkCargo, Message, Propose, no_rows
from dist_spec.transports.base import LEADER, Received
from dist_spec.transports.collective import CollectiveLeader, CollectivePeer
from dist_spec.transports.halves import host_rows
from dist_spec.transports.lane import LEFT
from dist_spec.transports.lanes import MAX_GUESTS, Lanes
from dist_spec.transports.pair import TensorBackend, backend_for
from dist_spec.transports.reunion import Reunion
from dist_spec.transports.zmq import ZmqLeader, ZmqPeer

__all__ = ["LANE", "ComposedLeader", "ComposedPeer"]

LANE = "collective"
"""The name of the second link in the ledger."""
_ASK_AGAIN_S = (2.0, 60.0)
"""When a drafter without a lane asks again: the first time, and at the longest."""
LANE_HIGH_WATER = 64
"""Messages that may wait for a lane, in it, and behind it: they are large."""
_log = logging.getLogger("dist_spec")


class ComposedLeader:
    """The leader's end of both links; the lanes' store is bound to the host of the ZeroMQ address.

    Args:
        zmq: the first link; closed along with this.
        device: where tensors live.
        deadline_s: a lane whose other end is not heard for so long is given up.

    Attributes:
        keeps_tensors: features should stay on the device: some lanes may take them from there.

    Raises:
        TransportError: the store cannot be hosted.
    """

    def __init__(self, zmq: ZmqLeader, *, device: str, allow_plaintext: bool, deadline_s: float) -> None:
        self._zmq = zmq
        self.address = zmq.address
        self.ledger = zmq.ledger
        self.keeps_tensors = backend_for(device) == "nccl"
        self._cargo: dict[str, LinkCargo] = {}  # by peer, those that asked last at the end
        self._collective = CollectiveLeader(
            f"{_host(zmq.address)}:0",
            device=device,
            allow_plaintext=allow_plaintext,
            high_water=LANE_HIGH_WATER,
            deadline_s=deadline_s,
            vocab_size=zmq.vocab_size,
            ledger=zmq.ledger.on(LANE),
            names=zmq.names,
        )
        zmq.bell = self._collective.lanes.bell

    @property
    def vocab_size(self) -> int:
        """Token ids of received messages must be smaller; may be set later, when the model is known."""
        return self._zmq.vocab_size

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:
        self._zmq.vocab_size = self._collective.vocab_size = value

    def send(self, peer: str, message: Message) -> None:
        """See `Transport.send`."""
        if not self._collective.lanes.reaches(peer):
            return self._zmq.send(peer, _on_host(message))
        for_lane, for_zmq = _shared_out(message, self._cargo.get(peer, "tensors"))
        if for_lane is not None:
            takes_tensors = self._collective.lanes.takes_tensors(peer)
            self._collective.send(peer, for_lane if takes_tensors else _on_host(for_lane))
        if for_zmq is not None:
            self._zmq.send(peer, for_zmq)

    def receive(self, timeout_s: float) -> list[Received]:
        """See `Transport.receive`."""
        deadline = monotonic() + timeout_s
        while True:
            arrived = self._settled(self._zmq.receive(max(deadline - monotonic(), 0.0)))
            arrived = [*self._collective.receive(0.0), *arrived]
            for peer, reason in self._collective.lanes.take_changes():
                if reason:
                    self._zmq.send(peer, Link(state="broken", reason=reason))
                _tell(peer, reason)
            if arrived or monotonic() >= deadline:
                return arrived

    def _settled(self, arrived: Iterable[Received]) -> list[Received]:
        """What is not about lanes; the rest is done."""
        rest: list[Received] = []
        for peer, message in arrived:
            if not isinstance(message, Link):
                rest.append((peer, message))
                if isinstance(message, Bye):
                    self._cargo.pop(peer, None)
            elif message.state == "wanted":
                self._wanted(peer, message.carries)
                self._zmq.send(peer, Link(state="offered", address=self._collective.address))
            elif message.state == "broken":
                _give_up(self._collective.lanes, peer, message.reason)
        return rest

    def _wanted(self, peer: str, carries: LinkCargo) -> None:
        self._cargo.pop(peer, None)
        self._cargo[peer] = carries
        if len(self._cargo) > 2 * MAX_GUESTS:  # those that died, and came under ever new names
            gone = [one for one in self._cargo if one != peer and not self._collective.lanes.reaches(one)]
            for one in gone[: len(self._cargo) - 2 * MAX_GUESTS]:
                del self._cargo[one]

    def close(self) -> None:
        """Let the last messages leave, for a short while, and free the address."""
        self._zmq.bell = None
        self._collective.close()
        self._zmq.close()


class ComposedPeer:
    """A drafter's end of both links.

    Args:
        zmq: the first link; closed along with this.
        connect: the leader's ZeroMQ address.
        carries: what is to go over the lane.
        backend: how bodies travel (None: NCCL if both ends are on GPUs).
    """

    def __init__(
        self,
        zmq: ZmqPeer,
        *,
        connect: str,
        carries: LinkCargo,
        device: str,
        backend: TensorBackend | None,
        deadline_s: float,
    ) -> None:
        self._zmq = zmq
        self.ledger = zmq.ledger
        self._carries: LinkCargo = carries
        self._reached = _host(connect).strip("[]")
        self._device = device
        self._backend = backend
        self._deadline_s = deadline_s
        self._address = ""
        self._collective: CollectivePeer | None = None
        self._reunion = Reunion()
        self._ask_s, self._pause_s = float("inf"), _ASK_AGAIN_S[0]

    def send(self, peer: str, message: Message) -> None:
        """See `Transport.send`."""
        lane = self._collective
        if isinstance(message, Hello):
            self._zmq.send(peer, message)
            self._pause_s = _ASK_AGAIN_S[0]
            self._ask()
        elif lane is None or not lane.is_up or peer != LEADER:
            self._zmq.send(peer, message)
        else:
            for_lane, for_zmq = _shared_out(message, self._carries)
            if for_lane is not None:
                lane.send(peer, for_lane)
            if for_zmq is not None:
                self._zmq.send(peer, for_zmq)

    def receive(self, timeout_s: float) -> list[Received]:
        """See `Transport.receive`."""
        deadline = monotonic() + timeout_s
        while True:
            left = min(deadline, self._reunion.due_s) - monotonic()
            arrived = self._settled(self._zmq.receive(max(left, 0.0)))
            if self._collective is not None:
                arrived = [*self._collective.receive(0.0), *arrived]
                for _, reason in self._collective.lanes.take_changes():
                    if reason:
                        self._zmq.send(LEADER, Link(state="broken", reason=reason))
                    _tell("the leader", reason)
                arrived = self._reunion.passed(arrived, now=monotonic(), is_up=self._collective.is_up)
            if monotonic() >= self._ask_s and not (self._collective is not None and self._collective.is_up):
                self._ask()  # also where the first question or its answer was lost
            if arrived or monotonic() >= deadline:
                return arrived

    def _settled(self, arrived: Iterable[Received]) -> list[Received]:
        rest: list[Received] = []
        for peer, message in arrived:
            if not isinstance(message, Link):
                rest.append((peer, message))
            elif message.state == "offered":
                self._knock(message.address)
            elif message.state == "broken" and self._collective is not None:
                _give_up(self._collective.lanes, LEADER, message.reason)
        return rest

    def _ask(self) -> None:
        self._zmq.send(LEADER, Link(state="wanted", carries=self._carries))
        self._ask_s, self._pause_s = monotonic() + self._pause_s, min(2 * self._pause_s, _ASK_AGAIN_S[1])

    def _knock(self, address: str) -> None:
        """The leader is there (again); a lane to the same store that is up stays."""
        if self._collective is not None:
            if address == self._address and LEADER in self._collective.lanes.lanes:
                return
            self._zmq.bell = None
            self._collective.close()
        self._address = address
        self._collective = CollectivePeer(
            address,
            self._zmq.name,
            device=self._device,
            backend=self._backend,
            high_water=LANE_HIGH_WATER,
            deadline_s=self._deadline_s,
            vocab_size=self._zmq.vocab_size,
            ledger=self.ledger.on(LANE),
            names=self._zmq.names,
            retry=False,
            reached=self._reached,
        )
        self._zmq.bell = self._collective.lanes.bell

    def close(self) -> None:
        """Let the last messages leave, for a short while."""
        self._zmq.bell = None
        if self._collective is not None:
            self._collective.close()
        self._zmq.close()


def _shared_out(message: Message, cargo: LinkCargo) -> tuple[Message | None, Message | None]:
    """What of a message goes over the lane, and what over ZeroMQ."""
    if isinstance(message, Hello | Link):
        return None, message
    if cargo == "messages" or isinstance(message, Features):
        return message, None
    if isinstance(message, Commit) and len(message.features):
        return features_of(message), replace(message, features=no_rows(), apart=True)
    if isinstance(message, Propose) and any(law is not None and not len(law.ids) for law in message.laws):
        return message, None
    return None, message


def _on_host(message: Message) -> Message:
    """Features that lie on a device and must go another way than from there."""
    if isinstance(message, Features):
        rows = host_rows(message.rows)
        return message if rows is message.rows else replace(message, rows=rows)
    if isinstance(message, Commit) and len(message.features):
        rows = host_rows(message.features)
        return message if rows is message.features else replace(message, features=rows)
    return message


def _give_up(lanes: Lanes, peer: str, reason: str) -> None:
    """The other end found the lane broken."""
    lane = lanes.lanes.get(peer)
    if lane is not None:
        lane.fail(f"the other end says: {reason}")


def _tell(peer: str, reason: str) -> None:
    if reason == LEFT:
        _log.info("the tensor link with %s was closed by the other end", peer)
    elif reason:
        text = "the tensor link with %s is down (%s): ZeroMQ carries everything until there is another"
        _log.warning(text, peer, reason)
    else:
        _log.info("tensors of %s go over a link of their own (torch.distributed)", peer)


def _host(address: str) -> str:
    """The host of a ZeroMQ TCP address, with brackets if it has such."""
    return address.removeprefix("tcp://").rpartition(":")[0]
