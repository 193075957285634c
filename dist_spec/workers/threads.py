"""How many threads the numerical libraries of this process use, and where its helper threads run."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager


def limit_threads(threads: int | None) -> None:
    """Hold torch to `threads` (default: one per core the process may run on; two threads beside another busy process
    on one core collapse, design section 11)."""
    import torch

    count = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(count)
    if torch.get_num_interop_threads() != 1:
        try:
            torch.set_num_interop_threads(1)
        except RuntimeError:  # work has begun already (tests in one process); harmless
            return


def settle_memory() -> None:
    """Everything loaded so far is there to stay: the collector need not look at it again between two verifications."""
    gc.collect()
    gc.freeze()


def thread_elsewhere() -> Executor | None:
    """One thread on the cores this process is not pinned to; None when there are none."""
    if not set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0):
        return None
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="noise")
    with threads_elsewhere():
        executor.submit(int).result()  # the thread is started by the first call, and inherits the affinity of now
    return executor


@contextmanager
def threads_elsewhere() -> Iterator[None]:
    """Threads started inside run on the cores this process is not pinned to, where there are such and it is allowed.

    ZeroMQ's own thread inherits the affinity of whoever opens the first socket; on the target's core it would take its
    turn exactly between two verifications.
    """
    own = os.sched_getaffinity(0)
    others = set(range(os.cpu_count() or 1)) - own
    try:
        if others:
            os.sched_setaffinity(0, others)
    except OSError:  # a container that may use its own cores only
        others = set()
    try:
        yield
    finally:
        if others:
            os.sched_setaffinity(0, own)
