"""Batch-invariant attention in which all queries of a sequence share one pass over its keys (CPU). Knows no requests.

A query's result must not depend, to the last bit, on the queries and draft nodes that ride along. Asking one query at
a time (`attention.attend_single`) ensures that and reads every key once per query. Here all queries share two products,
and the order of every sum is a function of absolute positions alone:

- Products run in float32 over at most `_LONGEST` terms, where this machine's matrix product is one chain of fused
  multiply-adds in the order of the terms (checked at load, `is_exact`). A weight of zero leaves such a chain as it is,
  so neither masked keys, nor padding, nor draft nodes between the nodes of a path can be told from the result.
- Values are summed in chunks cut at multiples of `_CHUNK` positions.
- Softmax sums by lanes, so the scores of a tree are put into the order of each node's path first.

Keys and values are kept in float32: converting them in every layer of every step would cost more than it saves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from dist_spec.models.step import Segment, Step, Visit, additive

_CHUNK = 128
_LONGEST = 192
_PAD_TO = 32
_FEWEST_ROWS = 4
"""One to three rows take another path through the matrix product."""


@dataclass(kw_only=True, slots=True)
class _Shape:
    """How one segment is asked.

    Attributes:
        num_keys: keys read, padding included; `cuts` are the chunks of values.
        mask: (1, rows, num_keys) additive, rows = queries x heads per key head, at least `_FEWEST_ROWS`.
        head: first column of the draft nodes; `order` (1, rows, num_keys - head) puts each row's own path first there,
            `back` undoes it. None: the nodes are a chain and lie in order.
        index: slots to gather where the region is not one piece with room for the padding.
    """

    num_keys: int
    cuts: list[tuple[int, int]]
    mask: torch.Tensor
    head: int = 0
    order: torch.Tensor | None = None
    back: torch.Tensor | None = None
    index: torch.Tensor | None = None


def attend_shared(
    step: Step,
    layer: int,
    query: torch.Tensor,
    kv: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """See `step.Attend`. The pool is float32, whatever the model's type."""
    pool = step.cache.layers[layer]
    step.write(pool, kv)
    groups = query.shape[1] // kv.shape[2]
    result = torch.empty_like(query)
    if step.num_tokens < len(query):
        result[step.num_tokens :].zero_()
    for number, segment in enumerate(step.segments):
        rows = slice(segment.first, segment.first + segment.count)
        hides = window if window is not None and segment.outruns(window) else None
        if (number, "walk") not in step.shapes:
            step.shapes[number, "walk"] = _must_walk(segment)
        if step.shapes[number, "walk"]:
            _walk(step, pool, segment, query, kv, result, scale=scale, window=hides, softcap=softcap)
            continue
        shape = step.shapes.get((number, hides))
        if shape is None:
            shape = step.shapes[number, hides] = _shape(step, segment, groups=groups, window=hides)
        keys = _keys(pool, segment, shape)
        _ask(query[rows], keys, shape, result[rows], scale=scale, softcap=softcap)
    return result


def _ask(
    query: torch.Tensor,
    keys: torch.Tensor,
    shape: _Shape,
    result: torch.Tensor,
    *,
    scale: float,
    softcap: float | None,
) -> None:
    """(n, heads, dim) queries over (num_keys, 2, kv_heads, dim), into `result`."""
    count, heads, dim = query.shape
    kv_heads = keys.shape[2]
    rows = shape.mask.shape[1]
    groups = heads // kv_heads
    asked = keys.new_zeros((kv_heads, rows, dim)) if rows > count * groups else keys.new_empty((kv_heads, rows, dim))
    asked[:, : count * groups].view(kv_heads, count, groups, dim).copy_(
        query.view(count, kv_heads, groups, dim).transpose(0, 1)
    )
    mask = shape.mask.expand(kv_heads, -1, -1)
    turned = keys[:, 0].permute(1, 2, 0)
    if softcap is None:
        scores = torch.baddbmm(mask, asked, turned, alpha=scale)
    else:
        scores = torch.bmm(asked, turned).mul_(scale / softcap).tanh_().mul_(softcap).add_(mask)
    if shape.order is not None:
        tree = scores[:, :, shape.head :]
        tree.copy_(tree.gather(2, shape.order.expand(kv_heads, -1, -1)))
    weights = torch.softmax(scores, dim=-1)
    if shape.back is not None:
        tree = weights[:, :, shape.head :]
        tree.copy_(tree.gather(2, shape.back.expand(kv_heads, -1, -1)))
    values = keys[:, 1].transpose(0, 1)
    out: torch.Tensor | None = None
    for start, stop in shape.cuts:
        parts = (weights[:, :, start:stop], values[:, start:stop])
        out = torch.bmm(*parts) if out is None else out.baddbmm_(*parts)
    assert out is not None
    result.view(count, kv_heads, groups, dim).copy_(
        out[:, : count * groups].view(kv_heads, count, groups, dim).transpose(0, 1)
    )


