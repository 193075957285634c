"""The transport over torch.distributed point-to-point: every peer and the leader share a lane. It moves frames and counts
them; it knows nothing of what they mean.

It carries whatever the protocol has, and by itself needs nothing but the address of the leader's store; `composed` lets it
carry tensors alone. A peer that lost its leader knocks again; one that comes anew takes over its predecessor's place.
"""

from __future__ import annotations

from collections import deque
from time import monotonic

from dist_spec.core.messages import Message
from dist_spec.errors import TransportError
from dist_spec.transports.base import LEADER, Received
from dist_spec.transports.fields import MAX_NAME, MAX_VOCABULARY
from dist_spec.transports.lanes import DEADLINE_S, MAX_GUESTS, Lanes
from dist_spec.transports.ledger import Ledger
from dist_spec.transports.meeting import Guest, Meeting, knock, split
from dist_spec.transports.names import Names
from dist_spec.transports.outbox import HIGH_WATER
from dist_spec.transports.pair import Pair, TensorBackend, backend_for

__all__ = ["CollectiveLeader", "CollectivePeer"]

_RETRY_S = (0.05, 1.0)
"""Pause before a peer knocks again: the first, and the longest."""


class CollectiveLeader:
    """The end that hosts the store, with many peers.

    Args:
        bind: "HOST:PORT" of the store (port 0: any free one).
        device: where bodies live; decides for NCCL or gloo with each peer.
        allow_plaintext: permit an address that other hosts can reach.
        ledger, names: of the end that this is a part of.

    Raises:
        TransportError: the address is malformed, in use, not this host's, or open to others without `allow_plaintext`.
    """

    def __init__(
        self,
        bind: str = "127.0.0.1:0",
        *,
        device: str = "cpu",
        allow_plaintext: bool = False,
        high_water: int = HIGH_WATER,
        deadline_s: float = DEADLINE_S,
        vocab_size: int = MAX_VOCABULARY,
        ledger: Ledger | None = None,
        names: Names | None = None,
    ) -> None:
        host, port = split(bind)
        self.vocab_size = vocab_size
        self._device = device
        self._backend: TensorBackend = backend_for(device)
        self.lanes = Lanes(ledger=ledger, names=names, high_water=high_water, deadline_s=deadline_s)
        self.ledger = self.lanes.ledger
        self._guests: deque[Guest] = deque(maxlen=MAX_GUESTS)
        try:
            self._meeting = Meeting(host, port, allow_plaintext=allow_plaintext, on_guest=self._knocked)
        except BaseException:
            self.lanes.close()
            raise
        self.address = self._meeting.address

    def _knocked(self, guest: Guest) -> None:
        """On the meeting's thread."""
        self._guests.append(guest)
        self.lanes.bell.ring()

    def send(self, peer: str, message: Message) -> None:
        """See `Transport.send`; for a peer without a lane the message is dropped and counted.

        Raises:
            ProtocolError: the message cannot be encoded.
            TransportError: this end was closed.
        """
        self.lanes.check_open()
        self._let_in()
        if self.lanes.reaches(peer):
            self.lanes.push(peer, message)
        else:
            self.lanes.drop(peer, message)

    def receive(self, timeout_s: float) -> list[Received]:
        """See `Transport.receive`."""
        deadline = monotonic() + timeout_s
        while True:
            self.lanes.check_open()
            self.lanes.bell.silence()
            self._let_in()
            arrived = self.lanes.take(vocab_size=self.vocab_size)
            for peer in self.lanes.look_after():
                self.lanes.outbox.give_up(peer)
            for peer in self.lanes.outbox.waiting():
                self.lanes.flush(peer)
            left = deadline - monotonic()
            if arrived or left <= 0:
                return arrived
            self.lanes.bell.wait(min(left, 0.01) if len(self.lanes.outbox) else left)

    def _let_in(self) -> None:
        while self._guests:
            guest = self._guests.popleft()
            others = len(self.lanes.lanes) - (guest.name in self.lanes.lanes)
            if others >= MAX_GUESTS or not 0 < len(guest.name) <= MAX_NAME or guest.name == LEADER:
                continue  # it gives up by its own deadline
            self.lanes.open(guest.name, lambda guest=guest: self._receive(guest))  # type: ignore[misc]

    def _receive(self, guest: Guest) -> Pair:
        """On the lane's thread."""
        return self._meeting.receive(
            guest, backend=self._backend, device=self._device, deadline_s=self.lanes.deadline_s
        )

    def close(self) -> None:
        """Let the last messages leave, for a short while, and free the address."""
        if not self.lanes.is_closed:
            self.lanes.close()
            self._meeting.close()


