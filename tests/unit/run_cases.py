"""Runs made up for the tests of figures: streams with given commits, leaders' totals with given phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dist_spec.bench.run import RunResult
from dist_spec.core.prefix import Prefix
from dist_spec.core.types import ForwardRow, Sampling
from dist_spec.server.client import Stream


def stream(
    commits: Sequence[tuple[float, int]],
    *,
    tokens: Sequence[int] | None = None,
    opened_s: float = 0.0,
    closed_s: float | None = None,
    stats: Mapping[str, float] | None = None,
) -> Stream:
    """A request whose commits came at these times, with so many tokens each."""
    count = sum(size for _, size in commits)
    return Stream(
        request="r",
        generation=0,
        prefix=Prefix([1]),
        sampling=Sampling(),
        opened_s=opened_s,
        heard_s=0.0,
        prompt_length=1,
        tokens=list(tokens) if tokens is not None else list(range(count)),
        times=list(commits),
        closed_s=commits[-1][0] if closed_s is None and commits else closed_s or 0.0,
        stats=dict(stats or {}),
    )


def run(
    *,
    depths: Mapping[int, tuple[float, float]],
    forward_s: float,
    coordination_s: float = 0.0,
    waits_s: float = 0.0,
    queue_empty_s: float = 0.0,
    outside_s: float = 0.0,
) -> RunResult:
    """A run with these verifications and tokens per ready depth, and these seconds."""
    rows, tokens = (sum(column) for column in zip(*depths.values(), strict=True))
    leader = forward_s + coordination_s + waits_s + queue_empty_s
    stats = {
        "time_forward_s": forward_s,
        "time_commit_s": 0.75 * coordination_s,
        "time_noise_s": 0.25 * coordination_s,
        "time_wait_pull_s": waits_s,
        "time_idle_s": queue_empty_s,
        "leader_wall_s": leader,
        "session_rows": float(rows),
        "session_committed": float(tokens),
    }
    for depth, (count, given) in depths.items():
        stats |= {f"depth_{depth}_rows": float(count), f"depth_{depth}_tokens": float(given)}
    return RunResult(streams=[stream([(1.0, round(tokens))])], wall_s=leader + outside_s, stats=stats)


def forward_row(parents: Sequence[int]) -> ForwardRow:
    """One pending token and a tree of this shape."""
    return ForwardRow(
        block_table=np.zeros(1, np.int32),
        cached=0,
        tokens=np.zeros(1 + len(parents), np.int32),
        num_pending=1,
        parents=np.array(parents, np.int32),
        num_logits=1 + len(parents),
    )
