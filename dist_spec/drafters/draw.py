"""From a drafter's scores to a law and one token drawn from it, for rules that weigh a draft with its law. It knows no
model and no message; uniform bits are arguments.

The law is rounded first and the token drawn from the rounded numbers (law 6).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dist_spec.core.law import DraftLaw, law_ids
from dist_spec.core.types import NO_PARENT, Expansion

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class LawSettings:
    """How a drafter tells its law: whole (`dense`), or as at most `size` ids with 16-bit counts."""

    size: int = 64
    dense: bool = False


def sparse_law(ids: npt.NDArray[np.integer], scores: Scores, *, size: int, log_mass: float | None = None) -> DraftLaw:
    """The law of the most likely ids (ties: the smaller id).

    Args:
        ids: (m,) candidates, all different.
        scores: (m,) their log probabilities up to a constant; -inf is impossible, the largest is finite.
        size: ids at most.
        log_mass: log of the probability of the whole vocabulary on the same scale (None: the candidates are all).
    """
    order = np.lexsort((ids, -scores))
    best = scores[order[0]]
    probs = np.exp(scores[order] - best)
    mass = float(probs.sum()) if log_mass is None else float(np.exp(log_mass - best))
    count = law_ids(probs, size=size, mass=mass)
    return DraftLaw.sparse(ids[order[:count]], probs[:count])


def dense_law(scores: Scores) -> DraftLaw:
    """The law of a whole row of log probabilities (up to a constant; -inf is impossible)."""
    return DraftLaw.dense(np.exp(scores - scores.max()))


def drawn(law: DraftLaw, word: int) -> Expansion:
    """One guess, drawn from the law by 64 uniform bits. Its score says nothing: nobody may prefer a draw (law 5)."""
    return Expansion(
        tokens=np.array([law.draw(word)], np.int32),
        parents=np.array([NO_PARENT], np.int32),
        scores=np.zeros(1, np.float32),
        laws=(law,),
    )
