"""The target as a teacher: many sequences in one batch, with hidden features and top-k probabilities. It knows neither
prompts nor files, and serves no requests (that is `dist_spec.models.runner`).

Sequences of a batch end at the same column (shorter ones are padded on the left), so that one slice per layer writes all
K/V of a step, and generation never gathers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from dist_spec.errors import UnsupportedError
from dist_spec.models.linear import packed_linear
from dist_spec.models.loading import LoadedModel

INTERFACE_NAME = "dist_spec_teacher"
_GROUP = 64
"""Ids per group of the two-stage top-k: the best k ids lie in the k groups with the best maxima."""


@dataclass(kw_only=True, slots=True)
class Batch:
    """Sequences under way.

    Attributes:
        first: (b,) int64, the column of each sequence's first token.
        pools: per layer K and V, (2, b, kv_heads, head_dim, columns); made at the first forward. Columns come last because
            products of few queries read them so at twice the speed (CPU; three times that of the fused attention).
        length: columns that hold tokens.
        columns: how many there can be.
    """

    first: torch.Tensor
    columns: int
    length: int = 0
    pools: dict[int, torch.Tensor] = field(default_factory=dict)
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)
    count: int = 0

    def bias(self, window: int | None, groups: int) -> torch.Tensor:
        """Additive mask (b, 1, groups * n, length + n) of the forward under way, made once per forward."""
        if window not in self.masks:
            device = self.first.device
            total = self.length + self.count
            keys = torch.arange(total, device=device)
            asked = torch.arange(self.length, total, device=device)[:, None]
            seen = (keys <= asked) & (keys >= self.first[:, None, None])
            if window is not None:
                seen &= asked - keys < window
            seen |= keys == asked  # padding must see something: an empty softmax is NaN
            bias = torch.zeros(seen.shape, device=device).masked_fill_(~seen, float("-inf"))
            self.masks[window] = bias.repeat(1, groups, 1)[:, None]
        return self.masks[window]

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with the sequences `rows` alone, and drop columns in which none of them has a token."""
        kept = self.first[rows]
        spare = min(int(kept.min()), self.length)
        self.first = kept - spare
        self.columns -= spare
        self.length -= spare
        self.pools = {layer: pool[:, rows][..., spare:].contiguous() for layer, pool in self.pools.items()}


class Teacher:
    """A loaded target that is asked for batches.

    Args:
        loaded: the target; where it pays its linear layers get weights laid out ahead of time (this changes no result).
        feature_layers: decoder layers whose outputs, side by side, are a token's features.
    Raises:
        UnsupportedError: the target has no layer of one of these numbers.
    """

    def __init__(self, loaded: LoadedModel, *, feature_layers: Sequence[int]) -> None:
        self.loaded = loaded
        self.feature_layers = tuple(feature_layers)
        self._model = loaded.model
        layers = getattr(self._model.get_decoder(), "layers", ())
        if not self.feature_layers or not all(0 <= n < len(layers) for n in self.feature_layers):
            raise UnsupportedError(
                f"{loaded.name} has {len(layers)} layers, and no features of layers {list(self.feature_layers)}",
                fix="choose other feature layers",
            )
        self._taken: dict[int, torch.Tensor] = {}
        for number in self.feature_layers:
            layers[number].register_forward_hook(self._take(number))
        self._model.set_attn_implementation(INTERFACE_NAME)
        _lay_out(self._model)

    @property
    def feature_size(self) -> int:
        return len(self.feature_layers) * int(self.loaded.config.hidden_size)

    def start(self, lengths: Sequence[int], *, room: int) -> Batch:
        """A batch for prompts of these lengths and `room` more tokens each."""
        longest = max(lengths)
        first = torch.tensor([longest - n for n in lengths], device=self.loaded.device)
        return Batch(first=first, columns=longest + room)

    def forward(
        self, batch: Batch, ids: torch.Tensor, *, all_logits: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Read `ids` (b, n), the next n columns.

        Returns:
            Logits (b, vocab) of the last column, or (b, n, vocab) of all, float32; features (b, n, feature_size) float16.
        """
        batch.count = ids.shape[1]
        batch.masks.clear()
        columns = torch.arange(batch.length, batch.length + batch.count, device=ids.device)
        with torch.inference_mode():
            result = self._model(
                input_ids=ids,
                position_ids=(columns - batch.first[:, None]).clamp_(min=0),
                use_cache=False,
                logits_to_keep=0 if all_logits else 1,
                batch=batch,
            )
            batch.length += batch.count
            parts = [self._taken.pop(number) for number in self.feature_layers]
            limit = torch.finfo(torch.float16).max
            features = torch.cat(parts, dim=-1).clamp_(-limit, limit).to(torch.float16)
            # Once for all that looks at them: every walk through bfloat16 costs as much as the conversion.
            logits = result.logits.float()
            return logits if all_logits else logits[:, -1], features

    def _take(self, number: int) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            self._taken[number] = output[0] if isinstance(output, tuple) else output

        return hook


def _lay_out(model: Any) -> None:
    """Replace linear layers' forward by that of laid-out weights (CPU, bfloat16; see `models.linear`)."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            linear = packed_linear(module.weight.detach(), module.bias)
            if linear is not None:
                module.forward = linear  # type: ignore[assignment, method-assign]


def batch_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    batch: Batch | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in every layer: (b, heads, n, dim) queries, (b, kv_heads, n, dim) keys and values."""
    if batch is None or s_aux is not None or key.shape != value.shape:
        raise UnsupportedError(f"{type(module).__name__} uses attention sinks or unequal key and value sizes")
    number, kv_heads, count, dim = key.shape
    pool = batch.pools.get(module.layer_idx)
    if pool is None:
        pool = key.new_zeros((2, number, kv_heads, dim, batch.columns))
        batch.pools[module.layer_idx] = pool
    end = batch.length + count
    pool[0, ..., batch.length : end] = key.transpose(2, 3)
    pool[1, ..., batch.length : end] = value.transpose(2, 3)
    groups = query.shape[1] // kv_heads
    # Queries of the heads that share a key head are rows of one product, so keys are never repeated.
    asked = query.reshape(number, kv_heads, groups * count, dim) * (dim**-0.5 if scaling is None else scaling)
    scores = torch.matmul(asked, pool[0, ..., :end]).float()
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    law = torch.softmax(scores.add_(batch.bias(sliding_window, groups)), dim=-1).to(query.dtype)
    out = torch.matmul(pool[1, ..., :end], law.transpose(2, 3).contiguous()).transpose(2, 3)
    return out.reshape(number, -1, count, dim).transpose(1, 2), None


def top_probabilities(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest `count` ids of each row and their probabilities among all ids.

    Args:
        logits: (n, vocab), any float dtype.
    Returns:
        ids (n, count) int32 and probabilities (n, count) float16, likeliest first.
    """
    rows, vocab = logits.shape
    padded = F.pad(logits, (0, -vocab % _GROUP), value=float("-inf")).view(rows, -1, _GROUP)
    best = padded.amax(dim=-1).topk(min(count, padded.shape[1]), dim=-1).indices
    candidates = padded.gather(1, best[:, :, None].expand(-1, -1, _GROUP)).flatten(1)
    values, places = candidates.topk(count, dim=-1)
    ids = best.gather(1, places // _GROUP) * _GROUP + places % _GROUP
    mass = logits.float().logsumexp(dim=-1, keepdim=True)
    return ids.to(torch.int32), (values.float() - mass).exp().to(torch.float16)


# A name without an entry in transformers' mask registry: it then builds no mask at all.
AttentionInterface.register(INTERFACE_NAME, batch_attention)
