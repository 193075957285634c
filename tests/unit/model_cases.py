"""Rows and tiny models shared by the tests of models/ and of the model drafter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from dist_spec.core.types import ForwardRow
from dist_spec.models.loading import LoadedModel, load_model

FAMILIES = ("llama", "mistral?window=6", "qwen2?window=6", "qwen3?window=6", "gemma2?window=6", "gemma3_text?window=6")


@cache
def tiny(family: str, dtype: str = "float32") -> LoadedModel:
    torch.set_num_threads(1)
    return load_model(f"random:{family}", dtype=dtype, device="cpu")


def ids(count: int, *, seed: int = 0, vocab: int = 250) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


def row(
    table: Sequence[int],
    cached: int,
    tokens: Sequence[int],
    parents: Sequence[int] = (),
    *,
    wanted: int | None = None,
) -> ForwardRow:
    """A row whose last len(parents) tokens are nodes; logits of all tokens unless said otherwise."""
    return ForwardRow(
        block_table=np.array(table, dtype=np.int32),
        cached=cached,
        tokens=np.array(tokens, dtype=np.int32),
        num_pending=len(tokens) - len(parents),
        parents=np.array(parents, dtype=np.int32),
        num_logits=len(tokens) if wanted is None else wanted,
    )


def stock_logits(loaded: LoadedModel, tokens: Sequence[int]) -> torch.Tensor:
    """Transformers' own logits of one sequence, (n, vocab) float32."""
    before = loaded.model.config._attn_implementation
    loaded.model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            out: torch.Tensor = loaded.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()
            return out
    finally:
        loaded.model.set_attn_implementation(before)
