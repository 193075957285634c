"""A head taking several steps of its own, as in drafting, judged by the teacher's laws. It knows no files and no optimiser.

Every chain starts at a row whose true features are known and takes `num_steps` steps: the first from the true state, each
further one from the head's own output. Step j sees the keys of the true rows up to its start, and those of the chain's own
rows (EAGLE-3's training-time test, written by chains, so that steps may be taken on a part of the rows).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dist_spec.distill.batches import Batch
from dist_spec.distill.learner import Outcome
from dist_spec.models.head import Head


class Unrolled(nn.Module):
    """Head plus loss, as one module (so that data parallel wrappers see one forward).

    Args:
        step_weight: step j counts step_weight ** j.
        deep_chains: chains per sequence that go beyond the first step; None: all.
        feature_scale: (feature_size,) factors that bring every channel of the features to the same size. A few channels of a
            target are a hundred times the others, and an optimiser that moves all weights alike would see little else.
            `folded` makes an ordinary head of the result.
    """

    target_to_draft: torch.Tensor
    feature_scale: torch.Tensor

    def __init__(
        self,
        head: Head,
        *,
        num_steps: int,
        step_weight: float = 0.8,
        deep_chains: int | None = None,
        feature_scale: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.head = head
        self.num_steps = num_steps
        self._step_weight = step_weight
        self._deep = deep_chains
        places = torch.full((head.config.vocab_size,), -1, dtype=torch.int64)
        places[head.draft_to_target] = torch.arange(head.config.draft_vocab_size)
        self.register_buffer("target_to_draft", places, persistent=False)
        scale = torch.ones(head.config.feature_size) if feature_scale is None else feature_scale
        self.register_buffer("feature_scale", scale, persistent=False)

    @property
    def trained(self) -> Head:
        return self.head

    def with_weights(self, weights: Mapping[str, torch.Tensor]) -> Unrolled:
        """See `Learner.with_weights`."""
        device = self.head.draft_to_target.device
        head = Head(self.head.config, embedding=self.head.embedding).to(device)
        head.load_state_dict({**self.head.state_dict(), **weights})
        scale = self.feature_scale
        return Unrolled(head, num_steps=self.num_steps, step_weight=self._step_weight, feature_scale=scale).to(device)

    def folded(self) -> Head:
        """A head that takes features as they are: the same function."""
        head = Head(self.head.config, embedding=self.head.embedding).to(self.head.draft_to_target.device)
        head.load_state_dict({**self.head.state_dict(), "fc.weight": self.head.fc.weight * self.feature_scale})
        return head

    def forward(self, batch: Batch) -> Outcome:
        """See `Outcome`. All chains take the first step; of each sequence, evenly spread ones take the others."""
        head, config = self.head, self.head.config
        true = head.fc(head.sized(batch.features) * self.feature_scale)
        positions = torch.arange(batch.tokens.shape[1], device=true.device).expand(batch.tokens.shape)
        both, residual = head.enter(true, batch.tokens)
        keys = _Keys(*head.keys(both, positions), batch.starts)
        rows, chosen = batch.starts, torch.arange(batch.starts.shape[1], device=true.device)
        both, residual = _at(both, rows), _at(residual, rows)
        weights = [self._step_weight**j for j in range(self.num_steps)]
        losses, agreed, entropies = [], [], []
        for step in range(self.num_steps):
            valid = batch.valid[step][:, chosen]
            q = head.rotate(head.q(both).unflatten(-1, (config.num_heads, config.head_dim)), rows)
            if step:
                keys.add(*head.keys(both, rows))
            hidden = head.leave(residual, keys.attend(q))
            ids, probs = self._law(batch.law_ids[step][:, chosen][valid], batch.law_probs[step][:, chosen][valid])
            loss, best = SparseCrossEntropy.apply(head.logits(hidden[valid]), ids, probs)
            losses.append(weights[step] * loss / max(1, len(ids)))
            entropies.append((loss / max(1, len(ids))).detach())
            whole = torch.zeros_like(batch.valid[step])
            whole[:, chosen] = torch.zeros_like(valid).masked_scatter(valid, best)
            agreed.append(whole)
            if step + 1 == self.num_steps:
                break
            if step == 0 and self._deep is not None and self._deep < len(chosen):
                every = len(chosen) / self._deep
                chosen = (torch.arange(self._deep, device=true.device) * every).long()
                keys.narrow(chosen)
                hidden, rows = hidden[:, chosen], rows[:, chosen]
            rows = rows + 1
            tokens = batch.tokens.gather(1, rows.clamp(max=batch.tokens.shape[1] - 1))
            both, residual = head.enter(hidden, tokens)
        return Outcome(
            loss=torch.stack(losses).sum() / sum(weights),
            agreed=torch.stack(agreed),
            cross_entropy=torch.stack(entropies),
        )

    def _law(self, ids: torch.Tensor, probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The teacher's law on the draft vocabulary; what lies outside of it is left out (and counts less)."""
        places = self.target_to_draft[ids.long()]
        return places.clamp(min=0), probs.float().masked_fill(places < 0, 0.0)