def _must_walk(segment: Segment) -> bool:
    """Whether nodes must be asked one by one: paths are not in the region, or a tree's last chunk cannot hold them all
    in the place that plain decoding would give them."""
    if any(visit.path is not None for visit in segment.visits):
        return True
    if not segment.num_tree:
        return False
    base = int(segment.query_positions.min()) // _CHUNK * _CHUNK
    return int(segment.query_positions.max()) >= base + _CHUNK or _padded(segment.length) - base > _LONGEST


def _shape(step: Step, segment: Segment, *, groups: int, window: int | None) -> _Shape:
    num_keys = _padded(segment.length)
    rows = max(_FEWEST_ROWS, segment.count * groups)
    allowed = _allowed(segment, window=window, num_keys=num_keys)
    shape = _Shape(num_keys=num_keys, cuts=_cuts(num_keys), mask=_mask(allowed, rows=rows, groups=groups))
    if segment.num_tree:
        shape.head = segment.length - segment.num_tree
        base = int(segment.query_positions.min()) // _CHUNK * _CHUNK
        shape.cuts = [*_cuts(base), (base, num_keys)]
        order = np.argsort(~allowed[:, shape.head :], axis=1, kind="stable")
        shape.order = _per_row(order, rows=rows, groups=groups)
        shape.back = _per_row(np.argsort(order, axis=1), rows=rows, groups=groups)
    if segment.key_start is None or segment.spare < num_keys - segment.length:
        padding = np.full(num_keys - segment.length, segment.key_slots[0])
        shape.index = torch.from_numpy(np.concatenate([segment.key_slots, padding]))
    elif num_keys > segment.length:
        # What an earlier owner left there is masked, but a weight of zero times infinity is not zero.
        step.cache.storage[:, segment.key_start + segment.length : segment.key_start + num_keys].zero_()
    return shape


def _allowed(segment: Segment, *, window: int | None, num_keys: int) -> np.ndarray:
    allowed = np.zeros((segment.count, num_keys), dtype=np.bool_)
    if segment.visits and segment.mask is None:  # made for one at a time: committed tokens only, or `_must_walk` holds
        for visit in segment.visits:
            low = 0 if window is None else max(0, visit.length - window)
            allowed[visit.row - segment.first, low : visit.length] = True
        return allowed
    seen = segment.allowed(window)
    allowed[:, : segment.length] = True if seen is None else seen
    return allowed


