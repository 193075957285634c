"""Draft laws of a proposal as bytes and back, checked; knows nothing of the rule that weighs with them.

Per node a size (uint16): 0 for none, `_DENSE` for a whole row, else the number of ids. Then the ids of all sparse laws
one after the other, and their counts less one (uint16). Dense rows are float32 frames of their own, in node order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np

from dist_spec.core.law import LAW_TOTAL, DraftLaw
from dist_spec.core.types import IntArray
from dist_spec.errors import ProtocolError
from dist_spec.transports import fields as f
from dist_spec.transports.octets import Reader, token_bytes

MAX_LAW_IDS = 4096
"""Ids that one sparse law may name."""
MAX_DENSE = 256
"""Dense laws in one proposal, at most."""

_DENSE = 0xFFFF
_SIZE, _COUNT, _WEIGHT = np.dtype("<u2"), np.dtype("<u2"), np.dtype("<f4")


def law_bytes(laws: Sequence[DraftLaw | None]) -> tuple[int, bytes, list[bytes]]:
    """(code of the ids' width, sizes + ids + counts, dense rows).

    Raises:
        ProtocolError: a law names an id twice or too many, its counts are out of range or do not sum to `LAW_TOTAL`, or
            its weights are no finite numbers >= 0 with a sum above 0.
    """
    sparse = [law for law in laws if law is not None and len(law.ids)]
    dense = [law.weights.astype(_WEIGHT, copy=False) for law in laws if law is not None and not len(law.ids)]
    if len(dense) > MAX_DENSE or any(4 * len(row) > f.MAX_FRAME_BYTES for row in dense):
        raise ProtocolError(f"a proposal carries at most {MAX_DENSE} dense laws of {f.MAX_FRAME_BYTES} bytes each")
    if any(len(law.ids) > MAX_LAW_IDS or len(law.ids) != len(law.weights) for law in sparse):
        raise ProtocolError(f"a sparse law has as many counts as ids, at most {MAX_LAW_IDS}")
    for row in dense:
        _check_dense(row, f.MAX_VOCABULARY)
    sizes = np.array([0 if law is None else len(law.ids) or _DENSE for law in laws], _SIZE)
    ids = np.concatenate([law.ids for law in sparse]) if sparse else np.empty(0, np.int32)
    counts = np.concatenate([law.weights for law in sparse]) if sparse else np.empty(0, np.int64)
    if len(counts) and not (counts.min() >= 1 and counts.max() <= LAW_TOTAL and (counts == np.rint(counts)).all()):
        raise ProtocolError(f"laws: counts must be whole numbers in [1, {LAW_TOTAL}]")
    _check_sparse([len(law.ids) for law in sparse], ids, counts)
    code, named = token_bytes(ids)
    return code, sizes.tobytes() + named + (counts - 1).astype(_COUNT).tobytes(), [row.tobytes() for row in dense]


def read_laws(
    reader: Reader, rows: Sequence[memoryview], *, num_nodes: int, code: int, vocab_size: int
) -> tuple[DraftLaw | None, ...]:
    """One law or None per node; `rows` are the dense ones' frames."""
    sizes: list[int] = reader.array(_SIZE, num_nodes, "sizes of laws").tolist()
    named = [size for size in sizes if 0 < size < _DENSE]
    if sizes.count(_DENSE) != len(rows) or len(rows) > MAX_DENSE:
        raise ProtocolError(f"{len(rows)} frames where {sizes.count(_DENSE)} dense laws belong (at most {MAX_DENSE})")
    if max(named, default=0) > MAX_LAW_IDS:
        raise f.refuse("a law", f"at most {MAX_LAW_IDS} ids", max(named))
    ids = reader.tokens(sum(named), code, "laws", vocab_size=vocab_size)
    counts = reader.array(_COUNT, sum(named), "laws").astype(np.int64) + 1
    _check_sparse(named, ids, counts)
    sparse, dense = iter(_split(named, ids, counts)), iter(rows)
    return tuple(
        None if size == 0 else _dense(next(dense), vocab_size) if size == _DENSE else next(sparse) for size in sizes
    )


def _split(named: Sequence[int], ids: IntArray, counts: np.ndarray) -> Iterator[DraftLaw]:
    for start, stop in pairwise(accumulate(named, initial=0)):
        yield DraftLaw(ids=ids[start:stop], weights=counts[start:stop], total=float(LAW_TOTAL))


def _check_sparse(named: Sequence[int], ids: IntArray, counts: np.ndarray) -> None:
    """All laws at once: no id twice in one, counts that sum to the total in each."""
    if not named:
        return
    keys = np.repeat(np.arange(len(named), dtype=np.int64), named) << 32 | ids
    keys.sort()
    if (keys[1:] == keys[:-1]).any():
        raise ProtocolError("laws: a law names an id twice")
    starts = np.cumsum(np.array([0, *named[:-1]]))
    if (np.add.reduceat(counts, starts) != LAW_TOTAL).any():
        raise ProtocolError(f"laws: the counts of a law do not sum to {LAW_TOTAL}")


def _dense(row: memoryview, vocab_size: int) -> DraftLaw:
    if row.nbytes % _WEIGHT.itemsize:
        raise f.refuse("a dense law", "4 bytes per id", row.nbytes)
    weights = np.frombuffer(row, _WEIGHT)
    _check_dense(weights, vocab_size)
    return DraftLaw.dense(weights)


def _check_dense(weights: np.ndarray, vocab_size: int) -> None:
    if not 0 < len(weights) <= vocab_size:
        raise f.refuse("a dense law", f"1 to {vocab_size} weights", len(weights))
    if not (np.isfinite(weights).all() and weights.min() >= 0.0 and weights.max() > 0.0):
        raise ProtocolError("laws: weights must be finite and not negative, and not all 0")
