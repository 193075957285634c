"""A draft head in a process of its own: features reach it over its second connection, it is killed and comes back, and a run
with it replays."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from dist_spec.bench.deployment import Deployment
from dist_spec.errors import DistSpecError, ModelError
from dist_spec.models.head_formats import save_head
from dist_spec.telemetry.timeline import Timeline
from dist_spec.workers.draft_app import build_draft
from dist_spec.workers.record import load_events
from dist_spec.workers.replay import replay
from dist_spec.workers.target_build import build_target, load_target
from tests.integration.head_cluster import (
    NUM_TOKENS,
    SYNCHRONOUS,
    TARGET,
    accepted,
    config,
    fitted_folder,
    plain_texts,
    run,
    samplings,
)
from tests.integration.local_cluster import prompts_of
from tests.unit.head_cases import head_config, tiny_head

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted_folder(tmp_path_factory.mktemp("head"))


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Deployment]:
    with Deployment("head", config(folder, speculation=SYNCHRONOUS)) as deployment:
        deployment.wait_ready()
        yield deployment


@pytest.mark.parametrize("count", [1, 4])
def test_text_equals_plain_decoding(cluster: Deployment, count: int) -> None:
    streams = run(cluster, count=count, name=f"equal{count}-")
    assert [stream.tokens for stream in streams] == plain_texts(count)
    assert accepted(streams) > 0.3 * count * NUM_TOKENS
    stats = cluster.client.last_stats
    assert stats["link_head_out_features_bytes"] > count * NUM_TOKENS * 3 * 96 * 2


def test_streamed_beside_other_drafters(folder: Path) -> None:
    both = [*config(folder).model_dump(mode="json")["drafters"], {"kind": "suffix"}, {"kind": "ngram"}]
    with Deployment("mixed", config(folder, drafters=both)) as deployment:
        deployment.wait_ready()
        found = 0
        for turn in range(20):  # so small a target may be through before a guess has reached it
            streams = run(deployment, count=4, name=f"r{turn}-")
            assert [stream.tokens for stream in streams] == plain_texts(4)
            found += accepted(streams)
            if found:
                break
        assert found > 0


def test_killed_in_the_middle_it_comes_back_and_helps_again(cluster: Deployment) -> None:
    kills = 0
    for turn in range(3):
        pid = cluster.supervisor.running().get("head")
        streams = [
            cluster.client.open(f"kill{turn}-{i}", prompt=prompt, sampling=sampling)
            for i, (prompt, sampling) in enumerate(zip(prompts_of(4), samplings(4), strict=True))
        ]
        while cluster.client.streams:
            cluster.client.poll(timeout_s=0.002)
            cluster.check()
            if pid is not None and len(streams[0].tokens) > 10 * turn:
                os.kill(pid, signal.SIGKILL)
                pid, kills = None, kills + 1
        assert [stream.tokens for stream in streams] == plain_texts(4)
    assert kills
    deadline = monotonic() + 30
    while monotonic() < deadline:
        sleep(0.2)
        cluster.check()
        again = run(cluster, count=1, name=f"after{monotonic()}-")
        assert [stream.tokens for stream in again] == plain_texts(1)
        if accepted(again) > 0:
            return
    raise AssertionError("the head does not help any more")


def test_a_recorded_run_replays_with_its_features(folder: Path, tmp_path: Path) -> None:
    settings = config(folder, telemetry={"record": str(tmp_path / "run")})
    with Deployment("record", settings) as deployment:
        deployment.wait_ready()
        streams = run(deployment, count=4, name="r")
        told = deployment.client.last_stats
    assert [stream.tokens for stream in streams] == plain_texts(4)
    records = {machine: load_events(tmp_path / f"run.{machine}.jsonl")[1] for machine in ("leader", "head")}
    received = [event[3] for event in records["head"] if event[0] == "received" and event[3]]
    assert any(name[0] == "features" for name in received)
    assert any(name[0] == "commit" and name[-1] > 0 for name in received)
    loaded = load_target(settings, log=logging.getLogger("test"))
    replayed = replay(
        records,
        target=lambda transport, recorder: build_target(
            settings, loaded, transport=transport, timeline=Timeline(monotonic), recorder=recorder
        ),
        drafters={
            "head": lambda transport, recorder: build_draft(
                settings, name="head", transport=transport, recorder=recorder
            )[0]
        },
    )
    counts = replayed.target.session.counts
    for name in ("steps", "rows", "drafted", "verified", "accepted", "committed", "proposals"):
        assert getattr(counts, name) == int(told[f"session_{name}"]), name


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"target_hidden_size": 64}, "target_hidden_size"),
        ({"target_layers": 9}, "target_layers"),
        ({"vocabulary": "0"}, "vocabulary"),
    ],
)
def test_a_head_of_another_target_is_refused_at_start(changes: dict[str, Any], field: str, tmp_path: Path) -> None:
    made_for = head_config(TARGET, **changes)
    save_head(tiny_head(TARGET, **changes), tmp_path)
    assert getattr(made_for, field) == changes[field]
    with pytest.raises(DistSpecError, match=field) as caught, Deployment("wrong", config(tmp_path)) as deployment:
        deployment.wait_ready()
    assert not isinstance(caught.value, ModelError)  # it comes from the other process, with its words
