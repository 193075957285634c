"""What a drafter's scores mean: an online logistic model from what it says of a guess to the probability of a match.

It knows no trees, messages or drafters: rows of numbers in, log probabilities out, and later which of them matched. Why it
lives where the guesses are made: docs/adr/0010-calibrated-scores.md.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dist_spec.core.types import FloatArray, IntArray

Matrix: TypeAlias = npt.NDArray[np.float64]

_BUCKETS = (2, 5)
"""Depths at which a depth bucket begins, beside the first: 1, 2 to 4, 5 and more."""
_COLUMNS = 3 + 2 * len(_BUCKETS)
"""Intercept, claimed log odds, their upper part; intercept and slope of every further depth bucket."""

_LOW, _HIGH, _BEND = -9.0, 6.0, -1.5
"""Claimed log odds are cut to [_LOW, _HIGH]; the line from them to the odds may bend at _BEND (probability .18)."""
_FEATURE_LIMIT, _FEATURE_SCALE = 24.0, 0.25
_HOPELESS = -1e3
_WORST, _BEST = -12.0, 9.0
"""Bounds of the predicted log odds: nothing is impossible, nothing certain."""

_MEMORY, _FIRST_MEMORY, _MEMORY_SHARE = 500.0, 20.0, 0.25
"""Committed tokens after which the past has faded: at first a quarter of all seen, lest early errors set the pace."""
_KEEP_LEVEL = 0.99
_LEVEL_PRECISION = 8.0
"""The level of all odds follows what happens now (another kind of text) with a memory of 100 tokens."""
_MAX_STEP = 3.0
"""Largest change of any predicted log odds by one update: Newton's step overshoots far from the optimum."""
_LEAST_CURVATURE = 0.001
_PRECISIONS = (0.1, 1.0, 1.0, *(1.0, 4.0) * len(_BUCKETS))
_FEATURE_PRECISION = 4.0
"""Strength of the prior: the claimed probability holds (slope 1, everything else 0)."""


class Calibrator:
    """Online logistic regression with forgetting (recursive Newton steps), one per drafter.

    The claimed probability is the prior: before anything was learned, `predict` gives back the scores (within bounds).
    Weights are shared between depths but for an intercept and a slope per depth bucket, so that rare depths do not start
    from nothing. On top of them lies a level that moves faster: texts differ in how well they can be guessed.
    """

    def __init__(self) -> None:
        self.num_labels = 0
        self._begin(0)

    def _begin(self, num_features: int) -> None:
        self._num_features = num_features
        width = _COLUMNS + num_features
        self._prior = np.zeros(width)
        self._prior[1] = 1.0
        self._weights = self._prior.copy()
        self._precision = np.array([*_PRECISIONS, *[_FEATURE_PRECISION] * num_features])
        self._information = np.zeros((width, width))
        self._num_tokens = 0
        self._level = self._level_information = 0.0

    def design(self, scores: FloatArray, features: FloatArray | None, depths: IntArray) -> Matrix:
        """Rows for `predict` and `learn`.

        Args:
            scores: (n,) claimed log probabilities.
            features: (n, F) whatever else says something about a match; None: nothing. Another F than before begins anew.
            depths: (n,) depth of each guess below the head that was known when it was made, from 1.
        """
        num_features = 0 if features is None else features.shape[1]
        if num_features != self._num_features:
            self._begin(num_features)
        rows = np.empty((len(scores), _COLUMNS + num_features))
        # fmax passes over what is no number.
        claimed = np.minimum(np.fmax(scores, _HOPELESS, dtype=np.float64), -1e-6)
        odds = _within(claimed - np.log(-np.expm1(claimed)), _LOW, _HIGH)
        rows[:, 0] = 1.0
        rows[:, 1] = odds
        np.maximum(odds - _BEND, 0.0, out=rows[:, 2])
        for column, start in enumerate(_BUCKETS):
            inside = depths >= start
            rows[:, 3 + 2 * column] = inside
            rows[:, 4 + 2 * column] = inside * odds
        if features is not None:
            told = _within(features, -_FEATURE_LIMIT, _FEATURE_LIMIT)
            unknown = np.isnan(told)
            if unknown.any():
                told[unknown] = 0.0
            np.multiply(told, _FEATURE_SCALE, out=rows[:, _COLUMNS:])
        return rows

    def predict(self, rows: Matrix) -> FloatArray:
        """(n,) float32, log of the probability that each guess matches, given that all before it did."""
        odds = _within(rows @ self._weights + self._level, _WORST, _BEST)
        return (-np.log1p(np.exp(-odds))).astype(np.float32)

    def learn(self, rows: Matrix, hits: npt.NDArray[np.bool_], *, num_tokens: int) -> None:
        """One Newton step on what a commit showed.

        Args:
            rows: (n, columns) as `design` made them; of another number of columns: ignored.
            hits: (n,) whether each guess was the committed token.
            num_tokens: committed tokens that these labels come from; the past fades by so much.
        """
        if not len(rows) or rows.shape[1] != len(self._weights):
            return
        self.num_labels += len(rows)
        self._num_tokens += num_tokens
        keep = math.exp(-num_tokens / min(_MEMORY, _FIRST_MEMORY + _MEMORY_SHARE * self._num_tokens))
        chance = 1.0 / (1.0 + np.exp(-_within(rows @ self._weights + self._level, _WORST, _BEST)))
        curvature = np.maximum(chance * (1.0 - chance), _LEAST_CURVATURE)
        self._information *= keep
        self._information += rows.T @ (rows * curvature[:, None])
        pull = (1.0 - keep) * self._precision * (self._weights - self._prior)
        gradient = rows.T @ (hits - chance) - pull
        system = self._information.copy()
        system.ravel()[:: len(system) + 1] += self._precision
        step = np.linalg.solve(system, gradient)
        largest = float(np.abs(rows @ step).max())
        self._weights += step * min(1.0, _MAX_STEP / largest if largest > 0.0 else 1.0)
        self._learn_level(float((hits - chance).sum()), float(curvature.sum()), keep=_KEEP_LEVEL**num_tokens)

    def _learn_level(self, surprise: float, information: float, *, keep: float) -> None:
        self._level_information = keep * self._level_information + information
        gradient = surprise - (1.0 - keep) * _LEVEL_PRECISION * self._level
        step = gradient / (self._level_information + _LEVEL_PRECISION)
        self._level += min(max(step, -_MAX_STEP), _MAX_STEP)


def _within(values: npt.NDArray[np.floating], low: float, high: float) -> Matrix:
    """As `np.clip` in float64, whose Python wrapper costs more than all of the work on a few numbers."""
    clipped: Matrix = np.minimum(np.maximum(values, low, dtype=np.float64), high)
    return clipped
