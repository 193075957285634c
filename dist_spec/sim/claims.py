"""A drafter whose scores claim something else than what is true, for simulations of miscalibrated and hopeless drafters. It
changes scores only; the guesses are the wrapped drafter's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dist_spec.core.types import Expansion
from dist_spec.drafters.base import Drafter, ExpandRow, RequestKey
from dist_spec.drafters.rank_law import RankLaw


class ClaimingDrafter:
    """Scores by rank as `claims` would have them (its mean), whatever the guesses are worth."""

    def __init__(self, drafter: Drafter, *, claims: RankLaw) -> None:
        self.kind = drafter.kind
        self._drafter = drafter
        self._claims = claims

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        """See `Drafter.expand`."""
        return [[self._claimed(one) for one in below] for below in self._drafter.expand(rows)]

    def _claimed(self, expansion: Expansion) -> Expansion:
        count = len(expansion.tokens)
        scores = self._claims.scores(self._claims.a, width=max(count, 1))[:count]
        return Expansion(tokens=expansion.tokens, parents=expansion.parents, scores=np.asarray(scores, np.float32))

    def close(self, key: RequestKey) -> None:
        """See `Drafter.close`."""
        self._drafter.close(key)
