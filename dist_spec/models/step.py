"""One packed forward pass as data: which packed row is which token of which sequence, and what it may attend to.

It knows neither requests nor models; `rows.py` makes it from block tables, the model drafter from its own regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from dist_spec.models.kv_cache import PagedKVCache

BoolArray = npt.NDArray[np.bool_]
SlotArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Visit:
    """One query of the one-at-a-time attention.

    Attributes:
        row: its packed row.
        length: it sees the first `length` keys of the region.
        place: its own K/V must first be put at place `length - 1`.
        path: pool slots to lay over the last places before `length` first (its own among them), (n,) int64.
    """

    row: int
    length: int
    place: bool = False
    path: torch.Tensor | None = None


@dataclass(kw_only=True)
class Segment:
    """One sequence's share of a packed forward.

    Attributes:
        first, count: packed rows first .. first + count - 1 are its queries.
        key_start: first slot of its key region where that lies in one piece, else None (then `key_slots` lists it).
        key_slots: (length,) physical slots of the key region.
        write_slots: (count,) where its own K/V go.
        query_positions: (count,), key_positions: (length,); only differences matter (sliding windows).
        mask: (count, length) True = may attend; None = every query sees the whole region.
        visits: the order of the one-at-a-time attention; `num_tree` of the last rows are then rewritten at the end.
        spare: slots right behind the region that belong to it too (padding may be read and cleared there).
    """

    first: int
    count: int
    key_start: int | None
    key_slots: SlotArray
    write_slots: SlotArray
    query_positions: SlotArray
    key_positions: SlotArray
    mask: BoolArray | None = None
    visits: Sequence[Visit] = ()
    num_tree: int = 0
    spare: int = 0

    @property
    def length(self) -> int:
        return len(self.key_slots)

    def allowed(self, window: int | None) -> BoolArray | None:
        """Which keys each query sees, (count, length); None = all."""
        if window is None or not self.outruns(window):
            return self.mask
        near = self.query_positions[:, None] - self.key_positions[None, :] < window
        return near if self.mask is None else near & self.mask

    def outruns(self, window: int) -> bool:
        """Whether the window hides anything at all."""
        return self._span >= window

    @cached_property
    def _span(self) -> int:
        return int(self.query_positions.max()) - int(self.key_positions.min())

    @cached_property
    def key_index(self) -> torch.Tensor:
        return torch.from_numpy(self.key_slots)


class Attend(Protocol):
    """One layer's attention over a step: writes K/V of the step into the cache, reads what each query may see."""

    def __call__(
        self,
        step: Step,
        layer: int,
        query: torch.Tensor,
        kv: torch.Tensor,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """`query` (rows, heads, head_dim), `kv` (rows, 2, kv_heads, head_dim) -> (rows, heads, head_dim)."""
        ...


@dataclass(kw_only=True)
class Step:
    """A packed forward on its device.

    Attributes:
        ids, positions: (rows,) int64; rows beyond `num_tokens` are padding, whose results nobody reads.
        num_tokens: rows that are tokens.
        write_index: (num_tokens,) int64 slots; `write_start` replaces it where they lie in one piece.
        logit_rows: packed rows whose logits are wanted.
        capture: layers whose outputs, (rows, hidden), are to be left in `captured` (see `models.features`).
        scratch, shapes: what an attention implementation remembers from layer to layer (masks, index tensors).
    """

    ids: torch.Tensor
    positions: torch.Tensor
    num_tokens: int
    segments: Sequence[Segment]
    write_index: torch.Tensor
    write_start: int | None
    logit_rows: Sequence[int]
    cache: PagedKVCache
    attend: Attend
    capture: Sequence[int] = ()
    captured: dict[int, torch.Tensor] = field(default_factory=dict)
    scratch: dict[object, torch.Tensor] = field(default_factory=dict)
    shapes: dict[object, Any] = field(default_factory=dict)

    def write(self, pool: torch.Tensor, kv: torch.Tensor) -> None:
        """Put the tokens' K/V (rows, 2, kv_heads, head_dim) where they belong in one layer's pool."""
        if self.write_start is not None:
            pool[self.write_start : self.write_start + self.num_tokens].copy_(kv[: self.num_tokens])
        else:
            index = self.on(pool.device, "write", self.write_index)
            pool.index_copy_(0, index, kv[: self.num_tokens].to(pool.dtype))

    def on(self, device: torch.device, name: object, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` on a layer's device: itself where it lies there, else a copy, made once per step under `name`."""
        if tensor.device == device:
            return tensor
        key = ("on", device, name)
        if key not in self.scratch:
            self.scratch[key] = tensor.to(device, non_blocking=True)
        return self.scratch[key]

    def bias(self, number: int, *, window: int | None, groups: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Additive mask of segment `number`, (groups * count, length), group-major; None = sees everything."""
        segment = self.segments[number]
        allowed = segment.allowed(window)
        if allowed is None:
            return None
        key = (number, window if window is not None and segment.outruns(window) else None)
        if key not in self.scratch:
            self.scratch[key] = additive(torch.from_numpy(allowed), dtype).repeat(groups, 1)
        return self.scratch[key]


def additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where True, -inf where False."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))


def make_step(
    segments: Sequence[Segment],
    *,
    tokens: npt.NDArray[np.integer],
    positions: npt.NDArray[np.integer],
    logit_rows: Sequence[int],
    cache: PagedKVCache,
    attend: Attend,
    min_rows: int = 1,
) -> Step:
    """Pad to `min_rows` and move to the cache's device."""
    count = len(tokens)
    rows = max(count, min_rows)
    packed = np.zeros((2, rows), dtype=np.int64)
    packed[0, :count], packed[1, :count] = tokens, positions
    device = cache.device
    on_device = torch.from_numpy(packed).to(device, non_blocking=True)
    write = segments[0].write_slots if len(segments) == 1 else np.concatenate([s.write_slots for s in segments])
    in_one_piece = len(write) == 1 or bool((np.diff(write) == 1).all())
    return Step(
        ids=on_device[0],
        positions=on_device[1],
        num_tokens=count,
        segments=segments,
        write_index=torch.from_numpy(write).to(device, non_blocking=True),
        write_start=int(write[0]) if in_one_piece else None,
        logit_rows=logit_rows,
        cache=cache,
        attend=attend,
    )
