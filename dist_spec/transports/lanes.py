"""The lanes of one end, by peer, with the bounded queue before each and one bell for all of them; it encodes, counts and
decodes what they carry. How lanes come about is its owner's business.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from time import monotonic, perf_counter

from dist_spec.core.messages import Message
from dist_spec.errors import TransportError
from dist_spec.transports.base import Received
from dist_spec.transports.bell import Bell
from dist_spec.transports.lane import PATIENCE_S, Lane
from dist_spec.transports.ledger import Ledger
from dist_spec.transports.names import Names
from dist_spec.transports.outbox import Outbox
from dist_spec.transports.packet import pack, unpack
from dist_spec.transports.pair import Pair
from dist_spec.transports.parcel import fits

DEADLINE_S = 5.0
MAX_GUESTS = 64
"""Lanes of one end, at most."""


class Lanes:
    """What both ends have: lanes by peer, the bounded queue before each, one bell for all of them.

    Args:
        ledger, names: those of the end that this is a part of (None: its own).
        high_water: messages that may wait for one peer, here and inside its lane.
    """

    def __init__(self, *, ledger: Ledger | None, names: Names | None, high_water: int, deadline_s: float) -> None:
        self.ledger = Ledger() if ledger is None else ledger
        self.names = Names() if names is None else names
        self.outbox = Outbox(high_water=high_water, ledger=self.ledger)
        self.bell = Bell()
        self.lanes: dict[str, Lane] = {}
        self.deadline_s = deadline_s
        self.changes: deque[tuple[str, str]] = deque(maxlen=2 * MAX_GUESTS)
        self.is_closed = False
        self._up: set[str] = set()
        self._high_water = high_water
        self._cores = frozenset(os.sched_getaffinity(0))

    def open(self, peer: str, lane: Callable[[], Pair]) -> None:
        """Begin a lane; one that the peer had is given up, without a wait."""
        before = self._forget(peer)
        if before is not None:
            before.fail("another one took its place")
        self.lanes[peer] = Lane(
            lane,
            bell=self.bell,
            high_water=self._high_water,
            deadline_s=self.deadline_s,
            cores=self._cores,
        )

    def reaches(self, peer: str) -> bool:
        lane = self.lanes.get(peer)
        return lane is not None and lane.is_up and not lane.is_over

    def takes_tensors(self, peer: str) -> bool:
        """Whether tensors can go from device to device."""
        return peer in self.lanes and self.lanes[peer].takes_tensors

    def push(self, peer: str, message: Message) -> None:
        """Queue a message, and hand over what the lane takes."""
        packet = pack(message, peer=peer, names=self.names)
        if fits(packet.frames):
            self.outbox.push(peer, packet)
            self.flush(peer)
        else:
            self.drop(peer, message)

    def drop(self, peer: str, message: Message) -> None:
        self.ledger.dropped(pack(message, peer=peer, names=self.names).kind, peer=peer)

    def flush(self, peer: str) -> None:
        lane = self.lanes.get(peer)
        if lane is None:
            return
        while (packet := self.outbox.peek(peer)) is not None:
            start = perf_counter()
            if not lane.offer(packet.frames):
                return
            self.outbox.pop(peer)
            packet.counted(self.ledger, peer=peer, local_s=perf_counter() - start)

    def take(self, *, vocab_size: int) -> list[Received]:
        """Everything that has come, decoded."""
        return [
            unpack(frames, peer=peer, vocab_size=vocab_size, ledger=self.ledger, names=self.names)
            for peer, lane in self.lanes.items()
            for frames in lane.take()
        ]

    def look_after(self) -> list[str]:
        """Forget lanes that broke and of which all that came was taken; returns their peers. See `changes`."""
        ended: list[str] = []
        for peer, lane in self.lanes.items():
            if lane.is_up and not lane.is_over and peer not in self._up:
                self._up.add(peer)
                self.changes.append((peer, ""))
            elif lane.is_over and not lane.has_mail:
                ended.append(peer)
                self.changes.append((peer, lane.reason))
        for peer in ended:
            self._forget(peer)
        return ended

    def take_changes(self) -> list[tuple[str, str]]:
        """What became of lanes since the last call: (peer, "") when one came up, (peer, reason) when it broke."""
        found, self.changes = list(self.changes), deque(maxlen=2 * MAX_GUESTS)
        return found

    def _forget(self, peer: str) -> Lane | None:
        self._up.discard(peer)
        return self.lanes.pop(peer, None)

    def _close_lane(self, peer: str, *, until_s: float) -> None:
        lane = self._forget(peer)
        if lane is not None:
            lane.close(until_s=until_s)

    def close(self) -> None:
        self.is_closed = True
        for peer, lane in self.lanes.items():
            self.flush(peer)
            lane.leave()
        until_s = monotonic() + PATIENCE_S  # for all of them together: peers may stand still
        for peer in list(self.lanes):
            self._close_lane(peer, until_s=until_s)
        self.outbox.clear()
        self.bell.close()

    def check_open(self) -> None:
        if self.is_closed:
            raise TransportError("this transport was closed")