def _walk(
    step: Step,
    pool: torch.Tensor,
    segment: Segment,
    query: torch.Tensor,
    kv: torch.Tensor,
    result: torch.Tensor,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> None:
    """One query at a time, each node's path laid behind the committed text first."""
    longest = _padded(segment.length)
    in_place = segment.key_start is not None and segment.spare >= longest - segment.length
    if in_place:
        assert segment.key_start is not None
        work = pool[segment.key_start : segment.key_start + longest]
    else:
        work = pool.new_zeros((longest, *pool.shape[1:]))
        work[: segment.length] = pool.index_select(0, segment.key_index)
    groups = query.shape[1] // kv.shape[2]
    for visit in segment.visits:
        if visit.place:
            work[visit.length - 1].copy_(kv[visit.row])
        elif visit.path is not None:
            work[visit.length - len(visit.path) : visit.length].copy_(pool.index_select(0, visit.path))
        row = slice(visit.row, visit.row + 1)
        shape = _visit_shape(step, visit, groups=groups, window=window)
        _ask(query[row], work[: shape.num_keys], shape, result[row], scale=scale, softcap=softcap)
    if segment.num_tree and in_place:
        last, tree = segment.first + segment.count, segment.num_tree
        work[segment.length - tree : segment.length].copy_(kv[last - tree : last])


def _visit_shape(step: Step, visit: Visit, *, groups: int, window: int | None) -> _Shape:
    key = ("visit", visit.length, window)
    if key not in step.shapes:
        num_keys = _padded(visit.length)
        allowed = np.zeros((1, num_keys), dtype=np.bool_)
        allowed[:, 0 if window is None else max(0, visit.length - window) : visit.length] = True
        mask = _mask(allowed, rows=max(_FEWEST_ROWS, groups), groups=groups)
        step.shapes[key] = _Shape(num_keys=num_keys, cuts=_cuts(num_keys), mask=mask)
    shape = step.shapes[key]
    assert isinstance(shape, _Shape)
    return shape


def _keys(pool: torch.Tensor, segment: Segment, shape: _Shape) -> torch.Tensor:
    if shape.index is not None:
        return pool.index_select(0, shape.index)
    assert segment.key_start is not None
    return pool[segment.key_start : segment.key_start + shape.num_keys]


def _mask(allowed: np.ndarray, *, rows: int, groups: int) -> torch.Tensor:
    """(1, rows, num_keys) additive; rows beyond the queries see everything, as an empty softmax is NaN."""
    whole = np.ones((rows, allowed.shape[1]), dtype=np.bool_)
    whole[: len(allowed) * groups] = np.repeat(allowed, groups, axis=0)
    return additive(torch.from_numpy(whole), torch.float32)[None]


def _per_row(order: np.ndarray, *, rows: int, groups: int) -> torch.Tensor:
    whole = np.tile(np.arange(order.shape[1]), (rows, 1))
    whole[: len(order) * groups] = np.repeat(order, groups, axis=0)
    return torch.from_numpy(whole)[None]


def _cuts(stop: int) -> list[tuple[int, int]]:
    return [(start, min(start + _CHUNK, stop)) for start in range(0, stop, _CHUNK)]


def _padded(length: int) -> int:
    return -(-length // _PAD_TO) * _PAD_TO


@lru_cache(maxsize=64)
def is_exact(kv_heads: int, groups: int, dim: int, *, threads: int) -> bool:
    """Whether this machine's matrix product is a chain of fused multiply-adds wherever this file relies on it.

    Shapes are drawn at random around the model's own. `threads` is part of the name only: results were checked under it.
    """
    random = torch.Generator().manual_seed(dim)
    values = torch.randn((4 * _CHUNK, 2, kv_heads, dim), generator=random)
    most = max(_FEWEST_ROWS, 40 * groups)
    asked = torch.randn((kv_heads, most, dim), generator=random)
    turned = values[:, 0].permute(1, 2, 0)
    whole = torch.bmm(asked, turned)
    weights = torch.rand((kv_heads, most, _LONGEST), generator=random)
    for rows in sorted({_FEWEST_ROWS, max(_FEWEST_ROWS, groups), 5, 7, max(_FEWEST_ROWS, 3 * groups), 17, most}):
        rows = min(rows, most)
        for keys in range(_PAD_TO, len(values) + 1, 5 * _PAD_TO):
            mask = torch.zeros((1, rows, keys)).expand(kv_heads, -1, -1)
            if not torch.equal(torch.baddbmm(mask, asked[:, :rows], turned[:, :, :keys]), whole[:, :rows, :keys]):
                return False
    return all(_is_chain(weights, values[:, 1], kept, rows) for kept in (1, 31, 64, 100, 128) for rows in (4, 6, most))


def _is_chain(weights: torch.Tensor, values: torch.Tensor, kept: int, rows: int) -> bool:
    """Whether `kept` terms spread over `_LONGEST` sum as they do side by side, with any number of rows."""
    random = torch.Generator().manual_seed(kept)
    places = torch.randperm(_LONGEST, generator=random)[:kept].sort().values
    spread = torch.zeros_like(weights[:, :rows])
    spread[:, :, places] = weights[:, :rows, places]
    apart = torch.bmm(spread, values[:_LONGEST].transpose(0, 1))
    for fewest in (_FEWEST_ROWS, rows):
        close = torch.zeros((len(weights), fewest, _padded(kept)))
        close[:, :, :kept] = weights[:, :fewest, places]
        side_by_side = torch.zeros((_padded(kept), *values.shape[1:]))
        side_by_side[:kept] = values[places]
        if not torch.equal(torch.bmm(close, side_by_side.transpose(0, 1)), apart[:, :fewest]):
            return False
    return True


def fits(kv_heads: int, heads: int, dim: int) -> bool:
    """Whether attention of this shape can be shared here."""
    return is_exact(kv_heads, heads // kv_heads, dim, threads=torch.get_num_threads())
