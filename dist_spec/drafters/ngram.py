"""Prompt lookup: guess that the text goes on as it did after the last occurrence of its current ending. It has no model
and knows nothing of the target, of noise or of time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dist_spec.core.types import NO_PARENT, Expansion
from dist_spec.drafters.ngram_index import MAX_MATCH, NgramIndex
from dist_spec.errors import ConfigError

if TYPE_CHECKING:
    from dist_spec.drafters.base import ExpandRow, RequestKey

NUM_FEATURES = 4
"""Of a guess: its score, match length, rank of its chain, step along the chain (both from 0)."""

_LEARN_PROMPT = 128  # prompt tokens that the hit rates are learned from: learning costs more than indexing


class NgramDrafter:
    """Guesses from the request's own text, with the probability that such guesses were right so far.

    A guess is scored by the length of the match behind it; along a chain the match grows by one with every token, so
    one table of hit rates by match length serves heads and continuations.

    Args:
        max_ngram: longest ending looked up (tokens).
        min_ngram: shortest.
        num_draft_tokens: longest chain of guesses.
        max_chains: different continuations offered below one leaf (each begins with another token); `ExpandRow.width`
            may lower it.

    Raises:
        ConfigError: a setting is out of range.
    """

    kind = "ngram"

    def __init__(
        self, *, max_ngram: int = 4, min_ngram: int = 1, num_draft_tokens: int = 8, max_chains: int = 3
    ) -> None:
        if not 1 <= min_ngram <= max_ngram <= MAX_MATCH:
            raise ConfigError(
                f"n-gram lengths need 1 <= min_ngram <= max_ngram <= {MAX_MATCH}, got {min_ngram} and {max_ngram}"
            )
        if num_draft_tokens < 1 or max_chains < 1:
            raise ConfigError(f"num_draft_tokens ({num_draft_tokens}) and max_chains ({max_chains}) must be at least 1")
        self.max_ngram = max_ngram
        self.min_ngram = min_ngram
        self.num_draft_tokens = num_draft_tokens
        self.max_chains = max_chains
        self._indices: dict[RequestKey, NgramIndex] = {}

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        """See `Drafter.expand`."""
        return [self._expand_row(row) for row in rows]

    def close(self, key: RequestKey) -> None:
        """See `Drafter.close`; nothing of the request is kept."""
        self._indices.pop(key, None)

    def _expand_row(self, row: ExpandRow) -> list[Expansion]:
        index = self._indices.get(row.key)
        if index is None:
            index = self._indices[row.key] = NgramIndex(
                max_ngram=self.max_ngram, min_ngram=self.min_ngram, max_guesses=self.max_chains
            )
        index.extend(row.history, learn_from=row.prompt_length - _LEARN_PROMPT)
        width = min(row.width, self.max_chains)
        return [self._expand_leaf(index, row.history, row.tree.path_tokens(leaf), width) for leaf in row.leaves]

    def _expand_leaf(self, index: NgramIndex, history: list[int], path: list[int], width: int) -> Expansion:
        """The best nodes of up to `width` chains below the leaf, most likely chain first."""
        tail = (history[-MAX_MATCH:] + path)[-MAX_MATCH:]
        heads: list[tuple[float, int, int, int]] = []  # probability, match length, start, rank
        open_probability = 1.0  # that no earlier guess is the right one
        for rank, (length, start) in enumerate(index.matches(history, tail, limit=width)):
            hit = index.hit_rate(length, rank=rank)
            heads.append((open_probability * hit, length, start, rank))
            open_probability *= 1.0 - hit
        heads.sort(key=_by_probability)  # learned rates need not fall with the rank
        tokens: list[int] = []
        parents: list[int] = []
        features: list[tuple[float, int, int, int]] = []
        scores = [self._scores(index, probability, length) for probability, length, _, _ in heads]
        for (_, length, start, rank), chain, depth in zip(heads, scores, self._depths(scores), strict=True):
            first = len(tokens)
            tokens += self._chain(history, path, start)[:depth]
            parents += [NO_PARENT, *range(first, first + depth - 1)][:depth]
            features += [(chain[step], min(length + step, MAX_MATCH), rank, step) for step in range(depth)]
        columns = np.array(features, dtype=np.float32).reshape(-1, NUM_FEATURES)
        return Expansion(
            tokens=np.array(tokens, dtype=np.int32),
            parents=np.array(parents, dtype=np.int32),
            scores=columns[:, 0].copy(),
            features=columns,
        )

    def _scores(self, index: NgramIndex, probability: float, length: int) -> list[float]:
        """Edge scores along a chain whose first token has `probability`."""
        later = (index.hit_rate(length + step, rank=0) for step in range(1, self.num_draft_tokens))
        return [math.log(probability), *map(math.log, later)]

    def _depths(self, chains: list[list[float]]) -> list[int]:
        """How far to follow each chain so that the nodes of highest path score are taken: what a chain that is probably
        wrong would take of messages and trees is not worth it."""
        limit = self.num_draft_tokens + self.max_chains
        depths = [0] * len(chains)
        tips = [(-chain[0] if chain else 0.0, number) for number, chain in enumerate(chains)]
        heapq.heapify(tips)
        taken = 0
        while tips and taken < limit:
            score, number = heapq.heappop(tips)
            depths[number] += 1
            taken += 1
            if depths[number] < len(chains[number]):
                heapq.heappush(tips, (score - chains[number][depths[number]], number))
        return depths

    def _chain(self, history: list[int], path: list[int], start: int) -> list[int]:
        """What followed the match. Where that reaches the end of the text it goes on through the path and the chain
        itself, so a text that repeats itself is continued periodically."""
        chain = history[start : start + self.num_draft_tokens]
        at = start + len(chain) - len(history)
        while len(chain) < self.num_draft_tokens:
            chain.append(path[at] if at < len(path) else chain[at - len(path)])
            at += 1
        return chain


def _by_probability(head: tuple[float, int, int, int]) -> float:
    return -head[0]
