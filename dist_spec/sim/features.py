"""A scripted target that tells hidden features, and a drafter that lives on them: what a draft head needs of the protocol,
without a model. It knows no virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dist_spec.core.admission import FeatureFacts
from dist_spec.core.messages import FeatureWish
from dist_spec.core.plan import Plan
from dist_spec.core.target_session import Outcome
from dist_spec.core.types import Expansion, HalfArray, Verdict
from dist_spec.drafters.base import Drafter, ExpandRow, RequestKey
from dist_spec.errors import DistSpecError
from dist_spec.sim.devices import ScriptedTarget

SIZE = 3
FACTS = FeatureFacts(hidden_size=SIZE, num_layers=1)
WISH = FeatureWish(layers=(0,), hidden_size=SIZE, num_layers=1, window=24)
_FRESH = 8
"""So far behind the end of the text features may be for the drafter to guess anything."""


def features_of(truth: Sequence[int], first: int, last: int) -> HalfArray:
    """(last - first, SIZE): a function of the text and the position alone."""
    return np.array([(truth[i] % 1000, i % 1000, (truth[i] + i) % 7) for i in range(first, last)], np.float16)


class FeaturingTarget(ScriptedTarget):
    """A `ScriptedTarget` that tells features of what it reads."""

    def __init__(self, truth: Callable[[RequestKey], Sequence[int]]) -> None:
        super().__init__(truth)
        self._window = 0

    def capture(self, layers: Sequence[int], *, window: int) -> None:
        """See `workers.target.Featuring`."""
        self._window = window

    def features(self, plan: Plan, outcomes: Sequence[Outcome]) -> list[HalfArray]:
        """See `workers.target.Featuring`."""
        found: list[HalfArray] = []
        for row, outcome in zip(plan.rows, outcomes, strict=True):
            end = row.base_length + (len(outcome.path) if isinstance(outcome, Verdict) else 0)
            first = row.base_length - min(row.forward.num_pending, self._window)
            found.append(features_of(self._truth(row.key), first, end))
        return found


class FeatureReader:
    """Guesses what `inner` does, wherever it has recent features of the text, and sees to it that these are the target's.

    Attributes:
        num_rows: rows of features that it was given.
    """

    def __init__(self, inner: Drafter, *, truth: Callable[[RequestKey], Sequence[int]]) -> None:
        self.kind = inner.kind
        self.num_rows = 0
        self._inner = inner
        self._truth = truth
        self._latest: dict[RequestKey, int] = {}

    def features(self, key: RequestKey, first_position: int, rows: HalfArray) -> None:
        """See `drafters.base.Featured`.

        Raises:
            DistSpecError: these are not the features of that text.
        """
        last = first_position + len(rows)
        if not np.array_equal(rows, features_of(self._truth(key), first_position, last)):
            raise DistSpecError(f"{key}: features of positions {first_position} to {last - 1} belong to another text")
        self.num_rows += len(rows)
        self._latest[key] = max(self._latest.get(key, 0), last)

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        """See `Drafter.expand`."""
        return [
            guesses if self._latest.get(row.key, 0) >= len(row.history) - _FRESH else [Expansion.empty()] * len(guesses)
            for row, guesses in zip(rows, self._inner.expand(rows), strict=True)
        ]

    def close(self, key: RequestKey) -> None:
        """See `Drafter.close`."""
        self._latest.pop(key, None)
        self._inner.close(key)
