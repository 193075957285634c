"""Tiny targets, shards and heads for the tests of `dist_spec.distill`."""

from __future__ import annotations

from pathlib import Path

import torch

from dist_spec.distill.cache import Recipe, Shard
from dist_spec.models.head import Head, HeadConfig

FEATURE = 8
VOCAB = 50
TOP_K = 4


def tiny_recipe(**changes: object) -> Recipe:
    values: dict[str, object] = {
        "target": "random:llama?layers=3&hidden=32",
        "vocabulary": "abc",
        "feature_layers": (0, 1, 2),
        "feature_size": 3 * FEATURE,
        "top_k": TOP_K,
        "prompts": "tests",
        "per_shard": 4,
        "temperatures": (0.0, 1.0),
        "max_new_tokens": 16,
        "dtype": "float32",
        "seed": 0,
    }
    return Recipe(**{**values, **changes})  # type: ignore[arg-type]


def tiny_shard(*, seed: int, lengths: tuple[int, ...] = (14, 9, 11, 16), prompt: int = 4) -> Shard:
    """Text that can be learned: the next token is the last one plus one, and the features say which one it is."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    tokens = torch.cat(
        [(torch.randint(0, VOCAB, (1,), generator=generator) + torch.arange(n)) % VOCAB for n in lengths]
    )
    table = torch.randn(VOCAB, 3 * FEATURE, generator=torch.Generator().manual_seed(7))
    others = torch.randint(0, VOCAB, (total, TOP_K - 1), generator=generator)
    ids = torch.cat([((tokens + 1) % VOCAB)[:, None], others], dim=1)
    probs = torch.tensor([0.85, 0.06, 0.03, 0.01]).repeat(total, 1)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return Shard(
        tokens=tokens.to(torch.int32),
        features=table[tokens].to(torch.float16),
        top_ids=ids.to(torch.int32),
        top_probs=probs.to(torch.float16),
        offsets=offsets,
        prompt_lengths=torch.full((len(lengths),), prompt),
        domains=torch.zeros(len(lengths), dtype=torch.int64),
        domain_names=("chat",),
    )


def tiny_head(*, seed: int = 0, **changes: object) -> Head:
    values: dict[str, object] = {
        "target_hidden_size": FEATURE,
        "hidden_size": 16,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 24,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "embedding_size": 8,
        "vocab_size": VOCAB,
        "draft_vocab_size": VOCAB - 10,
        "feature_layers": (0, 1, 2),
        "target_name": "tiny",
        "target_layers": 3,
        "vocabulary": "abc",
        "num_steps": 3,
        "max_positions": 128,
    }
    config = HeadConfig(**{**values, **changes})  # type: ignore[arg-type]
    # The embedding is the target's: it does not depend on the seed.
    embedding = torch.randn(config.vocab_size, config.embedding_size, generator=torch.Generator().manual_seed(99))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = Head(config, embedding=embedding)
        head.draft_to_target.copy_(torch.arange(config.vocab_size)[-config.draft_vocab_size :])
    return head


def folder_of(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()}
