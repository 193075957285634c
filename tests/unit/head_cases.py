"""Tiny draft heads with random weights, features of a tiny target, and the head run over a whole text at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from dist_spec.models.head import Head, HeadConfig
from dist_spec.models.loading import LoadedModel, load_model

TARGET = "random:llama?seed=5&hidden=48&layers=4"
LAYERS = (0, 1, 2)


@cache
def target(name: str = TARGET) -> LoadedModel:
    return load_model(name, dtype="float32", device="cpu")


def head_config(name: str = TARGET, **changes: object) -> HeadConfig:
    config = target(name).config
    shape = {
        "target_hidden_size": config.hidden_size,
        "hidden_size": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "embedding_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": 100,
        "feature_layers": LAYERS,
        "target_name": name,
        "target_layers": config.num_hidden_layers,
        "vocabulary": "",
        "num_steps": 3,
        "max_positions": 2048,
    }
    return HeadConfig(**{**shape, **changes})  # type: ignore[arg-type]


def tiny_head(name: str = TARGET, *, seed: int = 0, **changes: object) -> Head:
    """Weights far from zero, and ids of the reduced vocabulary all over the target's."""
    config = head_config(name, **changes)
    draw = torch.Generator().manual_seed(seed)
    head = Head(config, embedding=target(name).model.get_input_embeddings().weight.detach())
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=draw) / parameter.shape[1] ** 0.5)
        head.lm_head.weight.mul_(3)
        order = torch.randperm(config.vocab_size, generator=draw)[: config.draft_vocab_size]
        head.draft_to_target.copy_(order.sort().values)
    return head.eval().requires_grad_(False)


def features_of(text: Sequence[int], name: str = TARGET) -> np.ndarray:
    """(len(text), 3 * hidden) float16: what the target's stock forward makes of a text."""
    with torch.inference_mode():
        result = target(name).model(input_ids=torch.tensor([list(text)]), output_hidden_states=True)
    parts = [result.hidden_states[layer + 1][0] for layer in LAYERS]
    return torch.cat(parts, dim=-1).half().numpy()


def whole_text_logits(
    head: Head, text: Sequence[int], *, num_true: int | None = None, window: int = 10_000, name: str = TARGET
) -> torch.Tensor:
    """(len(text) - 1, draft_vocab): row i predicts token i + 2; the first `num_true` rows rest on the target's features, the
    others one after the other on the head's own outputs."""
    size = len(text) - 1
    num_true = size if num_true is None else num_true
    features = torch.from_numpy(features_of(text, name))
    states = head.fuse(features[:num_true])
    outputs = torch.empty(0)
    while True:
        outputs = _forward(head, states, text, window)
        if len(states) == size:
            return head.logits(outputs)
        states = torch.cat([states, outputs[len(states) - 1 : len(states)]])


def _forward(head: Head, states: torch.Tensor, text: Sequence[int], window: int) -> torch.Tensor:
    count = len(states)
    place = torch.arange(count)
    seen = (place[None] <= place[:, None]) & (place[:, None] - place[None] < window)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        groups = q.shape[2] // k.shape[2]
        k, v = (one.repeat_interleave(groups, dim=2).transpose(1, 2) for one in (k, v))
        mixed = torch.nn.functional.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=seen)
        return mixed.transpose(1, 2).flatten(2)

    tokens = torch.tensor([list(text)[1 : count + 1]])
    return head(states[None], tokens, place[None], attend)[0]


def fitted_head(
    texts: Sequence[Sequence[int]], *, name: str = TARGET, steps: int = 120, seed: int = 0, **changes: object
) -> Head:
    """A head that knows these texts by heart (as long as it is fed their features), so that its guesses are accepted."""
    head = tiny_head(name, seed=seed, draft_vocab_size=target(name).vocab_size, **changes)
    for parameter in head.parameters():
        parameter.requires_grad_(True)
    known = [(torch.from_numpy(features_of(text, name)), list(text)) for text in texts]
    adam = torch.optim.Adam(head.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = torch.zeros(())
        for features, text in known:
            outputs = _forward(head, head.fuse(features[:-2]), text, 10_000)
            wanted = torch.tensor(text[2:])
            loss = loss + torch.nn.functional.cross_entropy(head.logits(outputs), wanted)
            # A second step on its own outputs, as it is used.
            again = _forward(head, outputs[:-1], text[1:], 10_000)
            loss = loss + torch.nn.functional.cross_entropy(head.logits(again), wanted[1:])
        adam.zero_grad()
        loss.backward()
        adam.step()
    return head.eval().requires_grad_(False)
