"""How many threads the numerical libraries of this process use."""

from __future__ import annotations

import os


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
