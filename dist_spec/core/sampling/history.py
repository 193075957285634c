"""What the penalties count: the committed tokens of one request, and on top of them the drafted tokens of one path. It
knows neither logits nor who drafted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

IdArray = npt.NDArray[np.int64]


class History:
    """Occurrences in one request's committed text, extended by newly committed tokens only (law 1: the text only grows).

    Drafted tokens never enter: `with_path` counts them on top, so nothing has to be undone when they are rejected.

    Args:
        tokens: prompt first, then output; the list may grow behind our back, only what `extend` named is read.
        prompt_length: how many of them are prompt.
        length: how many of them are committed (default: all).
    """

    def __init__(self, tokens: Sequence[int], *, prompt_length: int, length: int | None = None) -> None:
        self.source = tokens
        self.prompt_length = prompt_length
        self.length = 0
        self._place: dict[int, int] = {}
        self._ids = np.empty(64, dtype=np.int64)
        self._counts = np.empty(64, dtype=np.int64)
        self.extend(len(tokens) if length is None else length)

    @property
    def num_generated(self) -> int:
        return max(self.length - self.prompt_length, 0)

    @property
    def ids(self) -> IdArray:
        """(n,) int64: every id seen in prompt or output, once."""
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> IdArray:
        """(n,) int64, parallel to `ids`: occurrences in the output (0 for those in the prompt only)."""
        return self._counts[: len(self._place)]

    def extend(self, length: int) -> None:
        """Count the tokens up to `length`."""
        if length < self.length:
            raise ValueError(f"a committed text of {self.length} tokens cannot shrink to {length}")
        for position in range(self.length, length):
            token = self.source[position]
            place = self._place.get(token)
            if place is None:
                place = self._add(token)
            self._counts[place] += position >= self.prompt_length
        self.length = length

    def _add(self, token: int) -> int:
        place = self._place[token] = len(self._place)
        if place == len(self._ids):
            self._ids, self._counts = (np.concatenate([old, np.empty_like(old)]) for old in (self._ids, self._counts))
        self._ids[place], self._counts[place] = token, 0
        return place

    def with_path(self, path: Sequence[int]) -> tuple[IdArray, IdArray]:
        """Ids of the drafted tokens `path`, each once, and their occurrences in output and path together."""
        totals: dict[int, int] = {}
        for token in path:
            if token not in totals:
                place = self._place.get(token)
                totals[token] = 0 if place is None else int(self._counts[place])
            totals[token] += 1
        return np.array(list(totals), dtype=np.int64), np.array(list(totals.values()), dtype=np.int64)

    def ending(self, count: int, path: Sequence[int]) -> list[int]:
        """The last `count` tokens of output and path together (fewer when there are fewer)."""
        from_output = max(count - len(path), 0)
        start = max(self.length - from_output, self.prompt_length)
        return [*self.source[start : max(self.length, start)], *path][-count:] if count else []
