"""A transport inside one process and one thread, through the same codec as the others; it knows no socket and no wait.

Because nobody else runs while `receive` does, it never waits: what is not there yet cannot come meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from dist_spec.core.messages import Message
from dist_spec.errors import TransportError
from dist_spec.transports.base import LEADER, Received
from dist_spec.transports.codec import Frame
from dist_spec.transports.fields import MAX_VOCABULARY
from dist_spec.transports.ledger import Ledger
from dist_spec.transports.names import Names
from dist_spec.transports.outbox import HIGH_WATER, Outbox
from dist_spec.transports.packet import pack, unpack

__all__ = ["InprocHub", "InprocTransport"]


class InprocHub:
    """The place where one leader and its peers meet."""

    def __init__(self, *, high_water: int = HIGH_WATER, vocab_size: int = MAX_VOCABULARY) -> None:
        self._high_water = high_water
        self._vocab_size = vocab_size
        self._ends: dict[str, InprocTransport] = {}
        self._leaving: list[InprocTransport] = []
        self._raw: list[tuple[str, list[Frame]]] = []

    def leader(self) -> InprocTransport:
        """The leader's end; there can be one at a time."""
        if LEADER in self._ends:
            raise TransportError("this hub has a leader already", fix="close the first one")
        return self._add(LEADER)

    def connect(self, name: str) -> InprocTransport:
        """A peer's end; may come before the leader. A second one of the same name replaces the first."""
        if name == LEADER or not name:
            raise TransportError(f"a peer cannot be called {name!r}", fix="give it another name")
        return self._add(name)

    def deliver(self, sender: str, frames: Sequence[Frame]) -> None:
        """Put raw frames before the leader, as a faulty peer would."""
        self._raw.append((sender, list(frames)))

    def _add(self, name: str) -> InprocTransport:
        if name in self._ends:
            self._remove(self._ends[name])
        end = InprocTransport(self, name=name, high_water=self._high_water, vocab_size=self._vocab_size)
        self._ends[name] = end
        return end

    def _remove(self, end: InprocTransport) -> None:
        """What it sent stays deliverable (a Bye, above all); what waits for it is lost."""
        if self._ends.get(end.name) is not end:
            return
        del self._ends[end.name]
        if end.name == LEADER:
            end.outbox.clear()
            return
        self._leaving.append(end)
        if LEADER in self._ends:
            self._ends[LEADER].outbox.give_up(end.name)

    def _knows(self, sender: str, receiver: str) -> bool:
        """A connecting end may always speak to the leader, even to one that is not there yet."""
        return receiver in self._ends if sender == LEADER else receiver == LEADER

    def _senders_to(self, receiver: str) -> list[InprocTransport]:
        if receiver != LEADER:
            return [self._ends[LEADER]] if LEADER in self._ends else []
        leaving, self._leaving = self._leaving, []
        return leaving + [end for name, end in self._ends.items() if name != LEADER]

    def _take_raw(self) -> list[tuple[str, list[Frame]]]:
        raw, self._raw = self._raw, []
        return raw


class InprocTransport:
    """One end of a hub; made by `InprocHub.leader` and `InprocHub.connect`."""

    def __init__(self, hub: InprocHub, *, name: str, high_water: int, vocab_size: int) -> None:
        self.name = name
        self.vocab_size = vocab_size
        self.ledger = Ledger()
        self.names = Names()
        self.outbox = Outbox(high_water=high_water, ledger=self.ledger)
        self._hub = hub
        self._closed = False

    def send(self, peer: str, message: Message) -> None:
        """See `Transport.send`. Raises ProtocolError for a message that cannot be sent, TransportError once closed."""
        if self._closed:
            raise TransportError(f"{self.name} sends after it was closed")
        packet = pack(message, peer=peer, names=self.names)
        if self._hub._knows(self.name, peer):
            self.outbox.push(peer, packet)
        else:
            self.ledger.dropped(packet.kind, peer=peer)

    def receive(self, timeout_s: float) -> list[Received]:
        """See `Transport.receive`; returns at once whatever the timeout."""
        if self._closed:
            raise TransportError(f"{self.name} receives after it was closed")
        received = []
        for sender in self._hub._senders_to(self.name):
            for packet in sender.outbox.take(self.name):
                packet.counted(sender.ledger, peer=self.name)
                received.append(self._unpack(sender.name, packet.frames))
        if self.name == LEADER:
            received += [self._unpack(peer, frames) for peer, frames in self._hub._take_raw()]
        return received

    def close(self) -> None:
        """Leave the hub; harmless when done twice."""
        self._closed = True
        self._hub._remove(self)

    def _unpack(self, peer: str, frames: list[Frame]) -> Received:
        return unpack(frames, peer=peer, vocab_size=self.vocab_size, ledger=self.ledger, names=self.names)
