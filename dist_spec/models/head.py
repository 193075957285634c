"""A draft head (EAGLE-3): one decoder layer that continues a target's hidden features. Knows no files, caches or requests.

Row i stands for position i. It takes a state s_i and the embedding of the *next* token t_{i+1}, and predicts t_{i+2}. Where
the target's features f_i are known s_i is `fuse(f_i)`; beyond, it is the head's own output of row i - 1, which is what it is
trained on (Li et al., EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test, 2025).
The logits are over a reduced vocabulary; `draft_to_target` says which target ids they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

Attend: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""q (b, n, heads, dim), k and v (b, n, kv_heads, dim), rotated -> (b, n, heads * dim). Training and live inference bring
their own."""


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The shape of a head and what it was made for.

    Attributes:
        target_hidden_size: width of one layer's features; the head takes len(feature_layers) of them side by side.
        hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size, rope_theta, rms_norm_eps: of its layer.
        embedding_size: width of the token embedding (the target's own as a rule).
        vocab_size, draft_vocab_size: ids of the target, and of the head.
        feature_layers: 0-based decoder layers of the target whose outputs are taken.
        target_name, target_layers, vocabulary: what it was made for: the model id, its number of layers, the digest of its
            token map ("" where unknown: published checkpoints do not say).
        num_steps: steps of its own that it was trained to take.
        max_positions: longest sequence.
        norm_features: each layer's features are brought to unit size before they are fused.
        norm_before_residual: the residual of the layer is the normalised state (a variant of published checkpoints).
    """

    target_hidden_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float
    rms_norm_eps: float
    embedding_size: int
    vocab_size: int
    draft_vocab_size: int
    feature_layers: tuple[int, ...]
    target_name: str
    target_layers: int
    vocabulary: str
    num_steps: int
    max_positions: int
    norm_features: bool = False
    norm_before_residual: bool = False

    @property
    def feature_size(self) -> int:
        """Width of a position's features."""
        return self.target_hidden_size * len(self.feature_layers)


class Head(nn.Module):
    """See the module.

    Args:
        config: its shape.
        embedding: (vocab_size, embedding_size), the target's own; it is not a parameter and not part of the state dict.
    """

    draft_to_target: torch.Tensor
    embedding: torch.Tensor

    def __init__(self, config: HeadConfig, *, embedding: torch.Tensor) -> None:
        super().__init__()
        self.config = config
        size, heads, kv_heads, dim = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim
        both = config.embedding_size + size
        self.fc = nn.Linear(config.feature_size, size, bias=False)
        self.q = nn.Linear(both, heads * dim, bias=False)
        self.k = nn.Linear(both, kv_heads * dim, bias=False)
        self.v = nn.Linear(both, kv_heads * dim, bias=False)
        self.o = nn.Linear(heads * dim, size, bias=False)
        self.gate = nn.Linear(size, config.intermediate_size, bias=False)
        self.up = nn.Linear(size, config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, size, bias=False)
        self.embedding_norm = nn.Parameter(torch.ones(config.embedding_size))
        self.state_norm = nn.Parameter(torch.ones(size))
        self.mlp_norm = nn.Parameter(torch.ones(size))
        self.final_norm = nn.Parameter(torch.ones(size))
        self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False)
        self.register_buffer("draft_to_target", torch.arange(config.draft_vocab_size), persistent=True)
        self.register_buffer("embedding", embedding, persistent=False)
        half = torch.arange(0, dim, 2, dtype=torch.float64) / dim
        self._frequencies = config.rope_theta**-half

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """(..., feature_size) features of the target, any float dtype -> (..., hidden) states."""
        return self.fc(self.sized(features).to(self.fc.weight.dtype))

    def sized(self, features: torch.Tensor) -> torch.Tensor:
        """The features as `fc` takes them: each layer's part of unit size, where the config says so."""
        config = self.config
        if not config.norm_features:
            return features
        parts = features.float().unflatten(-1, (len(config.feature_layers), config.target_hidden_size))
        return F.rms_norm(parts, (config.target_hidden_size,), None, config.rms_norm_eps).flatten(-2)

    def forward(
        self, states: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """One layer over rows.

        Args:
            states: (b, n, hidden), s_i.
            tokens: (b, n) int64, t_{i+1}.
            positions: (b, n) int64, i.
        Returns:
            (b, n, hidden): the states of the next rows, and what `logits` takes.
        """
        both, residual = self.enter(states, tokens)
        q = self.rotate(self.q(both).unflatten(-1, (self.config.num_heads, self.config.head_dim)), positions)
        k, v = self.keys(both, positions)
        return self.leave(residual, attend(q, k, v))

    def enter(self, states: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's input (..., embedding + hidden) and its residual (..., hidden)."""
        config = self.config
        embedded = F.embedding(tokens, self.embedding).to(states.dtype)
        embedded = F.rms_norm(
            embedded, (config.embedding_size,), self.embedding_norm.to(states.dtype), config.rms_norm_eps
        )
        normed = F.rms_norm(states, (config.hidden_size,), self.state_norm.to(states.dtype), config.rms_norm_eps)
        return torch.cat((embedded, normed), dim=-1), normed if config.norm_before_residual else states

    def keys(self, both: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K (rotated) and V of the layer's input, (..., kv_heads, head_dim) each."""
        shape = (self.config.num_kv_heads, self.config.head_dim)
        return self.rotate(self.k(both).unflatten(-1, shape), positions), self.v(both).unflatten(-1, shape)

    def leave(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """From attention (..., heads * head_dim) to the layer's output (..., hidden)."""
        hidden = residual + self.o(attended)
        weight = self.mlp_norm.to(hidden.dtype)
        normed = F.rms_norm(hidden, (self.config.hidden_size,), weight, self.config.rms_norm_eps)
        return hidden + self.down(F.silu(self.gate(normed)) * self.up(normed))

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the vocabulary projection takes."""
        weight = self.final_norm.to(hidden.dtype)
        return F.rms_norm(hidden, (self.config.hidden_size,), weight, self.config.rms_norm_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., hidden) outputs of `forward` -> (..., draft_vocab)."""
        return self.lm_head(self.normed(hidden))

    def rotate(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotary embedding of (..., heads, head_dim) at `positions` (...), halves rotated as Llama does."""
        angles = positions[..., None, None].double() * self._frequencies.to(positions.device)
        cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        low, high = heads.chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)

    @property
    def num_parameters(self) -> int:
        """Parameters that are its own (without the embedding)."""
        return sum(p.numel() for p in self.parameters())
