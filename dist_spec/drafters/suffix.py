"""Suffix lookup: guess that the text goes on as texts mostly did after its longest known ending. It has no model and
knows nothing of the target, of noise or of time.

The idea is that of SuffixDecoding (Oliaro et al., arXiv 2411.04975): besides the request's own text, the texts of
earlier requests and given files are searched, and frequent continuations come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dist_spec.core.types import Expansion
from dist_spec.drafters.suffix_index import MAX_MATCH, Ending, SuffixIndex
from dist_spec.drafters.suffix_merge import Continuation, merge
from dist_spec.errors import ConfigError

if TYPE_CHECKING:
    from dist_spec.drafters.base import ExpandRow, RequestKey

_NUM_COMPARED = 6  # places whose continuations are compared
_OTHER_MATCH = 2  # shortest ending looked up in other texts: one token says nothing there
_MAX_OWN = 1 << 24  # tokens of one request that are searched
_MAX_EXPECTED = 1 << 14


class SuffixDrafter:
    """Continuations after the longest matching endings, weighed by match length and number.

    Args:
        num_draft_tokens: longest chain of guesses.
        remember: keep the texts of ended requests for later ones, until `forget`.
        max_tokens: tokens kept of them; the oldest are dropped.
        corpus: texts (token ids) that are searched as well and never forgotten.

    Raises:
        ConfigError: a setting is out of range.
    """

    kind = "suffix"

    def __init__(
        self,
        *,
        num_draft_tokens: int = 16,
        remember: bool = True,
        max_tokens: int = 1_000_000,
        corpus: Sequence[Sequence[int]] = (),
    ) -> None:
        if num_draft_tokens < 1 or max_tokens < 1:
            raise ConfigError(f"num_draft_tokens ({num_draft_tokens}) and max_tokens ({max_tokens}) must be at least 1")
        self.num_draft_tokens = num_draft_tokens
        self.remember = remember
        self._store = SuffixIndex(max_tokens=max_tokens, expected=max_tokens, min_match=_OTHER_MATCH)
        total = max(sum(len(text) + 1 for text in corpus), 1)
        self._corpus = SuffixIndex(max_tokens=total + 1, expected=total, min_match=_OTHER_MATCH)
        for text in corpus:
            self._corpus.add_text(text)
        self._own: dict[RequestKey, SuffixIndex] = {}
        self._texts: dict[RequestKey, list[int]] = {}  # the growing lists themselves: they end later than any lookup

    @property
    def stored_tokens(self) -> int:
        """Tokens kept of ended requests (one more per text: they are kept apart)."""
        return self._store.num_tokens

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        """See `Drafter.expand`."""
        return [self._expand_row(row) for row in rows]

    def close(self, key: RequestKey) -> None:
        """See `Drafter.close`; the request's text is kept for others."""
        self._own.pop(key, None)
        text = self._texts.pop(key, None)
        if text and self.remember:
            self._store.add_text(text)

    def forget(self) -> None:
        """Drop the texts of ended requests."""
        self._store.clear()

    def _expand_row(self, row: ExpandRow) -> list[Expansion]:
        own = self._own.get(row.key)
        if own is None:
            expected = min(len(row.history) + row.sampling.max_tokens, _MAX_EXPECTED)
            own = self._own[row.key] = SuffixIndex(max_tokens=_MAX_OWN, expected=expected)
        self._texts[row.key] = row.history
        own.extend(row.history[own.size :])
        expansions = []
        for leaf in row.leaves:
            continuations = self._continuations(own, row.history, row.tree.path_tokens(leaf))
            expansions.append(merge(continuations, length=self.num_draft_tokens, width=row.width))
        return expansions

    def _continuations(self, own: SuffixIndex, history: list[int], path: list[int]) -> list[Continuation]:
        """What followed the best matches of all sources, longest match first."""
        ending = Ending((history[-MAX_MATCH:] + path)[-MAX_MATCH:])
        length, sources = self.num_draft_tokens, (own, self._store, self._corpus)
        found = [
            (matched, -number, position)  # of equal matches, the request's own come first, then the latest
            for number, source in enumerate(sources)
            for matched, position in source.occurrences(ending)
        ]
        found.sort(reverse=True)
        continuations = []
        for matched, number, position in found[:_NUM_COMPARED]:
            if number == 0:
                tokens = _periodic(own, path, position, length)
            else:
                tokens = sources[-number].following(position, length)
            if tokens:
                continuations.append(Continuation(matched, tokens))
        return continuations


def _periodic(own: SuffixIndex, path: list[int], position: int, length: int) -> list[int]:
    """What followed a place in the request's own text. Where that reaches the end it goes on through the path and then
    through itself, so a text that repeats itself is continued periodically."""
    tokens = own.following(position, length)
    if len(tokens) < length:
        tokens += path[: length - len(tokens)]
        period = len(tokens)
        for _ in range(length - period):
            tokens.append(tokens[-period])
    return tokens
