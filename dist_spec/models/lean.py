"""A lean forward for plain decoder stacks (Llama, Mistral, Qwen2, Qwen3): transformers' weights, fewer operations.

Transformers' definition stays the authority: `build_lean` refuses (returns None) whatever it does not know to the
last setting, and the result is compared with the stock model when it is loaded (`invariance.check_against_stock`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from dist_spec.models.linear import Linear, fused_linear
from dist_spec.models.step import Step

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_FIRST_TABLE = 4096


@dataclass(kw_only=True, slots=True)
class _Layer:
    """One decoder layer's weights, fused; `window` is its sliding window."""

    before_attention: torch.Tensor
    before_mlp: torch.Tensor
    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    scale: float
    window: int | None


class LeanStack:
    """Embedding to last layer, and the head, of one model."""

    def __init__(self, model: Any, *, pack: bool) -> None:
        config = model.config
        body = model.model
        self._heads = int(config.num_attention_heads)
        self._kv_heads = int(config.num_key_value_heads)
        self._dim = int(body.layers[0].self_attn.head_dim)
        self._ffn = int(config.intermediate_size)
        self._eps = float(config.rms_norm_eps)
        self._hidden = int(config.hidden_size)
        self._embedding = body.embed_tokens.weight
        self._norm = body.norm.weight
        self._head = fused_linear([model.lm_head], pack=pack)
        self._layers = [_layer(layer, config, pack=pack) for layer in body.layers]
        self._rotary = body.rotary_emb
        self._table = self._rotary_table(min(_FIRST_TABLE, int(config.max_position_embeddings)))
        self._max_positions = int(config.max_position_embeddings)

    def logits(self, step: Step, *, last_position: int, min_rows: int) -> torch.Tensor:
        """Logits of `step.logit_rows`, (n, vocab) in the model's dtype; at least `min_rows` rows are computed."""
        if last_position >= len(self._table):
            self._table = self._rotary_table(min(2 * (last_position + 1), self._max_positions))
        hidden = F.embedding(step.ids, self._embedding)
        turn = self._table[step.positions]
        cos, sin = turn[:, 0], turn[:, 1]
        for number, layer in enumerate(self._layers):
            hidden = self._run(layer, hidden, step, number, cos, sin)
            if number in step.capture:  # nothing writes into a layer's output later
                step.captured[number] = hidden
        wanted = list(step.logit_rows)
        picked = wanted + [0] * (min_rows - len(wanted)) if wanted else []
        if picked != list(range(hidden.shape[0])):
            hidden = hidden[torch.tensor(picked, dtype=torch.long, device=hidden.device)]
        if not wanted:
            return hidden.new_empty((0, self._embedding.shape[0]))
        return self._head(F.rms_norm(hidden, (self._hidden,), self._norm, self._eps))[: len(wanted)]

    def _run(
        self, layer: _Layer, hidden: torch.Tensor, step: Step, number: int, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        heads, turned, eps = self._heads, self._heads + self._kv_heads, self._eps
        rows = hidden.shape[0]
        normed = F.rms_norm(hidden, (self._hidden,), layer.before_attention, eps)
        qkv = layer.qkv(normed).view(rows, turned + self._kv_heads, self._dim)
        qk = qkv[:, :turned]
        if layer.query_norm is not None:
            qk[:, :heads] = F.rms_norm(qk[:, :heads], (self._dim,), layer.query_norm, eps)
            qk[:, heads:] = F.rms_norm(qk[:, heads:], (self._dim,), layer.key_norm, eps)
        swapped = qk.roll(self._dim // 2, -1)
        qk.mul_(cos).addcmul_(swapped, sin)
        attended = step.attend(
            step,
            number,
            qkv[:, :heads],
            qkv[:, heads:].view(rows, 2, self._kv_heads, self._dim),
            scale=layer.scale,
            window=layer.window,
        )
        hidden = layer.out(attended.reshape(rows, -1)).add_(hidden)
        both = layer.gate_up(F.rms_norm(hidden, (self._hidden,), layer.before_mlp, eps))
        return layer.down(F.silu(both[:, : self._ffn]).mul_(both[:, self._ffn :])).add_(hidden)

    def _rotary_table(self, length: int) -> torch.Tensor:
        """(length, 2, 1, head_dim): cosines, and sines whose first half is negated so that a roll replaces rotate_half."""
        place = self._embedding.device
        positions = torch.arange(length, device=place)[None]
        cos, sin = self._rotary(self._embedding[:1][None], positions)
        half = self._dim // 2
        signed = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
        return torch.stack((cos[0], signed[0]), dim=1)[:, :, None].contiguous()


def _layer(layer: Any, config: Any, *, pack: bool) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    window = getattr(attention, "sliding_window", None)
    if config.model_type == "mistral":
        window = getattr(config, "sliding_window", None)
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return _Layer(
        before_attention=layer.input_layernorm.weight,
        before_mlp=layer.post_attention_layernorm.weight,
        qkv=fused_linear([attention.q_proj, attention.k_proj, attention.v_proj], pack=pack),
        out=fused_linear([attention.o_proj], pack=pack),
        gate_up=fused_linear([mlp.gate_proj, mlp.up_proj], pack=pack),
        down=fused_linear([mlp.down_proj], pack=pack),
        query_norm=None if query_norm is None else query_norm.weight,
        key_norm=None if key_norm is None else key_norm.weight,
        scale=float(attention.scaling),
        window=window,
    )


def build_lean(model: Any, *, pack: bool) -> LeanStack | None:
    """The lean form of `model`, or None where the family or one of its settings is not known here."""
    return LeanStack(model, pack=pack) if is_known(model) else None


def is_known(model: Any) -> bool:
    """Whether `build_lean` knows the family and every setting of it."""
    config = model.config
    if config.model_type not in FAMILIES or getattr(config, "hidden_act", None) != "silu":
        return False
    if getattr(config, "partial_rotary_factor", None) not in (None, 1, 1.0):
        return False
    attention = model.model.layers[0].self_attn
    strange = set(dict(attention.named_children())) - {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}
    return not strange and all(isinstance(m, torch.nn.Linear) for m in (attention.q_proj, model.lm_head))
