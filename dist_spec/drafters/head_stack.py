"""A draft head as few operations: its linear layers fused and laid out ahead of time, its attention left to the caller's
step. It knows no requests, trees or files."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dist_spec.models.head import Head
from dist_spec.models.linear import Linear, fused_linear
from dist_spec.models.step import Step

_FIRST_TABLE = 2048


class HeadStack:
    """`Head.forward` and `Head.logits` over packed rows, with the same results up to rounding.

    Args:
        head: in eval mode, on its device; without packing its linear layers become views of the fused ones.
        pack: keep second, laid-out copies of the weights where that makes them faster (CPU, bfloat16).
    """

    def __init__(self, head: Head, *, pack: bool) -> None:
        config = head.config
        self.head = head
        self.dtype = head.fc.weight.dtype
        self.device = head.fc.weight.device
        self.hidden_size = config.hidden_size
        self._heads, self._kv_heads, self._dim = config.num_heads, config.num_kv_heads, config.head_dim
        self._ffn, self._eps = config.intermediate_size, config.rms_norm_eps
        self._state_norm, self._mlp_norm, self._final_norm = (
            norm.detach().to(self.dtype) for norm in (head.state_norm, head.mlp_norm, head.final_norm)
        )
        # The head reads embeddings in no other form than this one, so they are brought into it once.
        embedding, weight = head.embedding.to(self.dtype), head.embedding_norm.detach().to(self.dtype)
        self._embedding = F.rms_norm(embedding, (config.embedding_size,), weight, config.rms_norm_eps)
        self._fuse = fused_linear([head.fc], pack=pack)
        self._qkv = fused_linear([head.q, head.k, head.v], pack=pack)
        self._out: Linear = fused_linear([head.o], pack=pack)
        self._gate_up = fused_linear([head.gate, head.up], pack=pack)
        self._down = fused_linear([head.down], pack=pack)
        self._vocabulary = fused_linear([head.lm_head], pack=pack)
        self._scale = float(config.head_dim**-0.5)
        self._table = self._rotary_table(_FIRST_TABLE)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """(n, feature_size) float16 features of the target -> (n, hidden) states."""
        config = self.head.config
        if config.norm_features:
            size = config.target_hidden_size
            parts = features.float().unflatten(-1, (-1, size))
            features = F.rms_norm(parts, (size,), None, config.rms_norm_eps).flatten(-2)
        return self._fuse(features.to(self.dtype))

    def run(
        self, states: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor, *, last_position: int, step: Step
    ) -> torch.Tensor:
        """K/V of all rows into the step's cache, and the outputs of the last `len(step.ids)` of them.

        Args:
            states: (n, hidden), tokens: (n,) ids, positions: (n,); see `Head.forward`.
            last_position: the largest position.
            step: its segments number the rows whose outputs are wanted, from 0.
        Returns:
            (len(step.ids), hidden).
        """
        config, eps, size = self.head.config, self._eps, self.hidden_size
        embedded = F.embedding(tokens, self._embedding)
        normed = F.rms_norm(states, (size,), self._state_norm, eps)
        heads, turned = self._heads, self._heads + self._kv_heads
        qkv = self._qkv(torch.cat((embedded, normed), dim=-1)).view(-1, turned + self._kv_heads, self._dim)
        self._turn(qkv[:, :turned], positions, last_position)
        asked = step.ids.shape[0]
        kv = qkv[:, heads:].view(-1, 2, self._kv_heads, self._dim)
        if not asked:
            step.write(step.cache.layers[0], kv)
            return states[:0]
        attended = step.attend(step, 0, qkv[-asked:, :heads], kv, scale=self._scale)
        residual = (normed if config.norm_before_residual else states)[-asked:]
        hidden = self._out(attended.reshape(asked, -1)) + residual
        both = self._gate_up(F.rms_norm(hidden, (size,), self._mlp_norm, eps))
        return self._down(F.silu(both[:, : self._ffn]) * both[:, self._ffn :]).add_(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(n, draft_vocab) float32."""
        return self._vocabulary(F.rms_norm(hidden, (self.hidden_size,), self._final_norm, self._eps)).float()

    def _turn(self, qk: torch.Tensor, positions: torch.Tensor, last_position: int) -> None:
        """Rotary embedding in place, as `Head.rotate`."""
        if last_position >= len(self._table):
            self._table = self._rotary_table(2 * (last_position + 1))
        turn = self._table[positions]
        swapped = qk.roll(self._dim // 2, -1)
        qk.mul_(turn[:, 0]).addcmul_(swapped, turn[:, 1])

    def _rotary_table(self, length: int) -> torch.Tensor:
        """(length, 2, 1, head_dim): cosines, and sines whose first half is negated (see `models.lean`)."""
        half = torch.arange(0, self._dim, 2, dtype=torch.float64) / self._dim
        angles = torch.arange(length, dtype=torch.float64)[:, None] * self.head.config.rope_theta**-half
        cos, sin = angles.cos(), angles.sin()
        table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1)
        return table[:, :, None].to(device=self.device, dtype=self.dtype).contiguous()
