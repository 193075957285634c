"""Real processes over ZeroMQ: the text stays the same while drafters are killed, stopped, resumed, restarted, or lie."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import zmq

from dist_spec.bench.deployment import Deployment
from dist_spec.config import Config, parse_config
from dist_spec.core.types import Sampling
from dist_spec.errors import WorkerError
from dist_spec.server.client import Stream
from tests.integration.local_cluster import PLAIN, LocalCluster, prompts_of
from tests.integration.process_cases import alive
from tests.integration.test_equality import model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Slow enough (about 4 ms a step) that faults strike in the middle of a request.
TARGET = "random:llama?seed=5&hidden=192&layers=8&ffn=512&vocab=2048"
NUM_TOKENS = 200


def samplings(count: int) -> list[Sampling]:
    return [
        Sampling(temperature=0.8 * (i % 2), seed=11 + i, max_tokens=NUM_TOKENS, ignore_eos=True) for i in range(count)
    ]


@cache
def plain_texts(count: int) -> list[list[int]]:
    return [
        LocalCluster(model(TARGET), PLAIN).run([prompt], [sampling])[0].tokens
        for prompt, sampling in zip(prompts_of(count), samplings(count), strict=True)
    ]


TWIN = {"kind": "model", "name": "twin", "model": TARGET, "dtype": "float32", "num_draft_tokens": 3}


@cache
def text_file() -> str:
    """Prompts with the texts that the target makes of them, for a drafter that is right nine times in ten."""
    lines = [[*prompt, *text] for prompt, text in zip(prompts_of(4), plain_texts(4), strict=True)]
    path = Path(tempfile.mkdtemp(prefix="dist-spec-texts-")) / "texts"
    path.write_text("\n".join(" ".join(map(str, line)) for line in lines))
    return str(path)


def scripted(**changes: Any) -> dict[str, Any]:
    script = {"kind": "scripted", "name": "script", "text_file": text_file(), "a": 0.9, "b": 0.5, "step_s": 0.0005}
    return script | changes


def config(**changes: Any) -> Config:
    data: dict[str, Any] = {
        "target": {"model": TARGET, "dtype": "float32", "max_model_len": 512, "threads": 1},
        "drafters": [scripted()],
        "transport": {"heartbeat_s": 0.2, "dead_after_s": 1.0},
    }
    return parse_config(data | changes)


def run(
    deployment: Deployment, *, count: int, name: str, during: Callable[[float], None] = lambda elapsed: None
) -> list[Stream]:
    """Decode `count` prompts together; `during` is called again and again with the seconds since the start."""
    streams = [
        deployment.client.open(f"{name}{i}", prompt=prompt, sampling=sampling)
        for i, (prompt, sampling) in enumerate(zip(prompts_of(count), samplings(count), strict=True))
    ]
    start = time.monotonic()
    while deployment.client.streams:
        deployment.client.poll(timeout_s=0.01)
        deployment.check()
        during(time.monotonic() - start)
        assert time.monotonic() - start < 120, "the run did not finish"
    return streams


def accepted(streams: list[Stream]) -> int:
    return sum(int(stream.stats["accepted"]) for stream in streams)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Deployment]:
    with Deployment("faults", config()) as deployment:
        deployment.wait_ready()
        yield deployment


def settle(deployment: Deployment) -> None:
    """Until the drafter is attached again after whatever was done to it."""
    deployment.client.connect(timeout_s=10)
    noticed = time.monotonic() + 1.5  # by then the leader knows of a death
    while time.monotonic() < noticed:
        deployment.check()
        deployment.client.poll(timeout_s=0.05)
    deadline = time.monotonic() + 20
    while deployment.client.num_drafters < 1:
        deployment.check()
        deployment.client.poll(timeout_s=0.05)
        assert time.monotonic() < deadline, "the drafter did not come back"


@pytest.mark.parametrize("count", [1, 4])
def test_text_equals_plain_decoding(cluster: Deployment, count: int) -> None:
    streams = run(cluster, count=count, name=f"equal{count}-")
    assert [stream.tokens for stream in streams] == plain_texts(count)
    assert accepted(streams) > 0.3 * count * NUM_TOKENS


class Tormentor:
    """Does one thing after another to a drafter process, at seeded moments."""

    def __init__(self, deployment: Deployment, kinds: list[str], *, seed: int, every_s: float = 0.3) -> None:
        self.deployment, self.kinds = deployment, kinds
        self.draw = random.Random(seed)
        self.every_s, self.next_s = every_s, every_s
        self.done: list[str] = []

    def __call__(self, elapsed: float) -> None:
        if elapsed < self.next_s:
            return
        self.next_s = elapsed + self.every_s * self.draw.uniform(0.5, 1.5)
        pid = self.deployment.supervisor.running().get("script")
        if pid is None:
            return
        kind = self.draw.choice(self.kinds)
        os.kill(pid, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "resume": signal.SIGCONT}[kind])
        self.done.append(kind)


@pytest.mark.parametrize("kinds", [["kill"], ["stop", "resume"], ["kill", "stop", "resume"]], ids="+".join)
def test_killed_stopped_and_resumed_drafters(cluster: Deployment, kinds: list[str]) -> None:
    settle(cluster)
    tormentor = Tormentor(cluster, kinds, seed=len(kinds))
    streams = run(cluster, count=4, name=f"fault-{'-'.join(kinds)}-", during=tormentor)
    assert [stream.tokens for stream in streams] == plain_texts(4)
    assert tormentor.done, "nothing happened to the drafter"
    pid = cluster.supervisor.running().get("script")
    if pid is not None:
        os.kill(pid, signal.SIGCONT)
    settle(cluster)
    # Whatever happened, the next request is drafted for again.
    again = run(cluster, count=1, name=f"after-{'-'.join(kinds)}-")
    assert [stream.tokens for stream in again] == plain_texts(1)
    assert accepted(again) > 0


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(25))
def test_many_faults(cluster: Deployment, seed: int) -> None:
    settle(cluster)
    tormentor = Tormentor(cluster, ["kill", "stop", "resume", "resume"], seed=100 + seed, every_s=0.2)
    streams = run(cluster, count=4, name=f"many{seed}-", during=tormentor)
    assert [stream.tokens for stream in streams] == plain_texts(4)
    if "script" in cluster.supervisor.running():
        os.kill(cluster.supervisor.running()["script"], signal.SIGCONT)
    settle(cluster)
    again = run(cluster, count=1, name=f"many-after{seed}-")
    assert accepted(again) > 0


def test_garbage_from_strangers(cluster: Deployment) -> None:
    """Raw bytes, and proposals by somebody who never said hello, disturb nobody."""
    settle(cluster)
    context = zmq.Context()
    sockets = [context.socket(zmq.DEALER) for _ in range(3)]
    for socket in sockets:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(cluster.address)
    draw = random.Random(5)

    def spit(elapsed: float) -> None:
        for socket in sockets:
            frames = [draw.randbytes(draw.randint(0, 300)) for _ in range(draw.randint(1, 4))]
            socket.send_multipart(frames, flags=zmq.NOBLOCK)

    try:
        streams = run(cluster, count=4, name="garbage", during=spit)
    finally:
        for socket in sockets:
            socket.close()
        context.term()
    assert [stream.tokens for stream in streams] == plain_texts(4)
    assert streams[-1].stats["session_garbage"] > 0
    assert accepted(streams) > 0


@pytest.mark.parametrize("drafters", [0, 2])
def test_none_and_two_drafters(drafters: int) -> None:
    both = [scripted(), {"kind": "ngram", "name": "lookup"}]
    with Deployment(f"drafters{drafters}", config(drafters=both[:drafters])) as deployment:
        deployment.wait_ready()
        streams = run(deployment, count=4, name="r")
    assert [stream.tokens for stream in streams] == plain_texts(4)
    assert (accepted(streams) > 0) == (drafters > 0)


@pytest.mark.parametrize(
    ("drafter", "speculation"),
    [
        (TWIN, {"growth": "none", "delivery": "pull", "verify_shape": "chain", "on_miss": "draft"}),
        (None, {"growth": "optimistic", "delivery": "pull", "verify_shape": "chain"}),
        (TWIN, {"growth": "fan_out", "delivery": "pull", "verify_shape": "chain", "on_miss": "draft"}),
    ],
    ids=["synchronous", "pearl", "ssd"],
)
def test_published_methods(drafter: dict[str, Any] | None, speculation: dict[str, Any]) -> None:
    """With a model as the drafter, in another process, that has to keep pace with its target."""
    with Deployment("methods", config(drafters=[drafter or scripted()], speculation=speculation)) as deployment:
        deployment.wait_ready()
        streams = run(deployment, count=4, name="r")
    assert [stream.tokens for stream in streams] == plain_texts(4)
    assert accepted(streams) > 0


def test_a_dead_target_ends_the_run_with_its_reason_and_leaves_no_process() -> None:
    with Deployment("dead", config()) as deployment:
        deployment.wait_ready()
        pids = list(deployment.supervisor.running().values())
        os.kill(deployment.supervisor.running()["target"], signal.SIGKILL)
        with pytest.raises(WorkerError, match="target ended with code -9"):
            run(deployment, count=1, name="r")
    assert not any(map(alive, pids))
