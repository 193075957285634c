"""Counter-based Gumbel noise, a pure function of (seed, sample, generated-token index, token id); it keeps no generator
state and knows nothing of models, trees or requests.

Philox4x64-10. One 256-bit counter names one block of four 64-bit words:

    counter = (token_id >> 2, generated index, epoch, domain)     lane = token_id & 3
    u       = ((bits >> 12) + 0.5) * 2**-52                       in (0, 1), exact in float64
    gumbel  = -log(-log(u))                                       float64

A whole row comes from numpy's C generator; single tokens come from the same function written with numpy integer
operations (`gumbel_at`). Both give the same bits. docs/adr/0002-noise-generator.md says why this generator.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "ACCEPT",
    "AUDIT",
    "DRAFT",
    "RESIDUAL",
    "TARGET",
    "GumbelArray",
    "NoiseKey",
    "NoiseRing",
    "gumbel_at",
    "gumbel_row",
    "philox_block",
    "request_key",
    "uniform",
    "word",
]

NoiseKey: TypeAlias = tuple[int, int]
"""Two unsigned 64-bit words, made by `request_key`."""

GumbelArray: TypeAlias = npt.NDArray[np.float64]

TARGET, DRAFT, ACCEPT, RESIDUAL, AUDIT = range(5)
"""Domains: the last counter word. Noise of one use never meets noise of another."""

_WORD = 2**64 - 1
_KEY_TAG = 0x6469737473706563  # "distspec"
_KEY_DOMAIN = 0x6B6579  # "key"
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_CHUNK = 16384  # tokens per pass of gumbel_row: raw words stay in the cache, whatever the vocabulary

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIER = np.array(_MULTIPLIERS, dtype=np.uint64)[:, None]
_MULTIPLIER_LOW = _MULTIPLIER & _LOW
_MULTIPLIER_HIGH = _MULTIPLIER >> _HALF


def request_key(seed: int, sample_index: int) -> NoiseKey:
    """128-bit key of one sample of one request: one Philox block of (seed, sample_index), both unsigned 64-bit."""
    words = philox_block((sample_index & _WORD, 0, 0, _KEY_DOMAIN), key=(seed & _WORD, _KEY_TAG))
    return words[0], words[1]


def philox_block(counter: tuple[int, int, int, int], *, key: NoiseKey) -> tuple[int, int, int, int]:
    """One Philox4x64-10 block: four words (least significant first) for one counter."""
    words = _generator(key, counter).random_raw(4).tolist()
    return words[0], words[1], words[2], words[3]


def word(key: NoiseKey, *, domain: int, index: int, epoch: int) -> int:
    """64 uniform bits of one decision (docs/adr/0009-rejection-randomness.md).

    Args:
        domain: DRAFT, ACCEPT or RESIDUAL (TARGET noise has no epoch).
        index: noise index of the token that is decided.
        epoch: unsigned 64-bit; what tells one attempt at this index from another: for DRAFT the digest of the prefix
            before the token, for ACCEPT and RESIDUAL the noise index at which the verification starts.
    """
    return philox_block((0, index, epoch, domain), key=key)[0]


def uniform(key: NoiseKey, *, domain: int, index: int, epoch: int) -> float:
    """The upper 53 bits of `word` as a number in [0, 1)."""
    return (word(key, domain=domain, index=index, epoch=epoch) >> 11) * 2.0**-53


def gumbel_row(
    key: NoiseKey, index: int, vocab_size: int, *, out: GumbelArray | None = None, domain: int = TARGET, first: int = 0
) -> GumbelArray:
    """Standard Gumbel noise of every token id at one generated-token index.

    Args:
        key: from `request_key`.
        index: generated-token index, 0 for the first token after the prompt.
        vocab_size: V.
        first: the ids are first .. first + V - 1 (a rank's slice of the vocabulary).
        out: (V,) float64, contiguous; overwritten and returned. Pass one: a fresh row costs page faults.
        domain: which stream (TARGET is the noise shared by target and drafters).
    """
    row = np.empty(vocab_size, dtype=np.float64) if out is None else out
    if row.shape != (vocab_size,) or row.dtype != np.float64 or not row.flags.c_contiguous:
        raise ValueError(f"out must be a contiguous float64 row of {vocab_size}, got {row.dtype} {row.shape}")
    generator = _generator(key, (first >> 2, index, 0, domain))
    generator.random_raw(first & 3)
    for start in range(0, vocab_size, _CHUNK):
        part = row[start : start + _CHUNK]
        _gumbel(generator.random_raw(len(part)), out=part)
    return row


def gumbel_at(key: NoiseKey, index: int | npt.ArrayLike, ids: npt.ArrayLike, *, domain: int = TARGET) -> GumbelArray:
    """Noise of chosen tokens; bit-identical to `gumbel_row(key, index, V)[ids]` for any V above them.

    Args:
        index: one generated-token index, or an array that broadcasts against `ids` (many positions in one call:
            the cost is mostly per call, not per token).
        ids: token ids, any shape.

    Returns: float64 of the broadcast shape.
    """
    token, position = np.broadcast_arrays(np.asarray(ids, dtype=np.int64), np.asarray(index, dtype=np.int64))
    if token.size and (int(token.min()) < 0 or int(position.min()) < 0):
        raise ValueError("token ids and noise indices must not be negative")
    flat = token.ravel().astype(np.uint64)
    even = np.zeros((2, flat.size), dtype=np.uint64)  # counter words 0 and 2
    odd = np.empty_like(even)  # counter words 1 and 3
    even[0] = flat >> np.uint64(2)
    odd[0] = position.ravel().astype(np.uint64)
    odd[1] = domain
    even, odd = _philox(even, odd, key)
    lane = flat & np.uint64(3)
    low, high = np.where(lane & np.uint64(1), odd, even)
    bits = np.where(lane & np.uint64(2), high, low)
    return _gumbel(bits, out=np.empty(flat.size, dtype=np.float64)).reshape(token.shape)


class NoiseRing:
    """Rows of noise made ahead of need, in a fixed set of buffers; the row used longest ago gives way.

    Not thread-safe. A returned row is read-only and stays valid until `capacity` other rows were asked for.

    Args:
        first: rows hold the ids first .. first + vocab_size - 1.

    Attributes:
        hits: rows asked for that were there.
        misses: rows asked for that had to be made on the spot.
        prepared: rows made ahead by `prepare`.
    """

    def __init__(self, vocab_size: int, capacity: int, *, first: int = 0) -> None:
        if vocab_size < 1 or capacity < 1:
            raise ValueError(f"a ring needs at least one token and one row, got {vocab_size} and {capacity}")
        self.vocab_size = vocab_size
        self.capacity = capacity
        self.first = first
        self.hits = 0
        self.misses = 0
        self.prepared = 0
        self._buffers = np.empty((capacity, vocab_size), dtype=np.float64)
        self._rows = [row.view() for row in self._buffers]
        for row in self._rows:
            row.setflags(write=False)
        self._slots: OrderedDict[tuple[NoiseKey, int], int] = OrderedDict()

    def prepare(self, key: NoiseKey, index: int) -> bool:
        """Make the row of `index` unless it is there. Returns whether it was made (that is, whether time was spent)."""
        if (key, index) in self._slots:
            self._slots.move_to_end((key, index))
            return False
        self._make(key, index)
        self.prepared += 1
        return True

    def row(self, key: NoiseKey, index: int) -> GumbelArray:
        """The row of `index`, (V,) float64, made now if it is not there."""
        slot = self._slots.get((key, index))
        if slot is None:
            self.misses += 1
            slot = self._make(key, index)
        else:
            self.hits += 1
            self._slots.move_to_end((key, index))
        return self._rows[slot]

    def _make(self, key: NoiseKey, index: int) -> int:
        if len(self._slots) < self.capacity:
            slot = len(self._slots)
        else:
            slot = self._slots.popitem(last=False)[1]
        gumbel_row(key, index, self.vocab_size, out=self._buffers[slot], first=self.first)
        self._slots[(key, index)] = slot
        return slot


def _generator(key: NoiseKey, counter: tuple[int, int, int, int]) -> np.random.Philox:
    """numpy's Philox, set so that its first block is that of `counter`."""
    position = sum(word << (64 * place) for place, word in enumerate(counter))
    position = (position - 1) % 2**256  # numpy counts up before it makes a block; counter 0 wraps around
    words = np.array([position >> shift & _WORD for shift in (0, 64, 128, 192)], dtype=np.uint64)
    return np.random.Philox(key=np.array(key, dtype=np.uint64), counter=words)


def _gumbel(bits: npt.NDArray[np.uint64], *, out: GumbelArray) -> GumbelArray:
    """-log(-log(u)) of 64-bit words; destroys `bits`."""
    np.right_shift(bits, np.uint64(12), out=bits)
    np.copyto(out, bits.view(np.int64), casting="same_kind")  # below 2**52: exact, and signed converts faster
    np.add(out, 0.5, out=out)
    np.multiply(out, 2.0**-52, out=out)
    for _ in range(2):
        np.log(out, out=out)
        np.negative(out, out=out)
    return out


def _philox(
    even: npt.NDArray[np.uint64], odd: npt.NDArray[np.uint64], key: NoiseKey
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Philox4x64-10 of n counters: rows of `even` are counter words 0 and 2, rows of `odd` words 1 and 3."""
    for number in range(_ROUNDS):
        bump = np.array([[key[0] + number * _WEYL[0] & _WORD], [key[1] + number * _WEYL[1] & _WORD]], dtype=np.uint64)
        high, low = _multiply(even)
        even = high[::-1] ^ odd
        even ^= bump
        odd = low[::-1]
    return even, odd


def _multiply(words: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """(high, low) 64-bit halves of the 128-bit products of both rows with their multipliers, by 32-bit halves."""
    low_half = words & _LOW
    high_half = words >> _HALF
    carry = low_half * _MULTIPLIER_LOW
    carry >>= _HALF
    carry += high_half * _MULTIPLIER_LOW
    middle = low_half * _MULTIPLIER_HIGH
    middle += carry & _LOW
    middle >>= _HALF
    carry >>= _HALF
    high = high_half * _MULTIPLIER_HIGH
    high += middle
    high += carry
    return high, words * _MULTIPLIER
