"""What tests with real processes share: whether one runs, waiting without counting seconds, and an address to listen at."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from dist_spec.free_port import free_port


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended but was not reaped (by a container's init, say) does not."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Until it holds. The limit only ends a test that hangs: nothing is slow that a busy machine makes slow."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def free_address() -> str:
    """Where a process started a little later can listen."""
    return f"tcp://127.0.0.1:{free_port()}"
