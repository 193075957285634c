"""Tells a launcher that restarts what fails when that is of no use: it would fail in the same way each time. It knows
torchrun's variables, and nothing of what is run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import psutil

from dist_spec.errors import BadInputError, ConfigError, ModelError, UnsupportedError

_MISCONFIGURED = (BadInputError, ConfigError, ModelError, UnsupportedError)
"""What only the user can mend. A peer that cannot be reached may come later."""


@contextmanager
def not_again(environ: Mapping[str, str] = os.environ, *, end: Callable[[], None] | None = None) -> Iterator[None]:
    """Around what a launcher started: what is misconfigured ends the launcher too, if it would start this again.

    torchrun restarts whatever exit code its processes have, so its agent, our parent, is asked to end (SIGTERM).

    Args:
        end: what to do instead (tests).
    """
    try:
        yield
    except _MISCONFIGURED:
        give_up(environ, end=end)
        raise


def give_up(environ: Mapping[str, str] = os.environ, *, end: Callable[[], None] | None = None) -> None:
    """Misconfigured: end the launcher on this host, if it would start this again. See `not_again`."""
    if _restarts_left(environ):
        (end or _end_agent)()


def _restarts_left(environ: Mapping[str, str]) -> bool:
    done, most = environ.get("TORCHELASTIC_RESTART_COUNT", ""), environ.get("TORCHELASTIC_MAX_RESTARTS", "")
    return done.isdecimal() and most.isdecimal() and int(done) < int(most)


def _end_agent() -> None:
    agent = os.getppid()
    if not _is_agent(psutil.Process(agent).cmdline()):
        return  # a script of the user's own stands between
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it passes this on at once, and our message is not printed yet
    os.kill(agent, signal.SIGTERM)


def _is_agent(words: Sequence[str]) -> bool:
    """Whether a command line is that of torchrun, under one of its names, or of accelerate, which calls it."""
    return any(
        name in word
        for word in words[:4]
        for name in ("torchrun", "torch.distributed.", "torch/distributed/", "accelerate")
    )
