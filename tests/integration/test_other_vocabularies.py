"""Drafters with another tokenizer: the text is that of plain decoding, and speculation happened."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from dist_spec.bench.deployment import Deployment
from dist_spec.config import parse_config
from dist_spec.core.settings import Speculation
from dist_spec.core.types import Sampling
from dist_spec.drafters.base import Drafter
from dist_spec.drafters.draw import LawSettings
from dist_spec.drafters.intersection import IntersectionDrafter
from dist_spec.drafters.text_match import TextDrafter
from dist_spec.models.loading import LoadedModel
from tests.integration.local_cluster import PLAIN, LocalCluster, prompts_of
from tests.unit.vocabulary_cases import between, byte_bpe, piece_bpe, random_with, reader, shuffled, writer

TARGET = "llama?seed=5&hidden=48"
CHAIN = Speculation(growth="optimistic", verify_shape="chain", num_draft_tokens=4)
BLIND = Speculation(growth="optimistic", verify_shape="chain", num_draft_tokens=4, budget=12, blind=True)


def samplings(temperature: float, count: int) -> list[Sampling]:
    return [
        Sampling(temperature=temperature, seed=11 + i, max_tokens=40 - 3 * i, ignore_eos=True) for i in range(count)
    ]


@cache
def plain_texts(temperature: float, count: int) -> list[list[int]]:
    cluster = LocalCluster(writer(TARGET), PLAIN)
    return [stream.tokens for stream in cluster.run(prompts_of(count, vocab=128), samplings(temperature, count))]


def drafter(way: str, loaded: LoadedModel, target: LoadedModel, *, laws: LawSettings | None = None) -> Drafter:
    both = between(target, loaded)
    if way == "text":
        return TextDrafter(reader(loaded), both=both)
    return IntersectionDrafter(reader(loaded), both=both, laws=laws)


@pytest.mark.parametrize("way", ["intersection", "text"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("settings", [Speculation(), CHAIN], ids=["tree", "chain"])
@pytest.mark.parametrize("count", [1, 4])
def test_the_same_model_under_other_ids_is_accepted(way, temperature, settings, count):
    target = writer(TARGET)
    cluster = LocalCluster(target, settings, drafters=[lambda: drafter(way, shuffled(TARGET), target)], seed=1)
    streams = cluster.run(prompts_of(count, vocab=128), samplings(temperature, count))
    assert [stream.tokens for stream in streams] == plain_texts(temperature, count)
    assert cluster.counts.accepted > 0.2 * cluster.counts.committed


@pytest.mark.parametrize("way", ["intersection", "text"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("make", [byte_bpe, piece_bpe])
def test_a_drafter_of_another_family(way, temperature, make):
    target = writer(TARGET)
    cluster = LocalCluster(target, Speculation(), drafters=[lambda: drafter(way, random_with(make()), target)], seed=2)
    streams = cluster.run(prompts_of(4, vocab=128), samplings(temperature, 4))
    assert [stream.tokens for stream in streams] == plain_texts(temperature, 4)
    assert cluster.counts.verified > 0


def test_under_rejection_the_law_is_told_in_the_targets_ids():
    target = writer(TARGET)
    laws = LawSettings(size=128)
    make = [lambda: drafter("intersection", shuffled(TARGET), target, laws=laws)]
    cluster = LocalCluster(target, BLIND, drafters=make, rule="rejection", seed=3)
    streams = cluster.run(prompts_of(4, vocab=128), samplings(0.8, 4))
    assert [len(stream.tokens) for stream in streams] == [40, 37, 34, 31]
    assert cluster.counts.accepted > 0.9 * cluster.counts.verified > 0  # the same law: as good as always accepted


def save(loaded: LoadedModel, folder: Path) -> Path:
    loaded.model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(loaded.tokenizer._inner.to_str())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": loaded.tokenizer.eos_ids[0]}))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("vocabulary", ["auto", "text"])
def test_as_real_processes(vocabulary, temperature, tmp_path):
    folder = save(shuffled(TARGET), tmp_path / "other")
    entry = {"kind": "model", "name": "other", "model": str(folder), "dtype": "float32", "vocabulary": vocabulary}
    config = parse_config(
        {
            "target": {
                "model": str(save(writer(TARGET), tmp_path / "target")),
                "dtype": "float32",
                "max_model_len": 256,
                "threads": 1,
            },
            "drafters": [entry],
            "speculation": {"on_miss": "wait", "max_wait_s": 0.05},
        }
    )
    with Deployment("other-vocabulary", config) as deployment:
        deployment.wait_ready()
        streams = [
            deployment.client.open(f"r{i}", prompt=prompt, sampling=sampling)
            for i, (prompt, sampling) in enumerate(
                zip(prompts_of(4, vocab=128), samplings(temperature, 4), strict=True)
            )
        ]
        while any(not stream.reason for stream in streams):
            deployment.client.poll(timeout_s=0.5)
            deployment.check()
    assert [stream.tokens for stream in streams] == plain_texts(temperature, 4)
    assert sum(stream.stats["accepted"] for stream in streams) > 0
