"""Gives the guesses of one drafter their calibrated scores, and learns from what was committed. It sees scores, features
and depths; which token a guess is matters only once the target has spoken."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dist_spec.core.control.calibration import Calibrator, Matrix
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Expansion, FloatArray, IntArray

_KEPT = 1 << 13
"""Guesses whose rows are kept until their outcome is known; older ones are not learned from."""
_EAGER, _AT_ONCE = 128, 8
"""Labels up to which every commit is learned from at once, and how many are taken together after that: an update costs
the same for one as for a dozen, and lies between two verifications."""


class Scorer:
    """A calibrator and the rows of its latest guesses.

    A node's row is named by a serial number in `tree.features`, which follows the node.
    """

    def __init__(self) -> None:
        self.calibrator = Calibrator()
        self._rows: Matrix = np.empty((0, 0))
        self._next = 0
        self._serials: list[int] = []
        self._hits: list[bool] = []
        self._num_tokens = 0

    def score(self, expansions: Sequence[Expansion], depths: Sequence[int]) -> tuple[list[FloatArray], list[int]]:
        """Calibrated edge scores of all guesses of one draft step.

        Args:
            depths: per expansion, the depth of its leaf below the head (0: the head itself).

        Returns: (scores, the serial number of its first row) per expansion.
        """
        counts = [len(one.tokens) for one in expansions]
        total = sum(counts)
        starts = np.cumsum([0, *counts[:-1]]).tolist()
        if total == 0:
            return [one.scores for one in expansions], starts
        features = [one.features for one, count in zip(expansions, counts, strict=True) if count]
        known = [one for one in features if one is not None]
        rows = self.calibrator.design(
            np.concatenate([one.scores for one in expansions]),
            np.concatenate(known) if len(known) == len(features) else None,
            _depths(expansions, counts, depths),
        )
        scores = self.calibrator.predict(rows)
        first = self._keep(rows)
        parts = [scores[start : start + count] for start, count in zip(starts, counts, strict=True)]
        return parts, [first + start for start in starts]

    def _keep(self, rows: Matrix) -> int:
        """Store rows in the ring; returns the serial number of the first."""
        if self._rows.shape[1] != rows.shape[1]:
            self._rows = np.zeros((_KEPT, rows.shape[1]))
            self._next += _KEPT  # what was made before is of another shape
        first, count = self._next, len(rows)
        self._next += count
        start = first % _KEPT
        if start + count <= _KEPT:
            self._rows[start : start + count] = rows
        else:
            self._rows[np.arange(first, first + count)[-_KEPT:] % _KEPT] = rows[-_KEPT:]
        return first

    def learn(self, serials: Sequence[int], hits: Sequence[bool], *, num_tokens: int) -> None:
        """Which of the guesses with these serial numbers matched; one whose row is gone is left out."""
        self._serials += serials
        self._hits += hits
        self._num_tokens += num_tokens
        if len(self._serials) < _AT_ONCE and self.calibrator.num_labels >= _EAGER:
            return
        names = np.array(self._serials, np.int64)
        there = names >= self._next - _KEPT
        if there.any():
            rows = self._rows[names[there] % _KEPT]
            self.calibrator.learn(rows, np.array(self._hits, np.bool_)[there], num_tokens=self._num_tokens)
        self._serials, self._hits, self._num_tokens = [], [], 0


def _depths(expansions: Sequence[Expansion], counts: Sequence[int], depths: Sequence[int]) -> IntArray:
    """(total,) depth of every guess."""
    below = np.repeat(np.array(depths, np.int32) + 1, counts)
    parents = np.concatenate([one.parents for one in expansions])
    if (parents < 0).all():
        return below
    start = 0
    for expansion, count in zip(expansions, counts, strict=True):
        inner = [0] * count
        for i, parent in enumerate(expansion.parents.tolist()):
            if parent >= 0:
                inner[i] = inner[parent] + 1
        below[start : start + count] += np.array(inner, np.int32)
        start += count
    return below


def labels(tree: DraftTree, tokens: Sequence[int]) -> dict[int, tuple[list[int], list[bool]]]:
    """What committed `tokens` (below the root; the root not moved yet) say of the tree's guesses: by `source`, the serial
    numbers in `tree.features` of all nodes whose parent lies on the committed path, and whether each was right.

    Nothing is censored: every guess there was is seen, verified or not.
    """
    found: dict[int, tuple[list[int], list[bool]]] = {}
    features, source, token = tree.features, tree.source, tree.token
    node: int | None = tree.root
    for committed in tokens:
        if node is None:
            break
        for child in tree.children[node]:
            serial = features.get(child)
            if serial is not None:
                serials, hits = found.setdefault(source[child], ([], []))
                serials.append(serial)
                hits.append(token[child] == committed)
        node = tree.child(node, committed)
    return found
