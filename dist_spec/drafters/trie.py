"""Several strings of ids below one leaf, put together as one sub-tree. It knows no models and no vocabularies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dist_spec.core.types import NO_PARENT, Expansion


class Trie:
    """Strings with a common beginning share its nodes; each node keeps the highest score it was given."""

    def __init__(self) -> None:
        self._at: dict[tuple[int, int], int] = {}
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._paths: list[float] = []

    def add(self, tokens: Sequence[int], scores: Sequence[float]) -> None:
        """Add a string.

        Args:
            scores: per token, the log of the estimated probability of the string up to and including it.
        """
        above, bound = NO_PARENT, 0.0
        for token, score in zip(tokens, scores, strict=True):
            bound = min(bound, score)
            node = self._at.get((above, token))
            if node is None:
                node = self._at[above, token] = len(self._tokens)
                self._tokens.append(token)
                self._parents.append(above)
                self._paths.append(bound)
            self._paths[node] = max(self._paths[node], bound)
            above = node

    def expansion(self) -> Expansion:
        """All strings; siblings in the order of their scores."""
        if not self._tokens:
            return Expansion.empty()
        order = sorted(range(len(self._tokens)), key=lambda node: (-self._paths[node], node))  # parents stay first
        number = {node: i for i, node in enumerate(order)} | {NO_PARENT: NO_PARENT}
        edges = [self._paths[n] - (self._paths[p] if (p := self._parents[n]) >= 0 else 0.0) for n in order]
        return Expansion(
            tokens=np.array([self._tokens[node] for node in order], np.int32),
            parents=np.array([number[self._parents[node]] for node in order], np.int32),
            scores=np.minimum(np.array(edges, np.float32), 0.0),
        )
