"""The verdict where the best token of every row was found elsewhere (by ranks that hold a part of the vocabulary each). It
knows neither logits nor ranks: scores, ids and runners-up are arguments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dist_spec.core.types import IntArray, Verdict
from dist_spec.core.verification.walk import Choice, check_finite, descend
from dist_spec.errors import ModelError

Chosen = npt.NDArray[np.float64]
"""(rows, 3) float64: per row the best score, its token id, and the second-best score (-inf: there is none)."""


def best_of_shards(shards: Sequence[Chosen]) -> Chosen:
    """From the best of every part of the vocabulary, parts in the order of their ids, to the best of all (ties: the
    smallest id; NaN before anything else, as in a whole row)."""
    parts = np.stack(shards)  # (ranks, rows, 3)
    rows = np.arange(parts.shape[1])
    winner = parts[:, :, 0].argmax(axis=0)
    chosen: Chosen = parts[winner, rows].copy()
    others = parts[:, :, 0].copy()
    others[winner, rows] = -np.inf
    chosen[:, 2] = np.maximum(chosen[:, 2], others.max(axis=0))
    return chosen


def verdict_of(chosen: Chosen, *, tokens: IntArray, parents: IntArray, with_margin: bool) -> Verdict:
    """Walk the draft tree along the chosen tokens: what `greedy` and `coupled` do with the logits themselves.

    Args:
        chosen: row 0 follows the last pending token, row 1 + i follows node i.

    Raises:
        RequestError: a visited row has no finite best score.
        ModelError: `chosen` has another shape.
    """
    if chosen.shape != (len(tokens) + 1, 3):
        raise ModelError(f"expected choices of {len(tokens) + 1} rows, got {chosen.shape}")

    def choose(row: int, path: Sequence[int]) -> Choice:
        best, token, second = chosen[row].tolist()
        check_finite(best, len(path))
        return Choice(int(token), best - second if with_margin else 0.0)

    return descend(choose, tokens=tokens, parents=parents, with_margin=with_margin)
