"""How likely the next node of a chain is accepted, by its depth alone: all that may be looked at where the rule is blind to
drafted tokens (law 5)."""

from __future__ import annotations

from collections.abc import Sequence

_PRIOR_ACCEPTED, _PRIOR_TRIED = 5.6, 8.0
_KEEP = 0.99


class DepthMeans:
    """Mean acceptance per depth of earlier steps, given that the depth was reached, with forgetting."""

    def __init__(self) -> None:
        self._accepted: list[float] = []
        self._tried: list[float] = []

    def verdict(self, *, num_verified: int, num_accepted: int) -> None:
        """A chain of `num_verified` nodes was accepted up to `num_accepted` of them."""
        for depth in range(min(num_accepted + 1, num_verified)):
            if depth == len(self._tried):
                self._accepted.append(_PRIOR_ACCEPTED)
                self._tried.append(_PRIOR_TRIED)
            self._accepted[depth] = self._accepted[depth] * _KEEP + (depth < num_accepted)
            self._tried[depth] = self._tried[depth] * _KEEP + 1.0

    def survival(self, length: int) -> Sequence[float]:
        """(length,) probability that the first 1, 2, ... nodes of a chain are all accepted."""
        survival, product = [], 1.0
        for depth in range(length):
            known = min(depth, len(self._tried) - 1)
            product *= self._accepted[known] / self._tried[known] if known >= 0 else _PRIOR_ACCEPTED / _PRIOR_TRIED
            survival.append(product)
        return survival
