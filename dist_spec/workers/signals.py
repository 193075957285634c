"""A process's wish to end: SIGTERM and SIGINT set a flag that the loops look at."""

from __future__ import annotations

import signal
from types import FrameType


class StopFlag:
    """Callable that turns True once the process was asked to end.

    SIGTERM asks it to finish what it has begun (a target lets running requests end, for a while); SIGINT, or to be asked
    once more, to end at once.
    """

    def __init__(self) -> None:
        self.set = False
        self.at_once = False

    def __call__(self) -> bool:
        return self.set

    def hurried(self) -> bool:
        """Whether nothing that has begun is to be finished."""
        return self.at_once

    def listen(self) -> StopFlag:
        """Catch SIGTERM and SIGINT from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.at_once = self.set or number == signal.SIGINT
        self.set = True
