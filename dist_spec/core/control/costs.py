"""What a verification costs: seconds by number of rows and draft-tree nodes, measured at the start and corrected by every
step. It knows no models and no clock: durations are arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

_COMMON_WEIGHT, _LOCAL_WEIGHT, _OVERHEAD_WEIGHT = 0.05, 0.02, 0.05
_COMMON_LIMIT = math.log(8.0)
_LOCAL_LIMITS = (math.log(0.7), math.log(1.5))
_SURPRISE = math.log(2.0)
"""A step that took more than twice or less than half of what was expected counts as that much: it was disturbed."""
_FRESH = 8
"""Observations after which the corrected curves are made anew."""


def grid_points(limit: int) -> list[int]:
    """Numbers of nodes that are measured: 0 to 4, 6, 8, 12, 16, 32, 64, ... up to `limit`, which is the last.

    Close together at first: devices work on rows in multiples of 4 or 8, and with the row itself 3 nodes may cost what 1
    does.
    """
    points, step = [0, 1, 2, 3, 4, 6, 8, 12], 16
    while step < limit:
        points.append(step)
        step *= 2
    return [*(point for point in points if point < limit), limit] if limit > 0 else [0]


def row_points(limit: int) -> list[int]:
    """Numbers of rows that are measured: 1, 2, 4, 8, ... up to `limit`, which is the last."""
    points, step = [], 1
    while step < limit:
        points.append(step)
        step *= 2
    return [*points, limit]


class VerifyCost:
    """Seconds of a step that verifies `nodes` draft-tree nodes for `rows` sequences, all of it: forward, verdict and what
    the leader does before the next.

    Args:
        rows: (R,) numbers of rows that were measured, ascending, from 1.
        nodes: (N,) numbers of nodes, ascending, from 0.
        seconds: (R, N) medians; made monotone in both directions. Between the points lines are drawn, and beyond the last.

    The curve is corrected by what steps really took: by one factor for all (the machine is slower today; no decision
    hangs on it) and one per grid point of `nodes`, bounded, as logarithmic moving averages.
    """

    def __init__(self, *, rows: Sequence[int], nodes: Sequence[int], seconds: npt.ArrayLike) -> None:
        grid = np.asarray(seconds, np.float64)
        if grid.shape != (len(rows), len(nodes)) or not (np.isfinite(grid).all() and (grid > 0).all()):
            raise ValueError(f"costs need positive seconds of shape ({len(rows)}, {len(nodes)}), got {grid.shape}")
        self._rows = np.array(rows, np.float64)
        self._nodes = np.array(nodes, np.float64)
        self._grid = np.maximum.accumulate(np.maximum.accumulate(grid, axis=0), axis=1)
        self._common = 0.0
        self._local = np.zeros(len(nodes))
        self._overhead_s = 0.0
        self._observed = 0
        self._curves: dict[tuple[int, int, int], npt.NDArray[np.float64]] = {}

    @staticmethod
    def of(seconds: Callable[[int, int], float], *, max_rows: int, max_nodes: int) -> VerifyCost:
        """Costs from a function of (rows, nodes), asked at the usual points."""
        rows, nodes = row_points(max_rows), grid_points(max_nodes)
        return VerifyCost(rows=rows, nodes=nodes, seconds=[[seconds(r, n) for n in nodes] for r in rows])

    def table(self) -> dict[str, list[object]]:
        """The arguments again, for records; corrections left out."""
        return {
            "rows": self._rows.astype(int).tolist(),
            "nodes": self._nodes.astype(int).tolist(),
            "seconds": self._grid.tolist(),
        }

    def curve(self, rows: int, *, extra: int = 0, budget: int) -> npt.NDArray[np.float64]:
        """(budget + 1,) seconds with 0 .. budget nodes, never falling; read-only.

        Args:
            extra: tokens beside the nodes and one per row (a prompt being read); they cost what nodes cost.
        """
        name = (rows, extra, budget)
        found = self._curves.get(name)
        if found is None:
            at = np.arange(extra, extra + budget + 1, dtype=np.float64)
            corrected = self._base(rows) * np.exp(self._common + self._local)
            found = np.maximum.accumulate(_lines(at, self._nodes, corrected)) + self._overhead_s
            found.flags.writeable = False
            self._curves[name] = found
        return found

    def seconds(self, rows: int, nodes: int) -> float:
        """Seconds of one step."""
        return float(self.curve(rows, budget=nodes)[nodes])

    def slope(self, rows: int, *, budget: int) -> float:
        """Seconds per node where nodes are cheapest in bulk: the least average over 8 or more of them (or all, if fewer
        are allowed). 0 on a device that has that much room to spare."""
        if budget <= 0:
            return 0.0
        curve = self.curve(rows, budget=budget)
        counts = np.arange(min(8, budget), budget + 1)
        return float(((curve[counts] - curve[0]) / counts).min())

    def observed(self, rows: int, nodes: int, seconds: float) -> None:
        """A step took so long from the start of its forward to its verdict."""
        if seconds <= 0.0:
            return
        below = int(np.searchsorted(self._nodes, nodes, side="right")) - 1
        above = min(below + 1, len(self._nodes) - 1)
        span = self._nodes[above] - self._nodes[below]
        share = min((nodes - self._nodes[below]) / span, 1.0) if span > 0 else 0.0
        local = (1.0 - share) * self._local[below] + share * self._local[above]
        expected = float(_lines(np.array([nodes], np.float64), self._nodes, self._base(rows))[0])
        error = math.log(seconds / expected) - self._common - local
        error = min(max(error, -_SURPRISE), _SURPRISE)
        self._common = min(max(self._common + _COMMON_WEIGHT * error, -_COMMON_LIMIT), _COMMON_LIMIT)
        for point, weight in ((below, 1.0 - share), (above, share)):
            moved = self._local[point] + _LOCAL_WEIGHT * weight * error
            self._local[point] = min(max(moved, _LOCAL_LIMITS[0]), _LOCAL_LIMITS[1])
        self._grow_old()

    def between(self, seconds: float) -> None:
        """So long lay between one verdict and the start of the next forward, waits and idle time left out."""
        self._overhead_s += _OVERHEAD_WEIGHT * (min(seconds, self._grid[0, 0]) - self._overhead_s)

    def _grow_old(self) -> None:
        self._observed += 1
        if self._observed % _FRESH == 0:
            self._curves.clear()

    def _base(self, rows: int) -> npt.NDArray[np.float64]:
        """(N,) measured seconds at a number of rows, straight lines between and beyond the measured ones."""
        at = int(np.searchsorted(self._rows, rows, side="left"))
        if len(self._rows) == 1:
            return self._grid[0]
        low = min(max(at - 1, 0), len(self._rows) - 2)
        share = (rows - self._rows[low]) / (self._rows[low + 1] - self._rows[low])
        line: npt.NDArray[np.float64] = self._grid[low] + share * (self._grid[low + 1] - self._grid[low])
        return line


def _lines(
    at: npt.NDArray[np.float64], points: npt.NDArray[np.float64], values: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Straight lines between the points, the last one going on beyond them."""
    found: npt.NDArray[np.float64] = np.interp(at, points, values)
    beyond = at > points[-1]
    if len(points) > 1 and beyond.any():
        slope = max(values[-1] - values[-2], 0.0) / (points[-1] - points[-2])
        found = np.where(beyond, values[-1] + slope * (at - points[-1]), found)
    return found
