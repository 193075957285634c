"""The best few tokens by a small model's scores, as guesses with what their probability of a match is learned from. It
knows no models, trees or requests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dist_spec.core.types import NO_PARENT, Expansion, FloatArray

NUM_FEATURES = 3
"""Log probability, margin (value minus that of the best other candidate) and rank."""


def likeliest(ids: npt.NDArray[np.int64], scores: FloatArray, *, width: int) -> Expansion:
    """Best `width` by log probability (ties: the smallest id), for greedy requests.

    Args:
        ids, scores: (n,) candidates and their log probabilities.
    """
    order = np.lexsort((ids, -scores))[:width]
    return _guesses(ids[order], scores[order], scores[order], scores[order])


def best(
    ids: npt.NDArray[np.int64], values: npt.NDArray[np.float64], *, plain: npt.NDArray[np.float64], width: int
) -> Expansion:
    """Best `width` by `values`; scores are their log shares among all candidates. Impossible ones (-inf) are left out.

    Args:
        ids: (n,) candidates.
        values: (n,) scaled logits plus the noise that the target will add, or without it.
        plain: (n,) scaled logits without noise.
    """
    order = np.lexsort((ids, -values))[: min(width, int(np.count_nonzero(values > -np.inf)))]
    if not len(order):
        return Expansion.empty()
    return _guesses(ids[order], _log_shares(values)[order], _log_shares(plain)[order], values[order])


def _log_shares(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    top = values.max()
    shares: npt.NDArray[np.float64] = values - top - np.log(np.exp(values - top).sum())
    return shares


def _guesses(
    ids: npt.NDArray[np.int64],
    scores: npt.NDArray[np.floating],
    log_probs: npt.NDArray[np.floating],
    values: npt.NDArray[np.floating],
) -> Expansion:
    """All best first."""
    count = len(ids)
    features = np.zeros((count, NUM_FEATURES), np.float32)
    features[:, 0] = log_probs
    if count > 1:
        features[1:, 1] = values[1:] - values[0]
        features[0, 1] = values[0] - values[1]
    features[:, 2] = np.arange(count)
    return Expansion(
        tokens=ids.astype(np.int32),
        parents=np.full(count, NO_PARENT, dtype=np.int32),
        scores=scores.astype(np.float32),
        features=features,
    )
