"""Where the ending of a text occurred before, in texts of bounded total length. It knows nothing of trees, drafters or
requests.

Hash chains, as data compressors use them: for each of a few ending lengths, a table leads from the hash of an ending to
the latest place where it stood, and every place leads to the one before. Matches are compared token by token, so a
collision costs time only. A token costs 4 bytes for itself and 4 per ending length; the oldest tokens are overwritten.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MAX_MATCH = 16
"""Longest match that is told apart (tokens); longer ones count as this long."""

SEPARATOR = -1
"""Stands between texts; no match reaches across it."""

_LENGTHS = (8, 4, 2, 1)  # of the endings that are hashed; each is made of two of the next one
_LOOK = 8  # places looked at per length, latest first
_ENOUGH = 4  # places found, beyond which shorter endings are not looked up
_BULK = 64  # tokens from which on whole arrays are cheaper than single steps
_FACTOR, _SPREAD = 0x85EBCA6B, 0x9E3779B1  # odd and unrelated: one joins endings, one spreads them over the table
_MASK = 0xFFFFFFFF
_MAX_POSITION = 2**31 - 1
_MIN_BITS, _MAX_BITS = 10, 20


class Ending:
    """The last tokens of a text, prepared for lookup.

    Attributes:
        backwards: the last token first, at most `MAX_MATCH`.
        hashes: by length.
    """

    __slots__ = ("backwards", "hashes")

    def __init__(self, tokens: Sequence[int]) -> None:
        self.backwards = tokens[: -MAX_MATCH - 1 : -1]
        self.hashes = _hashes(self.backwards)


class SuffixIndex:
    """Texts one after the other; a position counts all tokens ever taken in.

    Args:
        max_tokens: tokens that can be found again; what is older is overwritten.
        expected: tokens to expect (sets the size of the hash tables, nothing else).
        min_match: shortest ending looked up (1, 2, 4 or 8).
    """

    def __init__(self, *, max_tokens: int, expected: int, min_match: int = 1) -> None:
        self._max_tokens = max_tokens
        self._ring = (1 << max(max_tokens - 1, 1).bit_length()) - 1  # a position's place is `position & ring`
        self._bits = min(max((expected - 1).bit_length(), _MIN_BITS), _MAX_BITS)
        self._lengths = tuple(length for length in _LENGTHS if length >= min_match)
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.size = 0
        self._tokens = array("i")
        self._heads: list[array[int]] = []  # made with the first token: an index that stays empty costs nothing
        self._earlier = [array("i") for _ in self._lengths]  # [length][place] -> the same ending's place before

    @property
    def num_tokens(self) -> int:
        """Tokens that can be found again."""
        return self.size - self._oldest

    @property
    def num_bytes(self) -> int:
        """Memory of the arrays."""
        return sum(4 * len(one) for one in (self._tokens, *self._heads, *self._earlier))

    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on with `tokens`."""
        if not tokens:
            return
        tokens = tokens[-self._max_tokens :]
        if len(tokens) == self._max_tokens or self.size + len(tokens) >= _MAX_POSITION:
            self.clear()
        if not self._heads:
            self._heads = [array("i", [-1]) * (1 << self._bits) for _ in self._lengths]
        if len(tokens) >= _BULK:
            self._extend_bulk(np.asarray(tokens, dtype=np.int32))
            return
        for token in tokens:
            self._append(token)

    def add_text(self, tokens: Sequence[int]) -> None:
        """Another text, which has nothing to do with those before it."""
        self.extend([*tokens[1 - self._max_tokens :], SEPARATOR] if self._max_tokens > 1 else [])

    def tokens(self) -> list[int]:
        """What can be found again, oldest first."""
        ring, stored = self._ring, self._tokens
        return [stored[p & ring] for p in range(self._oldest, self.size)]

    def occurrences(self, ending: Ending) -> list[tuple[int, int]]:
        """Earlier places of an ending: (match length, position of the token that followed) of a few, in no order."""
        if not self._heads:
            return []
        found: dict[int, int] = {}
        oldest, ring, shift = max(self.size - self._max_tokens, 0), self._ring, 32 - self._bits
        for length, heads, earlier in zip(self._lengths, self._heads, self._earlier, strict=True):
            if length not in ending.hashes:
                continue
            position = heads[(ending.hashes[length] * _SPREAD & _MASK) >> shift]
            for _ in range(_LOOK):
                if position < oldest:
                    break
                if position not in found:
                    matched = self._matched(position, ending.backwards)
                    if matched >= length:
                        found[position] = matched
                position = earlier[position & ring]
            if len(found) >= _ENOUGH:
                break
        return [(matched, position) for position, matched in found.items()]

    def following(self, position: int, length: int) -> list[int]:
        """Up to `length` tokens from `position` on, as far as the text there goes."""
        place, stored = position & self._ring, self._tokens
        end = place + min(length, self.size - position)
        tokens = stored[place:end].tolist()
        if end > len(stored):  # the ring begins anew
            tokens += stored[: end - len(stored)].tolist()
        return tokens[: tokens.index(SEPARATOR)] if SEPARATOR in tokens else tokens

    @property
    def _oldest(self) -> int:
        return max(0, self.size - self._max_tokens)

    def _matched(self, position: int, backwards: Sequence[int]) -> int:
        """Length of the match that ends just before `position`."""
        stored, place = self._tokens, position & self._ring
        limit = min(len(backwards), position - self._oldest)
        if place >= limit:
            before = stored[place - limit : place]
            before.reverse()
            for matched, token in enumerate(before):
                if token != backwards[matched]:
                    return matched
            return limit
        for matched in range(limit):
            if stored[(position - 1 - matched) & self._ring] != backwards[matched]:
                return matched
        return limit

    def _append(self, token: int) -> None:
        """Index the endings before the new token, then the token."""
        position, ring, stored = self.size, self._ring, self._tokens
        backwards = [stored[(position - back) & ring] for back in range(1, min(position, _LENGTHS[0]) + 1)]
        hashes, shift, place = _hashes(backwards), 32 - self._bits, position & ring
        for length, heads, earlier in zip(self._lengths, self._heads, self._earlier, strict=True):
            before = -1
            if length <= len(backwards):
                slot = (hashes[length] * _SPREAD & _MASK) >> shift
                before, heads[slot] = heads[slot], position
            if place < len(earlier):
                earlier[place] = before
            else:
                earlier.append(before)
        if place < len(stored):
            stored[place] = token
        else:
            stored.append(token)
        self.size = position + 1

    def _extend_bulk(self, tokens: npt.NDArray[np.int32]) -> None:
        """The same for many tokens at once, by sorting the hashes."""
        size, ring, longest = self.size, self._ring, _LENGTHS[0]
        context = [self._tokens[p & ring] for p in range(max(size - longest, self._oldest), size)]
        text = np.concatenate([np.array(context, np.int32), tokens]).astype(np.int64).astype(np.uint64) & np.uint64(
            _MASK
        )
        positions = np.arange(size, size + len(tokens), dtype=np.int32)
        places = positions & np.int32(ring)
        room = min(size + len(tokens), ring + 1) - len(self._tokens)
        for stored in (self._tokens, *self._earlier):
            stored.frombytes(np.full(max(room, 0), -1, np.int32).tobytes())
        np.frombuffer(self._tokens, np.int32)[places] = tokens
        hashes = _hashes_of(text)
        for length, heads, earlier in zip(self._lengths, self._heads, self._earlier, strict=True):
            skipped = max(length - len(context), 0)  # endings that begin before the first text
            ends = hashes[length][len(context) + skipped - 1 : -1] if len(context) + skipped else hashes[length][:0]
            slots = ((ends * np.uint64(_SPREAD) & np.uint64(_MASK)) >> np.uint64(32 - self._bits)).astype(np.int64)
            _chain(slots, positions[skipped:], ring=ring, heads=heads, earlier=earlier)
            np.frombuffer(earlier, np.int32)[places[:skipped]] = -1
        self.size = size + len(tokens)


