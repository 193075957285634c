"""What a verification costs: seconds by number of rows and draft-tree nodes, measured at the start and corrected by every
step. It knows no models and no clock: durations are arguments."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

_COMMON_WEIGHT, _LOCAL_WEIGHT, _OVERHEAD_WEIGHT = 0.05, 0.02, 0.05
_MEASURED_AS = 16
"""Observations that a point's measurement at the start counts for: the first steps at a point move it faster."""
_COMMON_LIMIT = math.log(8.0)
_LOCAL_LIMITS = (math.log(0.7), math.log(1.5))
_SURPRISE = math.log(2.0)
"""A step that took more than twice or less than half of what was expected counts as that much: it was disturbed."""
_FRESH = 8
"""Observations after which the corrected curves are made anew."""


def grid_points(limit: int) -> list[int]:
    """Numbers of nodes that are measured: 0 to 4, then 7, 8, 15, 16, 31, 32, ... up to `limit`, which is the last.

    Devices work on rows in multiples of 4 or 8, so costs may come in steps: with the row itself 7 nodes fill what 8 exceed.
    """
    points, step = [0, 1, 2, 3, 4], 8
    while step - 1 < limit:
        points += [step - 1, step]
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
        self._points = list(nodes)
        self._grid = np.maximum.accumulate(np.maximum.accumulate(grid, axis=0), axis=1)
        self._common = 0.0
        self._local = [0.0] * len(nodes)
        self._weights = [0.0] * len(nodes)
        self._overhead_s = 0.0
        self._observed = 0
        self._curves: dict[tuple[int, int, int], npt.NDArray[np.float64]] = {}
        self._bases: dict[int, list[float]] = {}

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
            corrected = np.array(self._base(rows)) * np.exp(self._common + np.array(self._local))
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
        points, base = self._points, self._base(rows)
        below = bisect_right(points, nodes) - 1
        above = min(below + 1, len(points) - 1)
        span = points[above] - points[below]
        share = min((nodes - points[below]) / span, 1.0) if span else 0.0
        expected = (
            self._beyond(nodes, base) if nodes > points[-1] else base[below] + share * (base[above] - base[below])
        )
        local = (1.0 - share) * self._local[below] + share * self._local[above]
        error = math.log(seconds / expected) - self._common - local
        error = min(max(error, -_SURPRISE), _SURPRISE)
        self._common = min(max(self._common + _COMMON_WEIGHT * error, -_COMMON_LIMIT), _COMMON_LIMIT)
        self._correct(below, 1.0 - share, error)
        if share:
            self._correct(above, share, error)
        self._grow_old()

    def _correct(self, point: int, share: float, error: float) -> None:
        """Move a grid point: quickly at first, as it was measured a few times only."""
        self._weights[point] += share
        weight = max(_LOCAL_WEIGHT, 1.0 / (_MEASURED_AS + self._weights[point]))
        moved = self._local[point] + weight * share * error
        self._local[point] = min(max(moved, _LOCAL_LIMITS[0]), _LOCAL_LIMITS[1])

    def between(self, seconds: float) -> None:
        """So long lay between one verdict and the start of the next forward, waits and idle time left out."""
        self._overhead_s += _OVERHEAD_WEIGHT * (min(seconds, self._grid[0, 0]) - self._overhead_s)

    def _grow_old(self) -> None:
        self._observed += 1
        if self._observed % _FRESH == 0:
            self._curves.clear()

    def _base(self, rows: int) -> list[float]:
        """(N,) measured seconds at a number of rows, straight lines between and beyond the measured ones."""
        found = self._bases.get(rows)
        if found is None:
            found = self._bases[rows] = self._line(rows).tolist()
        return found

    def _line(self, rows: int) -> npt.NDArray[np.float64]:
        at = int(np.searchsorted(self._rows, rows, side="left"))
        if len(self._rows) == 1:
            return self._grid[0]
        low = min(max(at - 1, 0), len(self._rows) - 2)
        share = (rows - self._rows[low]) / (self._rows[low + 1] - self._rows[low])
        line: npt.NDArray[np.float64] = self._grid[low] + share * (self._grid[low + 1] - self._grid[low])
        return line

    def _beyond(self, nodes: int, base: Sequence[float]) -> float:
        return float(_lines(np.array([nodes], np.float64), self._nodes, np.array(base))[0])


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
