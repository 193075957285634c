"""The transfer ledger: what went over each link, and what waiting for it cost; it sends nothing and reads no clock.

One row per (peer, direction, kind, link). Times are told by whoever knows them: what encoding, checking and handing over
took by the transport, when a verification ran and how long the worker sat and waited by the worker's loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from dist_spec.transports.clocks import PeerClock

__all__ = ["ANY_PEER", "Direction", "Ledger", "LedgerRow"]

Direction: TypeAlias = Literal["in", "out"]
ANY_PEER = "*"
"""Stands for the peer where the time belongs to a kind and not to one link, and for all peers beyond `MAX_PEERS`."""
MAX_PEERS = 64
"""Peers with rows of their own: strangers that come under ever new names must not fill the memory."""
_VERIFICATIONS = 256
"""The latest verifications: what was under way longer is hidden behind these at most."""
_LEAVING = 1024
"""Messages sent since the last verification, at most."""


@dataclass(kw_only=True, slots=True)
class LedgerRow:
    """Totals of one kind of message on one link.

    Attributes:
        messages: handed to the link ("out") or taken from it ("in").
        num_bytes: sum of their frame lengths, without the transport's own framing.
        drops: queued but never handed over (high-water mark, unknown or vanished peer), or received and malformed.
        local_s: this process's time spent on them.
        transit_s: from the sender's call to the moment they were taken in (for "out": the least that the link takes).
        hidden_s: the part of it during which a verification ran, so that nobody missed them.
        exposed_s: time the worker stood still for them on the critical path.
        link: "" for the usual link to that peer, the name of another one that it has beside it.
    """

    peer: str
    direction: Direction
    kind: str
    messages: int = 0
    num_bytes: int = 0
    drops: int = 0
    local_s: float = 0.0
    transit_s: float = 0.0
    hidden_s: float = 0.0
    exposed_s: float = 0.0
    link: str = ""

    def add(self, other: LedgerRow) -> None:
        """Add the other's totals to these."""
        for column in _TOTALS:
            setattr(self, column, getattr(self, column) + getattr(other, column))


_TOTALS = tuple(field.name for field in fields(LedgerRow) if field.name not in ("peer", "direction", "kind", "link"))


class Ledger:
    """Counters of one transport endpoint. Not for use by several threads."""

    def __init__(self) -> None:
        self._link = ""
        self._rows: dict[tuple[str, Direction, str, str], LedgerRow] = {}
        self._peers: dict[str, None] = {}  # a set in the order in which they came
        self._clocks: dict[str, PeerClock] = {}
        self._verifications: deque[tuple[float, float]] = deque(maxlen=_VERIFICATIONS)
        self._leaving: deque[tuple[LedgerRow, float, float]] = deque(maxlen=_LEAVING)

    def on(self, link: str) -> Ledger:
        """The same ledger for whoever counts what goes over a second link to the same peers."""
        found = copy(self)  # shallow: all that it holds is shared
        found._link = link
        return found

    def _row(self, peer: str, direction: Direction, kind: str) -> LedgerRow:
        key = (peer, direction, kind, self._link)
        row = self._rows.get(key)
        if row is None:
            if peer not in self._peers and len(self._peers) >= MAX_PEERS and peer != ANY_PEER:
                return self._row(ANY_PEER, direction, kind)
            self._peers[peer] = None
            row = self._rows[key] = LedgerRow(peer=peer, direction=direction, kind=kind, link=self._link)
        return row

    def count(
        self,
        kind: str,
        *,
        peer: str,
        direction: Direction,
        num_bytes: int,
        local_s: float = 0.0,
        now: float = 0.0,
        sent_us: int | None = None,
    ) -> None:
        """One message crossed the border between this process and the link.

        Args:
            now: when it was taken in, or for "out" when it was sent (monotonic seconds).
            sent_us: the sender's clock when it was sent, as it travels (None: not known).
        """
        row = self._row(peer, direction, kind)
        row.messages += 1
        row.num_bytes += num_bytes
        row.local_s += local_s
        if sent_us is None:
            return
        clock = self._clock(peer)
        if direction == "in":
            transit_s = clock.under_way_s(sent_us, now=now)
            row.transit_s += transit_s
            row.hidden_s += self._hidden(now - transit_s, now)
        else:
            row.transit_s += clock.one_way_s
            if self._verifications and clock.one_way_s > 0:
                self._leaving.append((row, now, now + clock.one_way_s))

    def _clock(self, peer: str) -> PeerClock:
        clock = self._clocks.get(peer)
        if clock is None:
            clock = PeerClock()
            if peer in self._peers:
                self._clocks[peer] = clock
        return clock

    def verifying(self, start_s: float, end_s: float) -> None:
        """The target verified from `start_s` to `end_s`: what was under way meanwhile kept nobody waiting.

        Called after a verification and before the messages are taken in that came during it.
        """
        self._verifications.append((start_s, end_s))
        while self._leaving:
            row, sent_s, there_s = self._leaving.popleft()
            row.hidden_s += max(0.0, min(there_s, end_s) - max(sent_s, start_s))

    def _hidden(self, since_s: float, until_s: float) -> float:
        """Seconds between the two that verifications took."""
        hidden = 0.0
        for start_s, end_s in reversed(self._verifications):
            if end_s <= since_s:
                break
            hidden += max(0.0, min(end_s, until_s) - max(start_s, since_s))
        return hidden

    def round_trip(self, peer: str, seconds: float) -> None:
        """A message to this peer and its echo took so long together."""
        self._clock(peer).round_trip(seconds)

    def greeted(self, peer: str) -> None:
        """Whoever bears this name now may be another process, with another clock."""
        self._clock(peer).greeted()

    def dropped(self, kind: str, *, peer: str, direction: Direction = "out", count: int = 1) -> None:
        """Messages that were given up."""
        self._row(peer, direction, kind).drops += count

    def waited(self, kind: str, seconds: float, *, peer: str = ANY_PEER) -> None:
        """The worker stood still for `seconds` until a message of this kind came (or until it gave up)."""
        self._row(peer, "in", kind).exposed_s += seconds

    def rows(self) -> list[LedgerRow]:
        """One row per (peer, direction, kind, link), sorted; live objects, for reading."""
        return [self._rows[key] for key in sorted(self._rows)]

    def peers(self) -> list[str]:
        """Who has rows of its own, in the order of their first messages; `ANY_PEER` left out."""
        return [peer for peer in self._peers if peer != ANY_PEER]

    def totals(self) -> list[LedgerRow]:
        """One row per (direction, kind) with peers and links added up."""
        return merge(self.rows())

    def total(self, kind: str, *, direction: Direction) -> LedgerRow:
        """The totals of one kind in one direction over all peers; zeros when there were none."""
        found = [row for row in self.totals() if (row.direction, row.kind) == (direction, kind)]
        return found[0] if found else LedgerRow(peer=ANY_PEER, direction=direction, kind=kind)


def merge(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """Rows added up over their peers and links, sorted by direction and kind; the given rows stay as they are."""
    merged: dict[tuple[Direction, str], LedgerRow] = {}
    for row in rows:
        empty = LedgerRow(peer=ANY_PEER, direction=row.direction, kind=row.kind)
        merged.setdefault((row.direction, row.kind), empty).add(row)
    return [merged[key] for key in sorted(merged)]
