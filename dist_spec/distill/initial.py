"""A new head for a target: its draft vocabulary, its shape, and weights to begin with. It knows nothing of training."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from dist_spec.distill.cache import Recipe, Shard
from dist_spec.models.head import Head, HeadConfig
from dist_spec.models.loading import LoadedModel

_EVERY = 7
"""Every so many positions are looked at for the size of features."""


def draft_vocabulary(
    shards: Iterable[Shard], *, vocab_size: int, size: int, always: Iterable[int] = ()
) -> tuple[torch.Tensor, float]:
    """The ids that the teacher's laws favour.

    Args:
        always: ids that must be in it (those that end a text).
    Returns:
        `size` ids, ascending, and their share of the top-k mass of all laws.
    """
    mass = _mass(shards, vocab_size)
    order = mass.clone()
    order[list(always)] = float("inf")
    ids = order.topk(min(size, vocab_size)).indices.sort().values
    return ids, _share(ids, mass)


def coverage_of(ids: torch.Tensor, shards: Iterable[Shard], *, vocab_size: int) -> float:
    """The share of some ids in the top-k mass of all laws."""
    return _share(ids, _mass(shards, vocab_size))


def _share(ids: torch.Tensor, mass: torch.Tensor) -> float:
    return float(mass[ids].sum() / mass.sum().clamp(min=1e-9))


def vocabulary_size(shards: Iterable[Shard], *, vocab_size: int, coverage: float) -> int:
    """The smallest multiple of 1024 with which `draft_vocabulary` reaches a coverage."""
    mass = _mass(shards, vocab_size)
    shares = mass.sort(descending=True).values.cumsum(0) / mass.sum().clamp(min=1e-9)
    return min(vocab_size, -(-(int((shares < coverage).sum()) + 1) // 1024) * 1024)


def _mass(shards: Iterable[Shard], vocab_size: int) -> torch.Tensor:
    mass = torch.zeros(vocab_size, dtype=torch.float64)
    for shard in shards:
        mass.index_add_(0, shard.top_ids.flatten().long(), shard.top_probs.flatten().double())
    return mass


def feature_scale(shards: Iterable[Shard], head: Head) -> torch.Tensor:
    """(feature_size,) factors that bring each channel of the features (see `Head.sized`) to a root mean square of 1."""
    squares, count = torch.zeros(head.config.feature_size, dtype=torch.float64), 0
    for shard in shards:
        some = head.sized(shard.features[::_EVERY]).double()
        squares += some.square().sum(dim=0)
        count += len(some)
    return (squares / max(1, count)).clamp(min=1e-8).rsqrt().float()


def head_config(
    target: LoadedModel, recipe: Recipe, *, draft_vocab_size: int, intermediate_size: int | None, num_steps: int
) -> HeadConfig:
    """A head as wide as the target."""
    config = target.config
    rope = getattr(config, "rope_parameters", None) or {}
    heads = int(config.num_attention_heads)
    return HeadConfig(
        target_hidden_size=int(config.hidden_size),
        hidden_size=int(config.hidden_size),
        num_heads=heads,
        num_kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        intermediate_size=intermediate_size or int(config.intermediate_size),
        rope_theta=float(rope.get("rope_theta", 10000.0)),
        rms_norm_eps=float(getattr(config, "rms_norm_eps", 1e-6)),
        embedding_size=int(config.hidden_size),
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size,
        feature_layers=recipe.feature_layers,
        target_name=target.name,
        target_layers=int(config.num_hidden_layers),
        vocabulary=recipe.vocabulary,
        num_steps=num_steps,
        max_positions=target.max_positions,
        norm_features=True,
    )


def new_head(target: LoadedModel, config: HeadConfig, *, ids: torch.Tensor, seed: int) -> Head:
    """A float32 head with seeded weights: the vocabulary rows are the target's own, the rest is small noise; the highest
    feature layer passes through unchanged at first."""
    embedding = target.model.get_input_embeddings().weight.detach()
    head = Head(config, embedding=embedding.to(torch.bfloat16 if embedding.device.type == "cpu" else embedding.dtype))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in head.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.normal_(std=module.in_features**-0.5, generator=generator)
        head.o.weight.mul_(0.5)
        head.down.weight.mul_(0.5)
        head.fc.weight.mul_(0.3)
        size, high = config.target_hidden_size, len(config.feature_layers) - 1
        if size == config.hidden_size:
            head.fc.weight[:, high * size :] += torch.eye(size)
        rows = target.model.get_output_embeddings().weight.detach()[ids.to(embedding.device)].float().cpu()
        # Rows of unit size on average: the first laws are then nearly uniform instead of confidently wrong.
        head.lm_head.weight.copy_(rows / rows.norm(dim=-1).mean())
        head.draft_to_target.copy_(ids)
    return head
