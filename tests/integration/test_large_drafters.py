"""Drafters whose weights lie on disk, or are quantised, as real processes: the text is that of plain decoding, and their
guesses are accepted."""

from __future__ import annotations

import importlib.util

import pytest

from dist_spec.bench.deployment import Deployment
from dist_spec.config import parse_config
from dist_spec.core.types import Sampling
from tests.integration.local_cluster import PLAIN, LocalCluster, prompts_of
from tests.unit.large_cases import INT8, ON_DISK, loaded, saved

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SYNCHRONOUS = {
    "growth": "none",
    "delivery": "pull",
    "verify_shape": "chain",
    "on_miss": "draft",
    "budget": 12,
    "pull_timeout_s": 60,
}

needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="a quantised drafter is not tested: pip install torchao"
)


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"device_map": ON_DISK, "offload_folder": "offloaded"}, id="on disk"),
        pytest.param({"quantization": INT8}, id="quantised", marks=needs_torchao),
    ],
)
def test_sampled_text_is_that_of_plain_decoding(keys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = saved(tmp_path / "model")
    prompts = prompts_of(4)
    samplings = [Sampling(temperature=0.8, seed=11 + i, max_tokens=40, ignore_eos=True) for i in range(4)]
    plain = LocalCluster(loaded(folder), PLAIN).run(prompts, samplings)
    drafter = {
        "kind": "model",
        "name": "large",
        "model": str(folder),
        "dtype": "float32",
        "num_draft_tokens": 3,
        **keys,
    }
    config = parse_config(
        {
            "target": {"model": str(folder), "dtype": "float32", "max_model_len": 256, "threads": 1},
            "drafters": [drafter],
            # The leader asks and waits: the machine may be busy, and this target is faster than any drafter.
            "speculation": SYNCHRONOUS,
        }
    )
    with Deployment("large-drafter", config) as deployment:
        deployment.wait_ready()
        streams = [
            deployment.client.open(f"r{i}", prompt=prompt, sampling=sampling)
            for i, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
        ]
        while any(not stream.reason for stream in streams):
            deployment.client.poll(timeout_s=0.5)
            deployment.check()
    assert [stream.tokens for stream in streams] == [stream.tokens for stream in plain]
    accepted, verified = (sum(stream.stats[name] for stream in streams) for name in ("accepted", "verified"))
    assert accepted > 0.5 * verified > 0
