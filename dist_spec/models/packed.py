"""Runs packed steps through a model: lean where the family is known, else transformers' own forward. Knows no rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dist_spec.errors import UnsupportedError
from dist_spec.models.attention import INTERFACE_NAME, attend_loop, attend_padded, attend_single
from dist_spec.models.features import caught
from dist_spec.models.kv_cache import PagedKVCache, kv_shape
from dist_spec.models.lean import LeanStack, build_lean, is_known
from dist_spec.models.linear import INVARIANT_ROWS
from dist_spec.models.loading import LoadedModel
from dist_spec.models.shared_attention import attend_shared, fits
from dist_spec.models.step import Attend, Segment, Step, make_step

_PACK_UP_TO_BYTES = 4 << 30
"""Packed weights are a second copy; models above this size keep one."""


def packed_copy_bytes(model: Any, *, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes of the second copy of the linear layers' weights (see `linear`) that a runner makes of a model."""
    weights = sum(p.numel() for p in model.parameters()) * dtype.itemsize
    if dtype != torch.bfloat16 or device.type != "cpu" or weights > _PACK_UP_TO_BYTES or not is_known(model):
        return 0
    return sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear)) * dtype.itemsize


ATTENTION = {"loop": attend_loop, "single": attend_single, "shared": attend_shared, "padded": attend_padded}


def attention_for(config: Any, *, device: torch.device, batch_invariant: bool) -> str:
    """Name of the attention that serves a model best: by device and mode, and by what this machine's products allow."""
    if device.type == "cuda":
        return "padded"
    if not batch_invariant:
        return "loop"
    kv_heads, dim = kv_shape(config)
    return "shared" if fits(kv_heads, int(config.num_attention_heads), dim) else "single"


def kv_dtype(attention: str, dtype: torch.dtype) -> torch.dtype:
    """Type of the KV pool of a model whose weights are `dtype`."""
    return torch.float32 if attention == "shared" else dtype


class PackedModel:
    """A model with its KV pool.

    Args:
        num_slots: KV slots (tokens) in the pool.
        batch_invariant: a token's logits do not depend on what rides along (CPU only).
        attention: "loop", "single", "shared" or "padded"; None chooses (`attention_for`).
        lean: False forces transformers' own forward.

    Attributes:
        capture: layers whose outputs are wanted; `captured` holds them, (rows, hidden) each, after every forward.

    Raises:
        UnsupportedError: batch-invariant mode on a GPU.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        num_slots: int,
        batch_invariant: bool = False,
        attention: str | None = None,
        lean: bool = True,
    ) -> None:
        if batch_invariant and loaded.device.type != "cpu":
            raise UnsupportedError("batch-invariant mode exists on CPU only", fix="set batch_invariant: false")
        self.loaded = loaded
        self.batch_invariant = batch_invariant
        self.min_rows = INVARIANT_ROWS if batch_invariant else 1
        self.attention = attention or attention_for(
            loaded.local_config, device=loaded.device, batch_invariant=batch_invariant
        )
        self.kv_dtype = kv_dtype(self.attention, loaded.dtype)
        self.cache = PagedKVCache(
            loaded.local_config,
            num_slots=num_slots,
            dtype=self.kv_dtype,
            device=loaded.device,
            layer_devices=loaded.layer_devices,
        )
        self._attend: Attend = ATTENTION[self.attention]
        self.capture: tuple[int, ...] = ()
        self.captured: list[torch.Tensor] = []
        with torch.inference_mode():
            if lean and loaded.lean is None and loaded.shard is None and not loaded.stock_only:
                small = loaded.num_parameters * loaded.dtype.itemsize <= _PACK_UP_TO_BYTES
                loaded.lean = build_lean(loaded.model, pack=small)
            self._lean: LeanStack | None = loaded.lean if lean else None

    @property
    def is_lean(self) -> bool:
        return self._lean is not None

    def logits(
        self,
        segments: Sequence[Segment],
        *,
        tokens: npt.NDArray[np.integer],
        positions: npt.NDArray[np.integer],
        logit_rows: Sequence[int],
    ) -> torch.Tensor:
        """Write K/V of `tokens` into the pool and return logits of `logit_rows`, (n, vocab) float32 on the device."""
        with torch.inference_mode():
            step = make_step(
                segments,
                tokens=tokens,
                positions=positions,
                logit_rows=logit_rows,
                cache=self.cache,
                attend=self._attend,
                min_rows=self.min_rows,
            )
            step.capture = self.capture
            if self._lean is not None:
                logits = self._lean.logits(step, last_position=int(positions.max()), min_rows=self.min_rows).float()
            else:
                with caught(self.loaded.model, self.capture, step.captured):
                    logits = self._stock_forward(step)
            self.captured = [step.captured[layer] for layer in self.capture]
            return logits

    def _stock_forward(self, step: Step) -> torch.Tensor:
        model, wanted = self.loaded.model, list(step.logit_rows)
        if model.config.get_text_config()._attn_implementation != INTERFACE_NAME:
            model.set_attn_implementation(INTERFACE_NAME)
        # One row at least: the head then runs on a row that nobody asked for, once per prefill chunk.
        keep = wanted + [0] * (max(self.min_rows, 1) - len(wanted))
        result = model(
            input_ids=step.ids[None],
            position_ids=step.positions[None],
            use_cache=False,
            logits_to_keep=torch.tensor(keep, dtype=torch.long, device=step.ids.device),
            step=step,
        )
        logits: torch.Tensor = result.logits[0, : len(wanted)].float()
        return logits
