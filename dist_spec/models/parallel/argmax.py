"""The best token of every row within one rank's part of the vocabulary. It knows no process group: what ranks find is put
together by `core.verification.chosen`.

Noise is a function of (seed, position, token), so each rank makes its own slice of every row of noise, and no row of logits
has to travel. The scores are, to the bit, those that the rules `greedy` and `coupled` compute on whole rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from dist_spec.core.noise import NoiseRing
from dist_spec.core.types import FloatArray, ForwardRow
from dist_spec.core.verification.chosen import Chosen
from dist_spec.models.parallel.order import StepOrder, Wish
from dist_spec.models.rows import node_depths


class ShardChooser:
    """Chooses within the ids first .. last - 1.

    Args:
        capacity: rows of noise that are kept.
    """

    def __init__(self, *, first: int, last: int, capacity: int) -> None:
        self._first = first
        self._ring = NoiseRing(last - first, capacity, first=first)
        self._scores = np.empty(last - first, dtype=np.float64)

    def prepare(self, rows: Sequence[ForwardRow], wishes: Sequence[Wish | None]) -> None:
        """Make the noise of all positions that these rows reach."""
        for row, wish in zip(rows, wishes, strict=True):
            if wish is not None and wish.temperature > 0.0:
                for depth in range(max(_depths(row)) + 1):
                    self._ring.prepare(wish.key, wish.index + depth)

    def choose(self, logits: torch.Tensor, step: StepOrder) -> Chosen:
        """Per logits row of the rows with a wish: best score, its id, second-best score (-inf: none, or not asked for).

        Args:
            logits: (n, last - first) of all rows' wanted logits, rows without a wish included.
        """
        found: list[tuple[float, int, float]] = []
        start = 0
        for row, wish in zip(step.rows, step.wishes, strict=True):
            if wish is not None:
                own: FloatArray = logits[start : start + row.num_logits].float().cpu().numpy()
                for scores, depth in zip(own, _depths(row), strict=True):
                    found.append(self._best(self._scored(scores, wish, depth), with_margin=step.with_margin))
            start += row.num_logits
        return np.array(found, dtype=np.float64).reshape(-1, 3)

    def _scored(self, logits: FloatArray, wish: Wish, depth: int) -> npt.NDArray[np.floating]:
        if wish.temperature == 0.0:
            return logits
        # As the rule does it: divided in float64 before the noise is added.
        np.divide(logits, wish.temperature, out=self._scores, dtype=np.float64)
        return np.add(self._scores, self._ring.row(wish.key, wish.index + depth), out=self._scores)

    def _best(self, scores: npt.NDArray[np.floating], *, with_margin: bool) -> tuple[float, int, float]:
        place = int(scores.argmax())  # of equals the first; the first NaN before anything else
        second = -np.inf
        if with_margin:
            second = max(
                (float(part.max()) for part in (scores[:place], scores[place + 1 :]) if part.size), default=second
            )
        return float(scores[place]), self._first + place, second


def chosen_rows(row: ForwardRow, wish: Wish | None) -> int:
    """How many rows `choose` returns for a row."""
    return 0 if wish is None else row.num_logits


def _depths(row: ForwardRow) -> list[int]:
    """Depth below the last pending token of what each wanted logits row chooses: of its own row, then of the nodes'."""
    return [0, *node_depths(row.parents).tolist()]
