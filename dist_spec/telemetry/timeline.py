"""Where a process's time goes: it is in exactly one phase at any moment, so the phases add up to the wall time.

The clock is an argument. It knows nothing of what the phases mean.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

_STEPS = 4096
"""Latest steps of which the median is taken."""

OnPhase: TypeAlias = Callable[[str, float, float], None]
"""(phase, start, end), told when a phase ends."""


class Timeline:
    """Seconds per phase, in total and per step.

    Args:
        clock: monotonic seconds.
        per_step: name -> phases whose sum per step is sampled (see `step`), for medians.
        on_phase: told of every phase that ends (a trace).

    Attributes:
        born_s: the clock when the account began.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        per_step: Mapping[str, Collection[str]] | None = None,
        start: str = "idle",
        on_phase: OnPhase | None = None,
    ) -> None:
        self._clock = clock
        self._per_step = dict(per_step or {})
        self._on_phase = on_phase
        self.born_s = self._since = clock()
        self._step: dict[str, float] = {}
        self._start = self.phase = start
        self.totals: dict[str, float] = {}
        self._steps: dict[str, deque[float]] = {name: deque(maxlen=_STEPS) for name in self._per_step}

    def enter(self, phase: str) -> float:
        """End the present phase and begin another; returns the moment."""
        now = self._clock()
        spent = now - self._since
        self.totals[self.phase] = self.totals.get(self.phase, 0.0) + spent
        self._step[self.phase] = self._step.get(self.phase, 0.0) + spent
        if self._on_phase is not None:
            self._on_phase(self.phase, self._since, now)
        self.phase, self._since = phase, now
        return now

    def step(self, *, count: bool = True) -> None:
        """A step is over: keep what it spent in the sampled phases (unless it is not to count)."""
        if count:
            for name, phases in self._per_step.items():
                self._steps[name].append(sum(self._step.get(phase, 0.0) for phase in phases))
        self._step.clear()

    def reset(self) -> None:
        """Forget everything before now (warm-up), the phase it ended in included."""
        self.born_s = self._since = self._clock()
        self.phase = self._start
        self._step.clear()
        self.totals.clear()
        for steps in self._steps.values():
            steps.clear()

    @property
    def wall_s(self) -> float:
        return sum(self.totals.values())

    def median_step_s(self, name: str) -> float:
        """Of the latest steps, what one spent in the phases called `name`; 0 where none was sampled."""
        steps = self._steps.get(name)
        return statistics.median(steps) if steps else 0.0