class CollectivePeer:
    """The end that knocks. The leader may come later, go and return.

    Args:
        connect: "HOST:PORT" of the leader's store.
        name: by which the leader knows this peer; unique among the peers.
        retry: knock again when the leader is not there, or gone.
        reached: see `knock`.

    Raises:
        TransportError: malformed address or name.
    """

    def __init__(
        self,
        connect: str,
        name: str,
        *,
        device: str = "cpu",
        backend: TensorBackend | None = None,
        high_water: int = HIGH_WATER,
        deadline_s: float = DEADLINE_S,
        vocab_size: int = MAX_VOCABULARY,
        ledger: Ledger | None = None,
        names: Names | None = None,
        retry: bool = True,
        reached: str | None = None,
    ) -> None:
        split(connect)
        if not 0 < len(name) <= MAX_NAME or name == LEADER or not name.isprintable():
            raise TransportError(f"{name!r} cannot be a peer's name", fix=f"use 1 to {MAX_NAME} printable characters")
        self.name = name
        self.vocab_size = vocab_size
        self.lanes = Lanes(ledger=ledger, names=names, high_water=high_water, deadline_s=deadline_s)
        self.ledger = self.lanes.ledger
        self._connect = connect
        self._device = device
        self._backend: TensorBackend = backend or backend_for(device)
        self._reached = reached
        self._retry = retry
        self._pause_s, self._next_s = _RETRY_S[0], float("-inf")
        self._knock()

    def _knock(self) -> None:
        self.lanes.open(LEADER, self._meet)

    def _meet(self) -> Pair:
        """On the lane's thread."""
        return knock(
            self._connect,
            name=self.name,
            backend=self._backend,
            device=self._device,
            deadline_s=self.lanes.deadline_s,
            reached=self._reached,
        )

    @property
    def is_up(self) -> bool:
        return self.lanes.reaches(LEADER)

    def send(self, peer: str, message: Message) -> None:
        """See `Transport.send`; the only peer is `LEADER`, for another the message is dropped and counted."""
        self.lanes.check_open()
        if peer == LEADER:
            self.lanes.push(peer, message)
        else:
            self.lanes.drop(peer, message)

    def receive(self, timeout_s: float) -> list[Received]:
        """See `Transport.receive`."""
        deadline = monotonic() + timeout_s
        while True:
            self.lanes.check_open()
            self.lanes.bell.silence()
            arrived = self.lanes.take(vocab_size=self.vocab_size)
            self._look_after()
            self.lanes.flush(LEADER)
            left = deadline - monotonic()
            if arrived or left <= 0:
                return arrived
            busy = len(self.lanes.outbox) > 0 or LEADER not in self.lanes.lanes
            self.lanes.bell.wait(min(left, 0.01) if busy else left)

    def _look_after(self) -> None:
        """Knock again after a pause, when the lane broke."""
        now = monotonic()
        if self.is_up:
            self._pause_s = _RETRY_S[0]
        if self.lanes.look_after():
            self._next_s, self._pause_s = now + self._pause_s, min(2 * self._pause_s, _RETRY_S[1])
            if not self._retry:
                self.lanes.outbox.give_up(LEADER)
        if self._retry and LEADER not in self.lanes.lanes and now >= self._next_s:
            self._knock()

    def close(self) -> None:
        """Let the last messages leave, for a short while."""
        if not self.lanes.is_closed:
            self.lanes.close()
