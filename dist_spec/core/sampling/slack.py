"""How far logits would have to move before another token is chosen, cuts included: what the numeric-equality rule excuses
is judged by it. It knows no logits but processed ones, and decides nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dist_spec.core.sampling.truncation import weights_of
from dist_spec.core.types import Sampling

Scores = npt.NDArray[np.float64]

_REACH = 4.0
"""Nats below the best score that are looked at first: what is chosen rarely lies lower."""


def slack(scores: Scores, behind: Scores, *, inside: npt.NDArray[np.bool_], token: int, sampling: Sampling) -> float:
    """A distance in nats, never too large: with two scores moving towards each other by less, `token` is still chosen.

    A token outside of the cut may come in, and the chosen one may fall out; both count beside the gap to the runner-up.

    Args:
        scores: (V,) before the cut, in nats (-inf: impossible).
        behind: (V,) how far each score lies behind that of `token`, noise included (infinite: impossible). Written to.
        inside: (V,) what the cut left.
        token: the best of those with the noise.
    """
    behind[token] = np.inf
    nearest = float(behind[inside].min())
    if not sampling.restricts:
        return nearest
    cut = _Cut(scores, sampling)
    nearest = min(nearest, cut.to_outside(float(scores[token])))
    rivals = ~inside & (behind < nearest) & (scores > -np.inf)
    if not rivals.any():
        return nearest
    # The likeliest of them is the first to come in.
    entry = cut.to_inside(float(scores[rivals].max()), limit=nearest)
    return min(nearest, max(entry, float(behind[rivals].min()), 0.0))


class _Cut:
    """The boundaries of top-k, top-p and min-p. Only the largest scores are sorted, as many as the answer can depend on:
    this is asked for every verified row."""

    def __init__(self, scores: Scores, sampling: Sampling) -> None:
        self._sampling = sampling
        self._best = float(scores.max())
        self._kept, self._next = scores, -np.inf  # what top-k leaves, and the largest score beyond
        if 0 < sampling.top_k < len(scores):
            first = len(scores) - sampling.top_k - 1
            highest = np.partition(scores, first)[first:]
            self._kept, self._next = highest[1:], float(highest[0])
        self._wanted = self._total = np.inf
        if sampling.top_p < 1.0:
            self._wanted = float(np.log(sampling.top_p) - np.log1p(-sampling.top_p))
            self._total = float(weights_of(self._kept).sum())

    def to_inside(self, score: float, *, limit: float) -> float:
        """How far a score outside is from coming in; beyond `limit` it does not matter how far."""
        least = 0.0
        if self._next > -np.inf:
            least = max(least, float(self._kept.min()) - score)
        if self._sampling.min_p > 0.0:
            least = max(least, self._best + float(np.log(self._sampling.min_p)) - score)
        if self._sampling.top_p < 1.0:
            kept, odds = self._down_past(self._wanted + limit, first=self._best, last=score)
            above = int(np.searchsorted(-kept, -score, side="left"))  # how many are larger
            # It is in once the mass of those still above it is short of the share: some of them may fall below it.
            falls = np.append(kept[:above] - score, 0.0)
            least = max(least, float(np.maximum(falls, odds[: above + 1] - self._wanted).min()))
        return least

    def to_outside(self, score: float) -> float:
        """How far a score inside is from dropping out."""
        least = score - self._next
        if self._sampling.min_p > 0.0 and score < self._best:
            least = min(least, score - self._best - float(np.log(self._sampling.min_p)))
        if self._sampling.top_p < 1.0:
            # Whoever is lower than the first beyond the share has further to climb than is needed.
            kept, odds = self._down_past(self._wanted, first=score, last=-np.inf)
            rank = int(np.searchsorted(-kept, -score, side="left"))
            # It is out once the mass above it reaches the share: some of those below may climb above it.
            climbs = np.append(0.0, score - kept[rank + 1 :])
            above = np.append(odds[rank], odds[rank + 2 :])
            least = min(least, float(np.maximum(climbs, self._wanted - above).min()))
        return max(float(least), 0.0)

    def _down_past(self, sought: float, *, first: float, last: float) -> tuple[Scores, Scores]:
        """`_down_to` somewhere from `first` down to `last`: where all but the last have the odds that are sought, if
        anywhere."""
        reach, possible = max(_REACH, self._best - first), np.count_nonzero(self._kept > -np.inf)
        while True:
            floor = max(self._best - reach, last)
            kept, odds = self._down_to(floor)
            if odds[-2] >= sought or floor == last or len(kept) == possible:
                return kept, odds
            reach *= 2.0

    def _down_to(self, floor: float) -> tuple[Scores, Scores]:
        """(scores, odds): the scores from `floor` on, largest first, and the log odds of the mass of the first i, i = 0..
        Moving every score by d changes those by 2 d at most."""
        kept = np.sort(self._kept[self._kept >= floor])[::-1]
        mass = np.cumsum(np.exp(kept - self._best))
        with np.errstate(divide="ignore"):
            rest = np.log(np.append(self._total, np.maximum(self._total - mass, 0.0)))
            return kept, np.log(np.append(0.0, mass)) - rest