def _hashes(backwards: Sequence[int]) -> dict[int, int]:
    """Hash of each ending by its length; `backwards` begins with the last token."""
    level = [token & _MASK for token in backwards[: _LENGTHS[0]]]
    hashes: dict[int, int] = {}
    for length in reversed(_LENGTHS):
        if not level:
            break
        hashes[length] = level[0]
        pairs = iter(level)
        level = [(later * _FACTOR + earlier) & _MASK for later, earlier in zip(pairs, pairs, strict=False)]
    return hashes


def _hashes_of(text: npt.NDArray[np.uint64]) -> dict[int, npt.NDArray[np.uint64]]:
    """[length][i]: hash of the ending of that length whose last token is `text[i]` (nonsense where it is too short)."""
    hashes = {1: text}
    for step in (1, 2, 4):
        half = hashes[step]
        before = np.concatenate([np.zeros(step, np.uint64), half[:-step]])[: len(half)]
        hashes[2 * step] = (half * np.uint64(_FACTOR) + before) & np.uint64(_MASK)
    return hashes


def _chain(
    slots: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int32],
    *,
    ring: int,
    heads: array[int],
    earlier: array[int],
) -> None:
    """Enter many endings into one table and its chains, in the order of their positions."""
    if not len(slots):
        return
    order = np.argsort(slots, kind="stable")
    slots, positions = slots[order], positions[order]
    first = np.concatenate([[True], slots[1:] != slots[:-1]])
    table = np.frombuffer(heads, np.int32)
    before = np.concatenate([positions[:1], positions[:-1]])
    np.frombuffer(earlier, np.int32)[positions & np.int32(ring)] = np.where(first, table[slots], before)
    last = np.concatenate([first[1:], [True]])
    table[slots[last]] = positions[last]
