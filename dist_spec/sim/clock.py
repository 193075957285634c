"""Virtual time: a queue of events, run in order of time and, at equal times, in order of scheduling."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Clock:
    """Time advances only from event to event."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Run `action` at `when` (not before the present)."""
        heapq.heappush(self._events, (max(when, self.now), next(self._order), action))

    def run(self, *, until: Callable[[], bool], limit_s: float) -> bool:
        """Run events until `until()`; False if `limit_s` of virtual time passed, or nothing was left, before that."""
        while not until():
            if not self._events or self._events[0][0] > limit_s:
                return False
            self.now, _, action = heapq.heappop(self._events)
            action()
        return True
