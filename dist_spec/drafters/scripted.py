"""A drafter that knows the text to come and errs by a rank law: for simulations and measurements without a model. It
knows nothing of the target, of noise or of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dist_spec.core.types import NO_PARENT, Expansion
from dist_spec.drafters.rank_law import RankLaw
from dist_spec.errors import ConfigError

if TYPE_CHECKING:
    from dist_spec.core.tree import DraftTree
    from dist_spec.drafters.base import ExpandRow, RequestKey

__all__ = ["RankLaw", "ScriptedDrafter", "Truth"]

Truth: TypeAlias = "Callable[[RequestKey, Sequence[int]], Sequence[int]]"
"""(request, its history when first seen) -> its whole text (prompt and what will be committed), by position."""

_TRUE, _FALSE, _UNKNOWN = 1, 0, -1  # values of `tree.slot`
_VARIANTS = 16  # independent confidences for off-truth leaves of one position
_CACHED = 4096


class ScriptedDrafter:
    """Guesses with the rank law's hit rates and, as scores, the law's own probabilities.

    Below a leaf on the true path the truth stands at the drawn rank (or nowhere among `width` guesses) and decoys stand
    at the others; below any other leaf, and past the end of the truth, all guesses are decoys. Everything is a function
    of (seed, position), never of the order of calls, so a restarted or second drafter makes the same guesses.

    Args:
        truth: see `Truth`; asked once per request.
        law: the rank law.
        vocab_size: ids are drawn from 0 .. vocab_size - 1 (at least 2).
        seed: unsigned 64-bit.

    Raises:
        ConfigError: vocabulary too small.
    """

    kind = "scripted"

    def __init__(self, truth: Truth, *, law: RankLaw, vocab_size: int, seed: int = 0) -> None:
        if vocab_size < 2:
            raise ConfigError(f"a scripted drafter needs a vocabulary of at least 2, got {vocab_size}")
        self.law = law
        self._truth = truth
        self._vocab_size = vocab_size
        self._seed = seed
        self._scripts: dict[RequestKey, _Script] = {}

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        """See `Drafter.expand`. Expansions are shared between calls and read-only."""
        return [self._expand_row(row) for row in rows]

    def close(self, key: RequestKey) -> None:
        """See `Drafter.close`."""
        self._scripts.pop(key, None)

    def _expand_row(self, row: ExpandRow) -> list[Expansion]:
        script = self._scripts.get(row.key)
        if script is None:
            script = self._scripts[row.key] = _Script(self._truth(row.key, row.history))
        script.check(row.history)
        tree, truth, length, width = row.tree, script.truth, len(row.history), row.width
        expansions: list[Expansion] = []
        for leaf in row.leaves:
            position = length + tree.depth(leaf)
            on_truth = position < len(truth) and _on_truth(tree, leaf, script, length)
            stream = 0 if on_truth else 1 + tree.token[leaf] % _VARIANTS
            name = (position, stream, width)
            expansion = script.cache.get(name)
            if expansion is None:
                if len(script.cache) >= _CACHED:
                    script.cache.clear()
                expansion = script.cache[name] = self._guess(truth, position, stream, width)
            expansions.append(expansion)
        return expansions

    def _guess(self, truth: Sequence[int], position: int, stream: int, width: int) -> Expansion:
        """`width` guesses for one position; stream 0 is the true path."""
        confidence, rank, word = self.law.draw(self._seed, position, stream=stream)
        avoided = truth[position] if position < len(truth) else 0
        width = min(width, self._vocab_size - 1)  # decoys are all ids but one
        # Steps from the avoided id, all different and none a multiple of the vocabulary size.
        steps = (word + np.arange(width, dtype=np.int64)) % (self._vocab_size - 1) + 1
        tokens = ((avoided + steps) % self._vocab_size).astype(np.int32)
        if stream == 0 and 1 <= rank <= width:
            tokens[rank - 1] = avoided
        parents = np.full(width, NO_PARENT, dtype=np.int32)
        scores = self.law.scores(confidence, width=width)
        for array in (tokens, parents, scores):
            array.setflags(write=False)
        return Expansion(tokens=tokens, parents=parents, scores=scores)


class _Script:
    """One request's truth, how far its history was compared with it, and the guesses made so far."""

    __slots__ = ("agrees", "cache", "compared", "truth")

    def __init__(self, truth: Sequence[int]) -> None:
        self.truth = truth
        self.compared = 0
        self.agrees = True
        self.cache: dict[tuple[int, int, int], Expansion] = {}

    def check(self, history: list[int]) -> None:
        """Compare what was committed since the last call."""
        if self.agrees and self.compared < len(history):
            added = history[self.compared :]
            self.agrees = added == list(self.truth[self.compared : len(history)])
        self.compared = len(history)


def _on_truth(tree: DraftTree, node: int, script: _Script, length: int) -> bool:
    """Whether history and the path to `node` are true; remembered in `tree.slot`, so each node is compared once."""
    root, slot, token, parent = tree.root, tree.slot, tree.token, tree.parent
    unknown: list[int] = []
    while node != root and slot[node] == _UNKNOWN:
        unknown.append(node)
        node = parent[node]
    state = (_TRUE if script.agrees else _FALSE) if node == root else slot[node]
    position = length + tree.depth(node)
    for below in reversed(unknown):
        if state == _TRUE and (position >= len(script.truth) or token[below] != script.truth[position]):
            state = _FALSE
        slot[below] = state
        position += 1
    return state == _TRUE
