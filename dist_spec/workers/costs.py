"""Measures what verifications cost at the start: real forwards with their verdicts, over numbers of rows and draft-tree
nodes. It decides nothing and keeps nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dist_spec.core.control.costs import VerifyCost, grid_points, row_points
from dist_spec.core.plan import Plan, PlanRow
from dist_spec.core.types import NO_PARENT, ForwardRow, Sampling
from dist_spec.workers.target import TargetBackend

_CONTEXT = 160
"""Of the measured rows: a usual length, and none near which attention on the CPU takes another path (a tree that crosses
a multiple of 128 is asked node by node, see `models.shared_attention`; measured there, eight nodes cost thrice as much)."""
_ROUNDS = 5
_LIMIT_S = 2.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """What the target has room for: blocks of its (still unused) KV cache, positions, and the largest step."""

    num_blocks: int
    block_size: int
    max_model_len: int
    max_rows: int
    max_nodes: int

    @property
    def context(self) -> int:
        """Committed tokens of each measured row."""
        return min(_CONTEXT, max(self.max_model_len - self.max_nodes - 1, 1))

    @property
    def blocks_per_row(self) -> int:
        return -(-(self.context + self.max_nodes + 1) // self.block_size)


def measure_costs(backend: TargetBackend, space: Space, *, clock: Callable[[], float]) -> VerifyCost:
    """Medians of 5 rounds after one to warm up; all points take turns, so that a slow moment does not single one out.

    On a slow target points are left out, so that this takes a few seconds.
    """
    rows = [count for count in row_points(space.max_rows) if count * space.blocks_per_row <= space.num_blocks]
    rows, nodes = rows or [1], grid_points(space.max_nodes)
    _timed(backend, _plan(1, 0, space), clock=clock)  # to warm up
    least_s = _timed(backend, _plan(1, 0, space), clock=clock)
    rows, nodes = _affordable(rows, nodes, lambda r, n: (_ROUNDS + 1) * least_s)
    first = {(r, n): _timed(backend, _plan(r, n, space), clock=clock) for r in rows for n in nodes}
    rows, nodes = _affordable(rows, nodes, lambda r, n: _ROUNDS * first[r, n])
    rounds = [[[_timed(backend, _plan(r, n, space), clock=clock) for n in nodes] for r in rows] for _ in range(_ROUNDS)]
    seconds = [[statistics.median(one[i][j] for one in rounds) for j in range(len(nodes))] for i in range(len(rows))]
    return VerifyCost(rows=rows, nodes=nodes, seconds=seconds)


def _affordable(rows: list[int], nodes: list[int], seconds: Callable[[int, int], float]) -> tuple[list[int], list[int]]:
    """As many of the points as there is time for: rows between the first and the last go first, then nodes; the first and
    the last of both stay."""
    while sum(seconds(r, n) for r in rows for n in nodes) > _LIMIT_S and (len(rows) > 2 or len(nodes) > 2):
        rows, nodes = (_thinner(rows), nodes) if len(rows) > 2 else (rows, _thinner(nodes))
    return rows, nodes


def _thinner(points: Sequence[int]) -> list[int]:
    """Every second point and the last; of three, the first and the last."""
    return [*points[:-1:2], points[-1]] if len(points) > 3 else [points[0], points[-1]]


def _timed(backend: TargetBackend, plan: Plan, *, clock: Callable[[], float]) -> float:
    begun = clock()
    backend.launch(plan)
    backend.collect(plan)
    return clock() - begun


def _plan(num_rows: int, num_nodes: int, space: Space) -> Plan:
    """`num_nodes` nodes shared out over the rows, as two chains each: between the shapes that occur."""
    rows = []
    for row in range(num_rows):
        nodes = num_nodes // num_rows + (row < num_nodes % num_rows)
        blocks = np.arange(row * space.blocks_per_row, (row + 1) * space.blocks_per_row, dtype=np.int32)
        parents = np.arange(nodes, dtype=np.int32) - 2
        forward = ForwardRow(
            block_table=blocks,
            cached=space.context - 1,
            tokens=np.arange(1, nodes + 2, dtype=np.int32),
            num_pending=1,
            parents=np.maximum(parents, NO_PARENT).astype(np.int32),
            num_logits=1 + nodes,
        )
        rows.append(
            PlanRow(
                key=(f"measured{row}", 0),
                forward=forward,
                sampling=Sampling(),
                noise_index=0,
                final=True,
                ready_depth=(nodes + 1) // 2,
                base_length=space.context,
            )
        )
    return Plan(step=1, rows=tuple(rows), budget=num_nodes, price=0.0)
