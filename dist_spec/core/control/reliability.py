"""Whether predicted probabilities come true: counts by bin of what was predicted, of verified nodes. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dist_spec.core.types import FloatArray, IntArray

NUM_BINS = 10
PATH = "path"
"""Name of the table of whole paths, beside one table of single edges per drafter."""

_BUFFERED = 64


class Reliability:
    """Tables of (10, 3) float64: per bin of the predicted probability, nodes, sum predicted, number accepted.

    Verdicts are collected and counted many at a time: one by one they would cost as much as the rest of a commit.

    Args:
        name: what the drafter of a source number is called.
    """

    def __init__(self, *, name: Callable[[int], str]) -> None:
        self._name = name
        self._tables: dict[str, npt.NDArray[np.float64]] = {}
        self._rows: list[tuple[IntArray, FloatArray, Sequence[int], Sequence[int]]] = []

    def verified(
        self, *, parents: IntArray, scores: FloatArray, sources: Sequence[int], accepted: Sequence[int]
    ) -> None:
        """One row's verdict.

        Args:
            parents: (n,) index of each node's parent among the nodes, negative below the root.
            scores: (n,) log of the predicted probability of the whole path to each node.
            sources: (n,) who made the guess.
            accepted: indices of the accepted nodes.
        """
        self._rows.append((parents, scores, sources, accepted))
        if len(self._rows) >= _BUFFERED:
            self._count_all()

    @property
    def tables(self) -> dict[str, npt.NDArray[np.float64]]:
        """By drafter, and `PATH`."""
        self._count_all()
        return self._tables

    def _count_all(self) -> None:
        rows, self._rows = self._rows, []
        if not rows:
            return
        counts = [len(row[0]) for row in rows]
        starts = np.cumsum([0, *counts[:-1]])
        right = np.zeros(sum(counts), np.bool_)
        right[[start + node for start, row in zip(starts.tolist(), rows, strict=True) for node in row[3]]] = True
        parents = np.concatenate([row[0] for row in rows]).astype(np.int64)
        inner = parents >= 0
        above = parents + np.repeat(starts, counts)
        path = np.concatenate([row[1] for row in rows]).astype(np.float64)
        edge = path - np.where(inner, path[np.where(inner, above, 0)], 0.0)
        tried = ~inner | right[np.where(inner, above, 0)]
        sources = np.concatenate([np.array(row[2], np.int64) for row in rows])
        self._add(PATH, path, right)
        for source in np.unique(sources).tolist():
            its = tried & (sources == source)
            self._add(self._name(source), edge[its], right[its])

    def _add(self, name: str, scores: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]) -> None:
        table = self._tables.setdefault(name, np.zeros((NUM_BINS, 3)))
        predicted = np.exp(np.minimum(scores, 0.0))
        bins = np.minimum((predicted * NUM_BINS).astype(np.int64), NUM_BINS - 1)
        table[:, 0] += np.bincount(bins, minlength=NUM_BINS)
        table[:, 1] += np.bincount(bins, weights=predicted, minlength=NUM_BINS)
        table[:, 2] += np.bincount(bins, weights=right, minlength=NUM_BINS)
