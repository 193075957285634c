"""Prompts that a launched target answers by itself: a `dist-spec generate` beside the leader, whose end is the end of all.
It knows the command line of that program, and nothing of what it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from types import FrameType

from dist_spec.errors import WorkerError

_LEASH = str(Path(__file__).with_name("leash.py"))
_LOOK_S = 0.1
DRAIN_S = 20.0
"""How long prompts may go on after SIGTERM. Launchers kill after 30 s."""


class PromptRun:
    """Called by the leader's loop, which asks again and again whether to stop: the first call starts the program (the
    target listens then), later ones say whether it has ended.

    SIGTERM lets it finish within `DRAIN_S`; SIGINT, or a second SIGTERM, ends it.

    Args:
        arguments: of `dist-spec generate`.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = tuple(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        self._next_look_s = 0.0
        self._end_by_s: float | None = None

    def listen(self) -> PromptRun:
        """Catch SIGTERM and SIGINT from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        return self

    def __call__(self) -> bool:
        now = monotonic()
        if self._code is None and now >= self._next_look_s:
            self._next_look_s = now + _LOOK_S
            self._look(now)
        return self._code is not None

    @property
    def code(self) -> int:
        """What the program ended with; 1 when it did not get that far."""
        return 1 if self._code is None else self._code

    def close(self) -> None:
        """End the program if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(3.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _look(self, now: float) -> None:
        over = self._end_by_s is not None and now >= self._end_by_s
        if self._process is None:
            if over:
                self._code = 128 + signal.SIGTERM
            else:
                self._process = self._start()
            return
        if over:
            self.close()
        code = self._process.poll()
        if code is not None:
            self._code = code if code >= 0 else 128 - code

    def _start(self) -> subprocess.Popen[bytes]:
        # In a session of its own: launchers signal whole groups, and this one is to finish first.
        argv = [sys.executable, "-I", "-S", _LEASH, str(os.getpid()), "-"]
        argv += [sys.executable, "-m", "dist_spec.cli", "generate", *self._arguments]
        try:
            return subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            raise WorkerError(f"cannot start dist-spec generate: {error.strerror or error}") from error

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again = self._end_by_s is not None
        patience_s = 0.0 if again or number == signal.SIGINT or self._process is None else DRAIN_S
        self._end_by_s = monotonic() + patience_s
