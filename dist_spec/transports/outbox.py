"""A bounded queue of encoded messages per peer; it decides what to give up when one is full and moves nothing itself.

A receiver that stands still must not stop the sender, and what it missed is worth less the older it is: at the
high-water mark the oldest guess or commit goes first (a later `Need` or `Commit` makes up for it).
"""

from __future__ import annotations

from collections import deque

from dist_spec.transports.ledger import Ledger
from dist_spec.transports.packet import Packet

HIGH_WATER = 256
"""Messages that may wait for one peer."""

_STALE_FIRST = frozenset(("propose", "commit", "ping", "features"))


class Outbox:
    """What could not be handed over yet, first in first out for each peer."""

    def __init__(self, *, high_water: int, ledger: Ledger) -> None:
        if high_water < 1:
            raise ValueError("high_water must be at least 1")
        self._high_water = high_water
        self._ledger = ledger
        self._queues: dict[str, deque[Packet]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def waiting(self) -> list[str]:
        """Peers for whom something waits."""
        return list(self._queues)

    def push(self, peer: str, packet: Packet) -> None:
        """Append; may give up an older packet."""
        queue = self._queues.setdefault(peer, deque())
        if len(queue) >= self._high_water:
            stale = next((i for i, old in enumerate(queue) if old.kind in _STALE_FIRST), 0)
            self._ledger.dropped(queue[stale].kind, peer=peer)
            del queue[stale]
        queue.append(packet)

    def peek(self, peer: str) -> Packet | None:
        queue = self._queues.get(peer)
        return queue[0] if queue else None

    def pop(self, peer: str) -> Packet:
        """Take the oldest packet; KeyError when there is none."""
        queue = self._queues[peer]
        packet = queue.popleft()
        if not queue:
            del self._queues[peer]
        return packet

    def give_up(self, peer: str) -> None:
        """Drop all that waits for a peer that is gone."""
        for packet in self._queues.pop(peer, ()):
            self._ledger.dropped(packet.kind, peer=peer)

    def take(self, peer: str) -> list[Packet]:
        """All that waits for a peer, oldest first."""
        return list(self._queues.pop(peer, ()))

    def clear(self) -> None:
        """Drop all that waits for anyone."""
        for peer in self.waiting():
            self.give_up(peer)
