"""What the leader tells its followers before every step, as arrays of whole numbers: all they need to do the very same
work, and nothing of requests. It knows no tensors and no process group.

An order is one fixed-size block (kind, pool, length, and what fits of the content) and, where that is not enough, a second
array of the length it tells. Whole numbers throughout: floats and unsigned words travel as their bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dist_spec.core.noise import NoiseKey
from dist_spec.core.types import ForwardRow

Words: TypeAlias = npt.NDArray[np.int64]

HEADER_WORDS = 512
"""4 KB: a step of one or a few requests fits into it whole."""
_FIXED = 3
INLINE_WORDS = HEADER_WORDS - _FIXED
_ROW_WORDS = 10


class Kind(IntEnum):
    """IDLE: nothing to do, all is well. POOL: make a KV cache. STEP: run a packed forward. STOCK: run transformers' own
    forward of one sequence. STOP: part."""

    IDLE = 0
    POOL = 1
    STEP = 2
    STOCK = 3
    STOP = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """How the next token of one row is chosen, where that is an argmax: of the logits (temperature 0), or of
    logits / temperature + noise.

    Attributes:
        key, index: of the noise of the token after the last pending one.
    """

    temperature: float = 0.0
    key: NoiseKey = (0, 0)
    index: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOrder:
    """One packed forward.

    Attributes:
        rows: as `ModelRunner.forward` takes them.
        wishes: per row how its tokens are chosen; None: the leader wants the logits themselves.
        moves: KV slots (from, to) to be copied before the forward: what the last verdict accepted.
        with_margin: second-best scores are wanted too.
    """

    rows: Sequence[ForwardRow]
    wishes: Sequence[Wish | None]
    moves: tuple[Sequence[int], Sequence[int]] = field(default=((), ()))
    with_margin: bool = False


def block(kind: Kind, *, pool: int, content: Words) -> Words:
    """(HEADER_WORDS,) int64, the first part of an order."""
    header = np.zeros(HEADER_WORDS, dtype=np.int64)
    header[:_FIXED] = kind, pool, len(content)
    if len(content) <= INLINE_WORDS:
        header[_FIXED : _FIXED + len(content)] = content
    return header


def opened(header: Words) -> tuple[Kind, int, int, Words | None]:
    """(kind, pool, length of the content, the content where it is within)."""
    kind, pool, length = (int(word) for word in header[:_FIXED])
    return Kind(kind), pool, length, header[_FIXED : _FIXED + length] if length <= INLINE_WORDS else None


def encode(step: StepOrder, *, block_size: int) -> Words:
    """A step as one array."""
    source, target = step.moves
    parts = [_words(len(step.rows), len(source), step.with_margin), _words(*source), _words(*target)]
    for row, wish in zip(step.rows, step.wishes, strict=True):
        blocks = -(-(row.cached + len(row.tokens)) // block_size)  # the rest of the table is not looked at
        sizes = (blocks, len(row.tokens), row.num_pending, row.cached, row.num_logits)
        parts += [_words(*sizes), _wish_words(wish)]
        parts += [array.astype(np.int64) for array in (row.block_table[:blocks], row.tokens, row.parents)]
    return np.concatenate(parts)


def decode(words: Words) -> StepOrder:
    """The step that `encode` was given (but for block tables, which are cut to what is looked at)."""
    num_rows, num_moves, with_margin = words[:3].tolist()
    at = 3 + 2 * num_moves
    moves = words[3 : 3 + num_moves].tolist(), words[3 + num_moves : at].tolist()
    rows: list[ForwardRow] = []
    wishes: list[Wish | None] = []
    for _ in range(num_rows):
        blocks, count, pending, cached, num_logits = words[at : at + 5].tolist()
        wishes.append(_wish(words[at + 5 : at + _ROW_WORDS]))
        at += _ROW_WORDS
        ends = [at, at + blocks, at + blocks + count, at + blocks + 2 * count - pending]
        table, tokens, parents = (words[i:j].astype(np.int32) for i, j in pairwise(ends))
        rows.append(
            ForwardRow(
                block_table=table,
                cached=cached,
                tokens=tokens,
                num_pending=pending,
                parents=parents,
                num_logits=num_logits,
            )
        )
        at = ends[-1]
    return StepOrder(rows=rows, wishes=wishes, moves=moves, with_margin=bool(with_margin))


def _words(*numbers: int) -> Words:
    return np.array(numbers, dtype=np.int64)


def _wish_words(wish: Wish | None) -> Words:
    if wish is None:
        return np.zeros(5, dtype=np.int64)
    bits = np.array([wish.temperature], dtype=np.float64).view(np.int64)
    return np.concatenate([_words(1), bits, np.array(wish.key, dtype=np.uint64).view(np.int64), _words(wish.index)])


def _wish(words: Words) -> Wish | None:
    if not words[0]:
        return None
    key = np.ascontiguousarray(words[2:4]).view(np.uint64).tolist()
    temperature = float(np.ascontiguousarray(words[1:2]).view(np.float64)[0])
    return Wish(temperature=temperature, key=(key[0], key[1]), index=int(words[4]))
