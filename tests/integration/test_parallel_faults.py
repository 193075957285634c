"""A dead or stuck rank ends the whole target within seconds, with its name and an exit code; a signal to any rank ends all
in peace. (That a restarted target goes on with the same text is the supervisor's and the client's part, tested there.)"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dist_spec.core.types import Sampling
from tests.integration.parallel_ranks import Ranks
from tests.integration.test_tensor_parallel import config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LOOKUP = {"kind": "ngram", "name": "lookup", "placement": "leader"}
WITHIN_S = 90.0
"""Seconds, on a busy machine. Nothing waits for a timeout in these tests but `test_a_stuck_rank`."""


@contextmanager
def started(folder: Path, **parallel: Any) -> Iterator[Ranks]:
    """A target that has verified guesses already."""
    settings = {"tp_size": 2, "timeout_s": 60.0} | parallel
    with Ranks(config(LOOKUP, parallel=settings), folder) as ranks:
        ranks.wait_ready()
        [stream] = ranks.decode([Sampling(max_tokens=40, ignore_eos=True)], name="first", prompts=[[7, 8, 9] * 6])
        assert stream.stats["verified"] > 0
        yield ranks


def kill_at_random(folder: Path, seed: int) -> None:
    """kill -9 of the leader or the follower at a random moment: idle, or in the middle of requests."""
    draw = random.Random(seed)
    victim, delay_s, busy = seed % 2, draw.uniform(0.0, 0.5), draw.random() < 0.75
    with started(folder) as ranks:
        if busy:
            ranks.open([Sampling(max_tokens=200, ignore_eos=True, temperature=0.8 * (i % 2)) for i in range(3)])
        struck = time.monotonic() + delay_s
        while time.monotonic() < struck:
            ranks.client.poll(timeout_s=0.01)
        ranks.signal(victim, signal.SIGKILL)
        codes = ranks.ends(within_s=WITHIN_S)
        assert codes[victim] == -signal.SIGKILL
        assert codes[1 - victim] == 1, (codes, ranks.logs())
        log = ranks.log(1 - victim).read_text()
        assert f"rank {victim} of 2 (" in log, log
        assert f"pid {ranks.processes[victim].pid})" in log, log


@pytest.mark.parametrize("seed", range(8))
def test_a_killed_rank_ends_the_others(tmp_path: Path, seed: int) -> None:
    kill_at_random(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8, 50))
def test_many_killed_ranks(tmp_path: Path, seed: int) -> None:
    kill_at_random(tmp_path, seed)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_sigterm_to_any_rank_ends_all_in_peace(tmp_path: Path, rank: int) -> None:
    """(To the last rank, without requests: `test_tensor_parallel`.)"""
    with started(tmp_path) as ranks:
        ranks.open([Sampling(max_tokens=200, ignore_eos=True)])
        ranks.signal(rank, signal.SIGTERM)
        assert ranks.ends(within_s=WITHIN_S) == [0, 0], ranks.logs()
        assert "error" not in ranks.logs()


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_stuck_rank_ends_all_when_the_time_is_up(tmp_path: Path, rank: int) -> None:
    """Stopped, not dead: its sockets are open and say nothing."""
    with started(tmp_path, timeout_s=6.0) as ranks:
        ranks.signal(rank, signal.SIGSTOP)
        ranks.processes[1 - rank].join(WITHIN_S)
        assert ranks.processes[1 - rank].exitcode == 1, ranks.logs()
        log = ranks.log(1 - rank).read_text()
        assert "no progress for 6 s" in log, log
        ranks.signal(rank, signal.SIGCONT)
        assert ranks.ends(within_s=WITHIN_S) == [1, 1], ranks.logs()
