"""The precision in which scores travel: one byte per edge. It knows nothing of trees or messages.

A score is the log of a probability. Its byte is 40 times the square root of its distance from 0, rounded: steps are fine
near certainty, where errors add up along a deep path (probability .999 is told from 1), and wide where nothing is worth
verifying anyway. An edge's probability is off by at most .011.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dist_spec.core.types import FloatArray

HOPELESS = -65504.0
"""Lowest edge score, so that no score and no sum of scores is ever infinite."""

_STEPS = 40.0
_LAST = 254
"""Beyond it (probability e^-40) an edge is hopeless; byte 255 says so."""
_TABLE = -np.square(np.arange(256, dtype=np.float64) / _STEPS).astype(np.float32)
_TABLE[_LAST + 1] = HOPELESS
_TABLE.flags.writeable = False
_SCORES: list[float] = _TABLE.tolist()


def to_bytes(scores: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """(n,) scores as (n,) uint8; what is above 0 counts as certain, what is no number as hopeless."""
    distance = np.fmax(np.negative(np.asarray(scores, np.float64)), 0.0)
    marks = np.fmin(np.rint(_STEPS * np.sqrt(distance)), _LAST + 1.0)
    marks[np.isnan(np.asarray(scores))] = _LAST + 1.0
    return marks.astype(np.uint8)


def to_byte(score: float) -> int:
    """One score, as `to_bytes` has it, without arrays."""
    if score != score:
        return _LAST + 1
    return round(min(_STEPS * math.sqrt(max(-score, 0.0)), _LAST + 1.0))


def from_byte(mark: int) -> float:
    """The score of one byte."""
    return _SCORES[mark]


def from_bytes(marks: npt.NDArray[np.uint8]) -> FloatArray:
    """(n,) uint8 as (n,) float32 scores; `to_bytes` gives the same bytes back."""
    return _TABLE[marks]


def rounded(scores: npt.ArrayLike) -> FloatArray:
    """Scores as they arrive."""
    return _TABLE[to_bytes(scores)]
