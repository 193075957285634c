"""Attention over a packed step and the paged cache, behind transformers' AttentionInterface. Knows no requests.

Three implementations of one function, chosen by device and mode and checked against each other by tests:

    attend_loop     CPU: per sequence, all queries in one call with a mask
    attend_single   CPU, batch-invariant: one query at a time over the keys it sees, so that its result cannot depend on
                    what rides along
    attend_padded   GPU: all sequences in one call, padded; no Python loop over sequences
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from dist_spec.errors import UnsupportedError
from dist_spec.models.step import Segment, Step, additive

INTERFACE_NAME = "dist_spec_packed"
_PAD_KEYS_TO = 16


def attend_loop(
    step: Step,
    layer: int,
    query: torch.Tensor,
    kv: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """See `step.Attend`. A sequence whose blocks lie side by side is read in place, another is gathered once."""
    pool = step.cache.layers[layer]
    step.write(pool, kv)
    groups = query.shape[1] // kv.shape[2]
    parts: list[torch.Tensor] = []
    for number, segment in enumerate(step.segments):
        keys = _region(pool, segment)
        bias = step.bias(number, window=window, groups=groups, dtype=query.dtype)
        asked = query[segment.first : segment.first + segment.count]
        parts.append(_attention(asked, keys, bias, scale=scale, softcap=softcap))
    return _joined(parts, query)


def attend_single(
    step: Step,
    layer: int,
    query: torch.Tensor,
    kv: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """See `step.Attend`. Each query is a call of its own over keys that lie in one piece in the order of its path."""
    pool = step.cache.layers[layer]
    step.write(pool, kv)
    rows, heads, dim = query.shape
    kv_heads = kv.shape[2]
    asked = query.view(rows, 1, kv_heads, heads // kv_heads, dim).unbind(0)
    parts: list[torch.Tensor] = []
    order: list[int] = []
    for segment in step.segments:
        work = _region(pool, segment)
        k, v = work.transpose(0, 2)[None].unbind(2)
        for visit in segment.visits:
            row, length = visit.row, visit.length
            if visit.place:
                work[length - 1].copy_(kv[row])
            elif visit.path is not None:
                work[length - len(visit.path) : length].copy_(pool.index_select(0, visit.path))
            low = 0 if window is None else max(0, length - window)
            parts.append(
                _core(asked[row], k[:, :, low:length], v[:, :, low:length], None, scale=scale, softcap=softcap)
            )
            order.append(row)
        if segment.num_tree and segment.key_start is not None:
            # The region was the pool itself, and paths were laid over the nodes' own places: put every node back.
            last, tree = segment.first + segment.count, segment.num_tree
            work[segment.length - tree :].copy_(kv[last - tree : last])
    return _in_row_order(parts, order, rows).reshape(rows, heads, dim)


def attend_padded(
    step: Step,
    layer: int,
    query: torch.Tensor,
    kv: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """See `step.Attend`. Sequences are padded to one shape by index tensors that are built once per step."""
    pool = step.cache.layers[layer]
    step.write(pool, kv)
    heads, dim = query.shape[1:]
    kv_heads = kv.shape[2]
    groups = heads // kv_heads
    if "keys" not in step.scratch:
        _pad(step)
    place = pool.device
    keys = pool[step.on(place, "keys", step.scratch["keys"])]  # (sequences, longest, 2, kv_heads, dim)
    asked = query[step.on(place, "queries", step.scratch["queries"])]  # (sequences, most, heads, dim)
    number, most = asked.shape[:2]
    asked = asked.view(number, most, kv_heads, groups, dim).permute(0, 2, 3, 1, 4).reshape(number, kv_heads, -1, dim)
    out = _core(
        asked,
        keys[:, :, 0].transpose(1, 2),
        keys[:, :, 1].transpose(1, 2),
        step.on(place, ("bias", window), _padded_bias(step, window, groups=groups, dtype=query.dtype)),
        scale=scale,
        softcap=softcap,
    )
    out = out.reshape(number, kv_heads, groups, most, dim).permute(0, 3, 1, 2, 4).reshape(number * most, heads, dim)
    return out[step.on(place, "back", step.scratch["back"])]


def _region(pool: torch.Tensor, segment: Segment) -> torch.Tensor:
    """The segment's keys and values in order, (length, 2, kv_heads, head_dim): a view where possible."""
    if segment.key_start is not None:
        return pool[segment.key_start : segment.key_start + segment.length]
    return pool.index_select(0, segment.key_index)


