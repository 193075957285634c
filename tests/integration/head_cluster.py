"""What tests with a draft head in a process of its own share: a head that knows some texts, settings, and runs of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

from dist_spec.bench.deployment import Deployment
from dist_spec.config import Config, parse_config
from dist_spec.core.types import Sampling
from dist_spec.models.head_formats import save_head
from dist_spec.models.head_target import facts_of
from dist_spec.server.client import Stream
from tests.integration.local_cluster import PLAIN, LocalCluster, prompts_of
from tests.unit.head_cases import fitted_head, target

TARGET = "random:llama?seed=5&hidden=96&layers=6&ffn=256"
NUM_TOKENS = 80
SYNCHRONOUS = {"growth": "none", "delivery": "pull", "verify_shape": "chain", "on_miss": "draft", "budget": 8}


def samplings(count: int) -> list[Sampling]:
    return [
        Sampling(temperature=0.8 * (i % 2), seed=11 + i, max_tokens=NUM_TOKENS, ignore_eos=True) for i in range(count)
    ]


@cache
def plain_texts(count: int) -> list[list[int]]:
    return [
        LocalCluster(target(TARGET), PLAIN).run([prompt], [sampling])[0].tokens
        for prompt, sampling in zip(prompts_of(count), samplings(count), strict=True)
    ]


def fitted_folder(path: Path) -> Path:
    """A head that knows the texts of these tests by heart, on disk."""
    texts = [[*prompt, *text] for prompt, text in zip(prompts_of(4), plain_texts(4), strict=True)]
    save_head(fitted_head(texts, name=TARGET, steps=60, vocabulary=facts_of(target(TARGET)).vocabulary), path, bits=16)
    return path


def config(folder: Path, **changes: Any) -> Config:
    data: dict[str, Any] = {
        "target": {"model": TARGET, "dtype": "float32", "max_model_len": 512, "threads": 1},
        "drafters": [{"kind": "head", "name": "head", "model": str(folder), "dtype": "float32", "num_draft_tokens": 3}],
        "speculation": {"budget": 8},
        "transport": {"heartbeat_s": 0.2, "dead_after_s": 1.0},
    }
    return parse_config(data | changes)


def run(deployment: Deployment, *, count: int, name: str) -> list[Stream]:
    streams = [
        deployment.client.open(f"{name}{i}", prompt=prompt, sampling=sampling)
        for i, (prompt, sampling) in enumerate(zip(prompts_of(count), samplings(count), strict=True))
    ]
    start = monotonic()
    while deployment.client.streams:
        deployment.client.poll(timeout_s=0.01)
        deployment.check()
        assert monotonic() - start < 120, "the run did not finish"
    return streams


def accepted(streams: list[Stream]) -> int:
    return sum(int(stream.stats["accepted"]) for stream in streams)