def _at(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """values (b, rows, size) at rows (b, m) -> (b, m, size)."""
    return values.gather(1, rows[..., None].expand(-1, -1, values.shape[-1]))


class _Keys:
    """True keys and values of all rows, and the chains' own ones, step by step."""

    def __init__(self, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor) -> None:
        self._key, self._value = (
            key.permute(0, 2, 3, 1),
            value.transpose(1, 2),
        )  # (b, kv, dim, rows), (b, kv, rows, dim)
        rows = torch.arange(key.shape[1], device=key.device)
        self._hidden = rows > starts[..., None]  # (b, m, rows)
        self._own: list[tuple[torch.Tensor, torch.Tensor]] = []

    def narrow(self, chosen: torch.Tensor) -> None:
        """Go on with some of the chains."""
        self._hidden = self._hidden[:, chosen]
        self._own = [(k[:, chosen], v[:, chosen]) for k, v in self._own]

    def add(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """The chains' own row of this step, (b, m, kv, dim)."""
        self._own.append((key, value))

    def attend(self, query: torch.Tensor) -> torch.Tensor:
        """(b, m, heads, dim) -> (b, m, heads * dim)."""
        number, chains, heads, dim = query.shape
        kv = self._key.shape[1]
        groups = heads // kv
        asked = query.view(number, chains, kv, groups, dim)
        scores = torch.matmul(asked.permute(0, 2, 3, 1, 4).reshape(number, kv, groups * chains, dim), self._key)
        scores = scores.view(number, kv, groups, chains, -1).float()
        scores = scores.masked_fill(self._hidden[:, None, None], float("-inf"))
        own = [torch.einsum("bmkgd,bmkd->bkgm", asked, key)[..., None].float() for key, _ in self._own]
        law = torch.softmax(torch.cat([scores, *own], dim=-1) * dim**-0.5, dim=-1).to(query.dtype)
        rows = scores.shape[-1]
        out = torch.matmul(law[..., :rows].reshape(number, kv, groups * chains, rows), self._value)
        out = out.view(number, kv, groups, chains, dim).permute(0, 3, 1, 2, 4)
        for index, (_, value) in enumerate(self._own):
            share = law[..., rows + index].permute(0, 3, 1, 2)[..., None]  # (b, m, kv, groups, 1)
            out = out + share * value[:, :, :, None]
        return out.reshape(number, chains, heads * dim)


class SparseCrossEntropy(torch.autograd.Function):
    """Sum over rows of -sum_k probs_k log softmax(logits)[ids_k]; the gradient is made together with the value, so that the
    wide rows are walked through as seldom as possible. `probs` need not sum to 1: a row counts by its mass.

    Also returns, (rows,) bool, whether the largest logit is that of ids[:, 0]. (argmax would cost a tenth of a step.)"""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, ids: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        probs = probs.float()
        law = logits.float()
        mass = law.logsumexp(dim=-1, keepdim=True)
        asked = law.gather(1, ids)
        loss = (probs * (mass - asked)).sum()
        best = (asked[:, 0] >= law.amax(dim=-1)) & (probs[:, 0] > 0)
        ctx.mark_non_differentiable(best)
        if ctx.needs_input_grad[0]:
            grad = law.sub_(mass).exp_() if law is not logits else (law - mass).exp_()
            grad.mul_(probs.sum(dim=-1, keepdim=True)).scatter_add_(1, ids, -probs)
            ctx.save_for_backward(grad.to(logits.dtype))
        return loss, best

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,) = ctx.saved_tensors
        return grad * grads[0].to(grad.dtype), None, None


def leading_agreements(outcome: Outcome, batch: Batch) -> torch.Tensor:
    """How many steps from the first on agreed, one after the other, (b, m) int64; where the text ends, so does a chain."""
    return (outcome.agreed & batch.valid).long().cumprod(dim=0).sum(dim=0)