def _attention(
    query: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor | None, *, scale: float, softcap: float | None
) -> torch.Tensor:
    """(n, heads, dim) queries over (length, 2, kv_heads, dim). Queries of the heads that share a key head are rows of
    one product, so keys are never repeated."""
    count, heads, dim = query.shape
    kv_heads = keys.shape[2]
    asked = query.view(count, kv_heads, heads // kv_heads, dim) if count == 1 else _fold(query, kv_heads)
    k, v = keys.transpose(0, 2).unbind(1)
    out = _core(asked, k[None], v[None], bias, scale=scale, softcap=softcap)
    if count == 1:
        return out.reshape(1, heads, dim)
    return out.reshape(kv_heads, heads // kv_heads, count, dim).permute(2, 0, 1, 3).reshape(count, heads, dim)


def _fold(query: torch.Tensor, kv_heads: int) -> torch.Tensor:
    count, heads, dim = query.shape
    return query.view(count, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3).reshape(1, kv_heads, -1, dim)


def _core(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """(b, heads, n, dim) x (b, heads, length, dim); `bias` broadcasts over heads."""
    if softcap is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)
    scores = torch.matmul(query, key.transpose(2, 3)) * scale
    scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    return torch.matmul(torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype), value)


def _joined(parts: list[torch.Tensor], query: torch.Tensor) -> torch.Tensor:
    missing = query.shape[0] - sum(part.shape[0] for part in parts)
    if missing:
        parts.append(query.new_zeros((missing, *query.shape[1:])))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _in_row_order(parts: list[torch.Tensor], order: list[int], rows: int) -> torch.Tensor:
    """Results of queries asked in `order` as rows 0 .. rows - 1; padding rows repeat the first."""
    if order == list(range(rows)):
        return torch.cat(parts)
    back = np.zeros(rows, dtype=np.int64)
    back[order] = np.arange(len(order))
    return torch.cat(parts)[torch.from_numpy(back)]


def _pad(step: Step) -> None:
    """Index tensors of the padded form; built on the host, moved once."""
    segments = step.segments
    number = len(segments)
    most = max(s.count for s in segments)
    longest = -(-max(s.length for s in segments) // _PAD_KEYS_TO) * _PAD_KEYS_TO
    keys = np.zeros((number, longest), dtype=np.int64)
    queries = np.zeros((number, most), dtype=np.int64)
    back = np.zeros(step.ids.shape[0], dtype=np.int64)
    for i, s in enumerate(segments):
        keys[i, : s.length] = s.key_slots
        queries[i, : s.count] = np.arange(s.first, s.first + s.count)
        back[s.first : s.first + s.count] = np.arange(i * most, i * most + s.count)
    device = step.ids.device
    for name, array in (("keys", keys), ("queries", queries), ("back", back)):
        step.scratch[name] = torch.from_numpy(array).to(device, non_blocking=True)


def _padded_bias(step: Step, window: int | None, *, groups: int, dtype: torch.dtype) -> torch.Tensor:
    hides = window is not None and any(s.outruns(window) for s in step.segments)
    key = ("bias", window if hides else None)
    if key not in step.scratch:
        number, longest = step.scratch["keys"].shape
        most = step.scratch["queries"].shape[1]
        allowed = np.zeros((number, most, longest), dtype=np.bool_)
        allowed[:, :, 0] = True  # padding queries must see something: an empty softmax is NaN
        for i, s in enumerate(step.segments):
            own = s.allowed(window if hides else None)
            allowed[i, : s.count, : s.length] = True if own is None else own
        mask = torch.from_numpy(allowed).to(step.ids.device, non_blocking=True)
        step.scratch[key] = additive(mask, dtype).repeat(1, groups, 1)[:, None]
    return step.scratch[key]


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    step: Step | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in every layer: (1, heads, rows, dim) queries, keys and values of the packed step."""
    if step is None or s_aux is not None or key.shape != value.shape:
        raise UnsupportedError(f"{type(module).__name__} uses attention sinks or unequal key and value sizes")
    out = step.attend(
        step,
        module.layer_idx,
        query[0].transpose(0, 1),
        torch.stack((key[0], value[0])).permute(2, 0, 1, 3),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
    )
    return out[None], None


# A name without an entry in transformers' mask registry: it then builds no mask at all.
AttentionInterface.register(INTERFACE_NAME, packed_attention)
