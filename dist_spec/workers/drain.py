"""How a leader ends: what runs may finish until a deadline, what else there is goes back to its frontends. It looks at no
clock and catches no signal itself."""

from __future__ import annotations

from collections.abc import Callable

from dist_spec.workers.target import TargetWorker


class Drain:
    """Says when a leader's loop is over.

    Args:
        stopping: whether the process was asked to end.
        hurried: whether it was asked to do so at once.
        drain_s: how long running requests may take to finish from the moment that it was asked.
    """

    def __init__(
        self,
        worker: TargetWorker,
        *,
        stopping: Callable[[], bool],
        hurried: Callable[[], bool] = lambda: False,
        drain_s: float = 0.0,
    ) -> None:
        self._worker = worker
        self._stopping = stopping
        self._hurried = hurried
        self._drain_s = drain_s
        self._until_s: float | None = None

    def over(self, *, now: float) -> bool:
        """Look before every step; from the first moment at which the process is to end nothing new is taken in."""
        if self._until_s is None:
            if not self._stopping():
                return False
            self._until_s = now + self._drain_s
            self._worker.drain(now=now)
        return self._hurried() or self._worker.session.idle or now >= self._until_s
