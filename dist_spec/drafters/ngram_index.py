"""Where each short ending occurred in one growing text, and how often the text went on as it had before. It knows
nothing of trees, drafters or requests."""

from __future__ import annotations

MAX_MATCH = 8
"""Longest match that is told apart (tokens); longer ones count as this long."""

_RECENT = 6  # occurrences of one n-gram looked at, latest first
_FORGET = 0.97  # per observation: about the last 33 count
_PRIOR_RATE = (0.0, 0.15, 0.3, 0.45, 0.6, 0.68, 0.74, 0.78, 0.8)  # by match length
_PRIOR_RATE_LATER = 0.25  # of a second or third guess, given that those before it are wrong
_PRIOR_WEIGHT = 4.0
_NOWHERE = -1


class NgramIndex:
    """Incremental index of one text.

    Args:
        max_ngram, min_ngram: lengths looked up.
        max_guesses: ranks whose hit rates are learned.
    """

    def __init__(self, *, max_ngram: int, min_ngram: int, max_guesses: int) -> None:
        self._lengths = range(max_ngram, min_ngram - 1, -1)
        self._max_guesses = max_guesses
        self._latest: dict[tuple[int, ...], int] = {}  # n-gram -> position that followed its latest occurrence
        self._earlier: list[list[int]] = [[_NOWHERE] for _ in range(max_ngram + 1)]  # [n][position] -> the one before
        self._size = 0
        self._hits = [rate * _PRIOR_WEIGHT for rate in _PRIOR_RATE]
        self._trials = [_PRIOR_WEIGHT] * len(_PRIOR_RATE)
        self._later_hits = [_PRIOR_RATE_LATER * _PRIOR_WEIGHT] * max_guesses
        self._later_trials = [_PRIOR_WEIGHT] * max_guesses

    def extend(self, text: list[int], *, learn_from: int) -> None:
        """Take in the tokens added to `text` since the last call; from `learn_from` on they teach hit rates."""
        for position in range(self._size, len(text)):
            if position > 0:
                if position >= learn_from:
                    self._learn(text, position)
                self._insert(text, position)
        self._size = len(text)

    def matches(self, text: list[int], tail: list[int], *, limit: int) -> list[tuple[int, int]]:
        """Earlier occurrences of an ending, each going on with another token.

        Args:
            text: the indexed text.
            tail: its last tokens plus any that are assumed to follow it.
            limit: matches wanted at most.

        Returns: (match length, position in `text` that followed), best first: the longest match, then the latest.
        """
        found: list[tuple[int, int]] = []
        firsts: set[int] = set()
        size = len(tail)
        for length in self._lengths:
            if length > size or len(found) >= limit:
                continue
            for match in self._occurrences(text, tail, length):
                first = text[match[1]]
                if first not in firsts:
                    firsts.add(first)
                    found.append(match)
        return found[:limit]

    def hit_rate(self, length: int, *, rank: int) -> float:
        """Estimated probability, in (0, 1), that a guess is right.

        Args:
            length: of the match behind it (used for the first guess).
            rank: 0 for the first guess; otherwise given that all guesses before it are wrong.
        """
        if rank == 0:
            bucket = min(length, MAX_MATCH)
            rate = self._hits[bucket] / self._trials[bucket]
        else:
            rate = self._later_hits[rank] / self._later_trials[rank]
        return min(max(rate, 0.005), 0.995)

    def _occurrences(self, text: list[int], tail: list[int], length: int) -> list[tuple[int, int]]:
        """(match length, position after) of the latest occurrences of the last `length` tokens, longest match first."""
        position = self._latest.get(tuple(tail[-length:]), _NOWHERE)
        earlier = self._earlier[length]
        found: list[tuple[int, int]] = []
        while position != _NOWHERE and len(found) < _RECENT:
            matched = length
            limit = min(MAX_MATCH, len(tail), position)
            while matched < limit and text[position - 1 - matched] == tail[-1 - matched]:
                matched += 1
            found.append((matched, position))
            position = earlier[position]
        found.sort(key=_by_length)
        return found

    def _insert(self, text: list[int], position: int) -> None:
        """Index the n-grams that end just before `position`."""
        for length in range(1, len(self._earlier)):
            before = _NOWHERE
            if length in self._lengths and length <= position:
                gram = tuple(text[position - length : position])
                before = self._latest.get(gram, _NOWHERE)
                self._latest[gram] = position
            self._earlier[length].append(before)

    def _learn(self, text: list[int], position: int) -> None:
        """Count what would have been guessed at `position` against what stands there."""
        tail = text[max(0, position - MAX_MATCH) : position]
        for rank, (length, start) in enumerate(self.matches(text, tail, limit=self._max_guesses)):
            hit = text[start] == text[position]
            hits, trials, at = (
                (self._hits, self._trials, length) if rank == 0 else (self._later_hits, self._later_trials, rank)
            )
            hits[at] = _FORGET * hits[at] + hit
            trials[at] = _FORGET * trials[at] + 1.0
            if hit:
                return


def _by_length(match: tuple[int, int]) -> int:
    return -match[0]
