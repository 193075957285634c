"""Transformers' own forward of one sequence, its own attention included: what the packed forward is checked against. Knows
no caches or rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dist_spec.models.loading import LoadedModel


def stock_logits(loaded: LoadedModel, tokens: Sequence[int]) -> torch.Tensor:
    """(n, width) float32 on the model's device: the whole vocabulary, or the part of it that this rank holds."""
    model = loaded.model
    before = model.config.get_text_config()._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            ids = torch.tensor([list(tokens)], dtype=torch.long, device=loaded.device)
            logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0].float()
            return logits
    finally:
        model.set_attn_implementation(before)
