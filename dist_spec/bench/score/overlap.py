"""How likely a guess is to stand, from the target's distribution and the law a drafter guesses by, at one position: exact
expectations, nothing is drawn. It knows no models and no texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dist_spec.bench import foresight
from dist_spec.bench.score.ranks import NEXT, AfterMiss
from dist_spec.core.law import DraftLaw

Probs = npt.NDArray[np.float64]

_LEAST = 1e-7
"""Draft probability below which a token's share of the match is left out (a lower bound then, by less than their sum)."""

_NEVER = 1e-9
"""Probability of a rejection below which there is none."""


def overlap(target_probs: Probs, draft_probs: Probs) -> float:
    """sum over x of min(p(x), q(x)): the acceptance of a draft drawn from q under the rule `rejection`."""
    return float(np.minimum(target_probs, draft_probs).sum())


def coupled_match(target_probs: Probs, draft_probs: Probs) -> float:
    """Probability that argmax(log p + g) and argmax(log q + g) of the same Gumbel noise g are one token:
    sum over x of 1 / sum over y of max(p(y) / p(x), q(y) / q(x)); see docs/adr and Daliri et al., arXiv 2408.07978.

    Args:
        target_probs, draft_probs: (V,), both sum to 1.
    """
    ids = np.flatnonzero((draft_probs > _LEAST) & (target_probs > 0.0))
    if not len(ids):
        return 0.0
    p, q = target_probs[ids], draft_probs[ids]
    order = np.argsort(p / q)
    p, q = p[order], q[order]
    # Of the sum over y: those with p(y)/q(y) below x's count by q, all others (also where q is 0) by p.
    before_p = np.concatenate([[0.0], np.cumsum(p)[:-1]])
    before_q = np.concatenate([[0.0], np.cumsum(q)[:-1]])
    impossible = float(draft_probs[target_probs <= 0.0].sum())  # their ratio is 0: below everyone's
    return float((1.0 / (np.maximum(1.0 - before_p, 0.0) / p + (before_q + impossible) / q)).sum())


def probs_of(law: DraftLaw | None, guesses: Sequence[int], vocab_size: int) -> Probs:
    """(V,) the law as a row; without one the first guess has all of it, and nobody has any where there is no guess."""
    row = np.zeros(vocab_size, dtype=np.float64)
    if law is None:
        if guesses and guesses[0] < vocab_size:
            row[guesses[0]] = 1.0
        return row
    if law.is_dense:
        size = min(vocab_size, len(law.weights))
        row[:size] = law.weights[:size] / law.total
        return row
    inside = law.ids < vocab_size
    row[law.ids[inside]] = law.weights[inside] / law.total
    return row


@dataclass(kw_only=True, slots=True)
class Overlap:
    """Sums over positions.

    Attributes:
        match, shared: coupled match probability, sum of min(p, q).
        plain_first, plain_next: under `coupled`, of guesses ranked by their probability alone: the first stands; it does not
            and one of the next 1, 2, 3 does.
        rejection_next: under `rejection`, the draft is rejected and its replacement is among the next 1, 2, 3.
    """

    positions: int = 0
    match: float = 0.0
    shared: float = 0.0
    plain_first: float = 0.0
    plain_next: list[float] = field(default_factory=lambda: [0.0] * NEXT)
    rejection_next: list[float] = field(default_factory=lambda: [0.0] * NEXT)

    def add(self, target_probs: Probs, *, law: DraftLaw | None, guesses: Sequence[int]) -> None:
        """One position.

        Args:
            law: what the first guess is drawn from under `rejection`; None: it is a function of the text.
            guesses: ids in the drafter's order, best first; used where there is no law to rank by.
        """
        size = len(target_probs)
        row = probs_of(law, guesses, size)
        self.positions += 1
        self.match += coupled_match(target_probs, row)
        self.shared += overlap(target_probs, row)
        ranked = [one for one in guesses if one < size] if law is None else _best(row, NEXT + 1)
        hits = [float(target_probs[one]) for one in ranked[: NEXT + 1]]
        self.plain_first += hits[0] if hits else 0.0
        for number in range(NEXT):
            self.plain_next[number] += sum(hits[1 : number + 2])
        if law is None:
            self._point(hits)
        else:
            self._drawn(target_probs, row)

    def _point(self, hits: Sequence[float]) -> None:
        """Rejecting a guess that was certain leaves the target's distribution without it."""
        for number in range(NEXT):
            self.rejection_next[number] += sum(hits[1 : number + 2])

    def _drawn(self, target_probs: Probs, row: Probs) -> None:
        with np.errstate(divide="ignore"):
            pair = (np.log(target_probs), np.log(row))
        seen = foresight.rejection([pair], temperature=1.0, law_size=None)
        missed = seen.positions - seen.stood
        if missed < _NEVER:
            return  # what is left is rounding
        for number in range(NEXT):
            self.rejection_next[number] += missed * seen.after_a_miss[number]

    def merged(self, other: Overlap) -> Overlap:
        """Both together."""
        return Overlap(
            positions=self.positions + other.positions,
            match=self.match + other.match,
            shared=self.shared + other.shared,
            plain_first=self.plain_first + other.plain_first,
            plain_next=[a + b for a, b in zip(self.plain_next, other.plain_next, strict=True)],
            rejection_next=[a + b for a, b in zip(self.rejection_next, other.rejection_next, strict=True)],
        )

    @property
    def coupled_match(self) -> float:
        """Mean over positions."""
        return self.match / self.positions if self.positions else 0.0

    @property
    def sum_min(self) -> float:
        """Mean over positions."""
        return self.shared / self.positions if self.positions else 0.0

    def plain(self) -> AfterMiss:
        """Rule `coupled`, guesses ranked by probability alone."""
        return self._after(self.plain_first, self.plain_next)

    def rejection(self) -> AfterMiss:
        """Rule `rejection`, next guesses ranked by probability."""
        return self._after(self.shared, self.rejection_next)

    def _after(self, stood: float, hits: Sequence[float]) -> AfterMiss:
        missed = self.positions - stood
        return AfterMiss(
            positions=self.positions,
            first=stood / self.positions if self.positions else 0.0,
            next_guesses=tuple(one / missed if missed > _NEVER * self.positions else 0.0 for one in hits),
        )


def _best(row: Probs, count: int) -> list[int]:
    top = np.argpartition(row, len(row) - count)[len(row) - count :] if count < len(row) else np.arange(len(row))
    return [int(one) for one in top[np.lexsort((top, -row[top]))] if row[one] > 0.0]
