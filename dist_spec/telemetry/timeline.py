"""Where a process's time goes: it is in exactly one phase at any moment, so the phases add up to the wall time.

The clock is an argument. It knows nothing of what the phases mean.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable

_STEPS = 4096
"""Latest steps of which the median is taken."""


class Timeline:
    """Seconds per phase, in total and per step.

    Args:
        clock: monotonic seconds.
        per_step: phases whose sum per step is sampled (see `step`), for medians.
    """

    def __init__(self, clock: Callable[[], float], *, per_step: Iterable[str], start: str = "idle") -> None:
        self._clock = clock
        self._per_step = frozenset(per_step)
        self._since = clock()
        self._step_s = 0.0
        self.phase = start
        self.totals: dict[str, float] = {}
        self.steps: deque[float] = deque(maxlen=_STEPS)

    def enter(self, phase: str) -> float:
        """End the present phase and begin another; returns the moment."""
        now = self._clock()
        spent = now - self._since
        self.totals[self.phase] = self.totals.get(self.phase, 0.0) + spent
        if self.phase in self._per_step:
            self._step_s += spent
        self.phase, self._since = phase, now
        return now

    def step(self, *, count: bool = True) -> None:
        """A step is over: keep what it spent in the sampled phases (unless it is not to count)."""
        if count:
            self.steps.append(self._step_s)
        self._step_s = 0.0

    def reset(self) -> None:
        """Forget everything before now (warm-up)."""
        self._since, self._step_s = self._clock(), 0.0
        self.totals.clear()
        self.steps.clear()

    @property
    def wall_s(self) -> float:
        return sum(self.totals.values())

    def median_step_s(self) -> float:
        return statistics.median(self.steps) if self.steps else 0.0
