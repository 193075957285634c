"""The paged KV pool: one preallocated tensor of slots for all layers. Knows no sequences; block tables say who owns what.

Keys and values of a token lie side by side, so that a layer writes both with one copy and all layers are compacted
with one indexed copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dist_spec.core.types import ForwardRow
from dist_spec.errors import ModelError


class PagedKVCache:
    """A pool (num_slots, 2, kv_heads, head_dim) for each layer, on the device where that layer computes; index 0 of the
    second axis is K, 1 is V. Layers on one device lie in one tensor, (layers there, num_slots, 2, kv_heads, head_dim).

    Args:
        device: where steps begin; all layers compute there unless `layer_devices` has one for each.
    """

    def __init__(
        self,
        config: Any,
        *,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
        layer_devices: Sequence[torch.device] | None = None,
    ) -> None:
        self.num_slots, self.device = num_slots, device
        places = list(layer_devices or [device] * int(config.num_hidden_layers))
        self._stores = {
            place: _pool(config, places.count(place), num_slots=num_slots, dtype=dtype, device=place)
            for place in dict.fromkeys(places)
        }
        numbers = [places[:layer].count(place) for layer, place in enumerate(places)]
        self.layers = [self._stores[place][number] for place, number in zip(places, numbers, strict=True)]

    @property
    def storage(self) -> torch.Tensor:
        """All layers in one tensor. Only where one device has them all."""
        (store,) = self._stores.values()
        return store

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy slots `source` onto slots `target` ((n,) int64 each) in every layer; all are read before any is written."""
        for place, store in self._stores.items():
            store.index_copy_(1, target.to(place), store.index_select(1, source.to(place)))


def _pool(config: Any, layers: int, *, num_slots: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """ModelError: the device has no room for it."""
    heads, dim = kv_shape(config)
    try:
        # Zeros, not empty: masked slots are still multiplied by a weight of zero, and 0 * NaN is NaN. (On CPU the
        # operating system hands out zero pages at first touch, so unused slots cost nothing.)
        return torch.zeros((layers, num_slots, 2, heads, dim), dtype=dtype, device=device)
    except RuntimeError as error:
        wanted = num_slots * layers * 2 * heads * dim * dtype.itemsize / 1e9
        raise ModelError(f"no {wanted:.1f} GB on {device} for the KV cache", fix="fewer blocks or sequences") from error


def kv_shape(config: Any) -> tuple[int, int]:
    """(kv_heads, head_dim) of a model's config."""
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    return heads, dim


def bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Bytes of K and V of one token in all layers."""
    heads, dim = kv_shape(config)
    return int(config.num_hidden_layers) * 2 * heads * dim * dtype.itemsize


def path_moves(
    rows: Sequence[ForwardRow], paths: Sequence[Sequence[int]], *, block_size: int
) -> tuple[list[int], list[int]]:
    """Slots (from, to) that put each row's accepted nodes right behind its committed tokens."""
    source: list[int] = []
    target: list[int] = []
    for row, path in zip(rows, paths, strict=True):
        base = row.cached + row.num_pending
        for place, node in enumerate(path):
            if node != place:
                source.append(physical(row, base + node, block_size))
                target.append(physical(row, base + place, block_size))
    return source, target


def physical(row: ForwardRow, logical: int, block_size: int) -> int:
    return int(row.block_table[logical // block_size]) * block_size + logical % block_size


def slots(row: ForwardRow, first: int, last: int, block_size: int) -> np.ndarray:
    """Physical slots of a row's logical slots `first` .. `last - 1`, (last - first,) int64."""
    logical = np.arange(first, last, dtype=np.int64)
    return row.block_table[logical // block_size].astype(np.int64) * block_size + logical % block_size


def contiguous_start(row: ForwardRow, length: int, block_size: int) -> int | None:
    """First physical slot if the row's first `length` slots lie side by side, else None."""
    table = row.block_table[: -(-length // block_size)]
    if len(table) > 1 and not bool((np.diff(table) == 1).all()):
        return None
    return int(table[0]) * block_size
