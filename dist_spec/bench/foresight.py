"""What a drafter foresees, computed from the logits of both models along given texts: how often its first guess stands,
and, after a miss, how often the target's token is among its next 1, 2, 3 guesses. It runs no model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dist_spec.core.noise import gumbel_row, request_key
from dist_spec.drafters.draw import sparse_law

NEXT = 3
"""Guesses after a miss that are looked at."""

Row = npt.NDArray[np.float64]


@dataclass(kw_only=True, slots=True)
class Foresight:
    """Sums over positions.

    Attributes:
        next_hits: positions whose first guess did not stand, and one of the next 1, 2, 3 was right.
        positions: all of them.
        stood: those whose first guess stood.
        law_ids: ids that the laws named.
    """

    next_hits: list[float]
    positions: float = 0.0
    stood: float = 0.0
    law_ids: int = 0

    @staticmethod
    def empty() -> Foresight:
        return Foresight(next_hits=[0.0] * NEXT)

    def plus(self, other: Foresight) -> Foresight:
        """Both together."""
        return Foresight(
            positions=self.positions + other.positions,
            stood=self.stood + other.stood,
            next_hits=[one + more for one, more in zip(self.next_hits, other.next_hits, strict=True)],
            law_ids=self.law_ids + other.law_ids,
        )

    @property
    def first(self) -> float:
        return self.stood / self.positions if self.positions else 0.0

    @property
    def after_a_miss(self) -> list[float]:
        missed = self.positions - self.stood
        return [hits / missed if missed else 0.0 for hits in self.next_hits]

    @property
    def ids_per_law(self) -> float:
        return self.law_ids / self.positions if self.positions else 0.0


def coupled(pairs: Iterable[tuple[Row, Row]], *, temperature: float, draws: int = 4, seed: int = 0) -> Foresight:
    """Both sides take argmax(logits / temperature + noise) of the same noise; counted over `draws` noise rows each.

    Args:
        pairs: (target's, drafter's) logits (V,) of every position.
    """
    found = Foresight.empty()
    for place, (target, draft) in enumerate(pairs):
        for draw in range(draws):
            noise = gumbel_row(request_key(seed + draw, 0), place, len(target))
            token = int((target / temperature + noise).argmax())
            guesses = _best(draft / temperature + noise, NEXT + 1).tolist()
            found.positions += 1
            if guesses[0] == token:
                found.stood += 1
                continue
            for number in range(NEXT):
                found.next_hits[number] += token in guesses[1 : number + 2]
    return found


def rejection(pairs: Iterable[tuple[Row, Row]], *, temperature: float, law_size: int | None) -> Foresight:
    """The drafted token is drawn from the drafter's law and stands with min(1, p / q), else the target's token is drawn
    from max(p - q, 0); the drafter's next guesses are its most likely ones without the drafted token. Expectations, no
    sampling.

    Args:
        law_size: ids at most of a sparse law; None: dense.
    """
    found = Foresight.empty()
    for target, draft in pairs:
        p, q, named = _law_row(target, draft, temperature=temperature, law_size=law_size)
        ranked = _best(draft, NEXT + 1)
        rest, lost = np.maximum(p - q, 0.0), np.maximum(q - p, 0.0)
        missed = float(rest.sum())
        found.positions += 1
        found.stood += 1.0 - missed
        found.law_ids += named
        if missed <= 0.0:
            continue
        for number in range(1, NEXT + 1):
            # Which token was lost matters only where it is one of the next guesses itself: it makes room for one more.
            inside = ranked[:number]
            others = float(lost.sum() - lost[inside].sum()) * float(rest[inside].sum())
            wider = float(rest[ranked[: number + 1]].sum())
            own = sum(float(lost[token]) * (wider - float(rest[token])) for token in inside)
            found.next_hits[number - 1] += (others + own) / missed
    return found


def _law_row(target: Row, draft: Row, *, temperature: float, law_size: int | None) -> tuple[Row, Row, int]:
    p, q = _softmax(target / temperature), _softmax(draft / temperature)
    if law_size is None:
        return p, q, len(q)
    candidates = _best(draft, max(256, law_size))
    law = sparse_law(candidates, np.log(q[candidates] + 1e-300), size=law_size, log_mass=0.0)
    told = np.zeros_like(q)
    told[law.ids] = law.weights / law.total
    return p, told, len(law.ids)


def _softmax(scores: Row) -> Row:
    weights = np.exp(scores - scores.max())
    normalised: Row = weights / weights.sum()
    return normalised


def _best(scores: Row, count: int) -> npt.NDArray[np.int64]:
    """Ids of the highest scores, best first."""
    count = min(count, len(scores))
    top = np.argpartition(scores, len(scores) - count)[len(scores) - count :]
    order: npt.NDArray[np.int64] = top[np.lexsort((top, -scores[top]))]
    return order
