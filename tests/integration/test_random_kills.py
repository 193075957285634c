"""kill -9 of a target's follower, its leader and each of two drafters, at seeded moments, in one deployment that a user
might have: nothing hangs, and texts are those without faults."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from dist_spec.bench.connection import Connection
from dist_spec.config import Config, parse_config
from dist_spec.core.types import Sampling
from dist_spec.models.tokenizer import load_tokenizer
from dist_spec.server.client import Stream
from tests.integration.local_cluster import PLAIN, LocalCluster, prompts_of
from tests.integration.process_cases import alive, free_address
from tests.integration.test_commands import command
from tests.integration.test_equality import model

pytestmark = [pytest.mark.slow]

TARGET = "random:llama?seed=5&hidden=48"
NUM_TOKENS = 96
NUM_REQUESTS = 4
SAMPLINGS = [
    Sampling(temperature=0.8, seed=21 + i, max_tokens=NUM_TOKENS, ignore_eos=True) for i in range(NUM_REQUESTS)
]
WAIT_S = 150.0
"""How long anything may take on a busy machine, the start of a target included; longer is a hang."""
LOOK_S = 0.05
VICTIMS = {
    "leader": ("target", "--rank", "0"),
    "follower": ("target", "--rank", "1"),
    "twin": ("draft", "--name", "twin"),
    "lookup": ("draft", "--name", "lookup"),
}
"""Words of the command line of each process."""


PULL = {"growth": "none", "delivery": "pull", "on_miss": "draft"}
"""Every step asks the drafters: there are guesses however busy the machine is, and dead drafters are waited for."""


TWIN = {"kind": "model", "name": "twin", "model": TARGET, "dtype": "float32", "num_draft_tokens": 3}
"""The target's own model: it is nearly always right."""


def script(folder: Path) -> dict[str, Any]:
    """Texts of the target in one process, for a drafter that is right nine times in ten and starts fast."""
    cluster = LocalCluster(model(TARGET), PLAIN)
    prompts = prompts_of(NUM_REQUESTS)
    lines = [[*prompt, *one.tokens] for prompt, one in zip(prompts, cluster.run(prompts, SAMPLINGS), strict=True)]
    file = folder / "texts"
    file.write_text("\n".join(" ".join(map(str, line)) for line in lines))
    return {"kind": "scripted", "name": "twin", "text_file": str(file), "a": 0.9, "b": 0.5, "step_s": 0.0005}


def config(twin: dict[str, Any], **speculation: Any) -> Config:
    """A target of two ranks, and two drafters; the second knows texts that it has seen before."""
    return parse_config(
        {
            "target": {"model": TARGET, "dtype": "float32", "max_model_len": 256, "threads": 1},
            "parallel": {"tp_size": 2, "timeout_s": 120.0},
            "drafters": [
                twin,
                {"kind": "suffix", "name": "lookup"},
            ],
            "speculation": {"budget": 8} | speculation,
            "transport": {"heartbeat_s": 0.2, "dead_after_s": 2.0},
        }
    )


@dataclass(kw_only=True)
class Kill:
    """One of the schedule.

    Attributes:
        victim: see `VICTIMS`.
        tokens: committed between the last kill and this one (0: as soon as the victim is there, be it in mid-start).
        delay_s: and so many seconds after its process was there.
    """

    victim: str
    tokens: int
    delay_s: float


def schedule(num_kills: int, *, seed: int) -> list[Kill]:
    """Every victim as often as every other, in any order."""
    draw = random.Random(seed)
    victims = [name for name in VICTIMS for _ in range(-(-num_kills // len(VICTIMS)))]
    draw.shuffle(victims)
    return [
        Kill(victim=victim, tokens=draw.choice([0, 0, 1, 30, 100, 250]), delay_s=draw.choice([0.0, 0.0, 0.5, 2.0]))
        for victim in victims[:num_kills]
    ]


class Deployed:
    """`dist-spec up` as a user starts it, and a frontend of it."""

    def __init__(self, folder: Path, settings: Config) -> None:
        address = free_address()
        file = folder / "settings.yaml"
        file.write_text(settings.to_yaml())
        self.folder = folder
        self.log = (folder / "up.log").open("w+")
        argv = command("up", file, "--bind", address, "--set", f"telemetry.log_dir={folder}")
        self.process = subprocess.Popen(argv, stderr=self.log, start_new_session=True)
        self.connection = Connection(address, settings, tokenizer=load_tokenizer(TARGET), wait_s=WAIT_S)
        self.client = self.connection.client
        self.seen: set[int] = set()
        """Ids of all processes that there ever were."""

    def pids(self) -> dict[str, int]:
        """By victim, of the processes that run now (or are about to: the supervisor's leash has the same words)."""
        found: dict[str, int] = {}
        for pid in _children(self.process.pid):
            words = _words(pid)
            if words:
                self.seen.add(pid)
            found |= {name: pid for name, some in VICTIMS.items() if _follow_each_other(some, words)}
        return found

    def wait_ready(self) -> None:
        self.connection.wait_ready()
        self.until_drafters()

    def until_drafters(self) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.client.num_drafters < 2:
            self.poll()
            assert time.monotonic() < deadline, f"the drafters did not come\n{self.logs()}"

    def poll(self) -> int:
        """How many tokens came."""
        assert self.process.poll() is None, self.logs()
        return sum(fresh for _, fresh in self.client.poll(timeout_s=0.005))

    def end(self) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGINT)
        try:
            assert self.process.wait(timeout=30) == 0, self.logs()
        finally:
            self.process.kill()
            self.log.close()
        left = [pid for pid in self.seen if alive(pid)]
        assert not left, f"processes were left behind: {left}"

    def logs(self) -> str:
        names = ("up", "target", "target-1", "twin", "lookup")
        return "\n".join(f"--- {name}\n{(self.folder / f'{name}.log').read_text()[-3000:]}" for name in names)


@contextmanager
def deployed(folder: Path, settings: Config) -> Iterator[Deployed]:
    deployment = Deployed(folder, settings)
    try:
        deployment.wait_ready()
        yield deployment
    finally:
        deployment.end()


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _words(pid: int) -> list[str]:
    """Of a process's command line; none when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


def _follow_each_other(some: tuple[str, ...], words: list[str]) -> bool:
    """Whether the command, and its option with this value, are among the words."""
    return some[0] in words and (some[1], some[2]) in pairwise(words)


@dataclass(kw_only=True)
class Killer:
    """Carries out a schedule while requests run.

    Attributes:
        done: what was killed, in order.
        killed: ids of processes.
        there_s: since when the next victim's process has been there.
    """

    deployment: Deployed
    left: list[Kill]
    done: list[str] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)
    tokens: int = 0
    there_s: float | None = None
    next_look_s: float = 0.0

    def look(self, fresh: int) -> None:
        """Call often, with the number of tokens that came."""
        self.tokens += fresh
        now = time.monotonic()
        if not self.left or self.tokens < self.left[0].tokens or now < self.next_look_s:
            return
        kill = self.left[0]
        if self.there_s is None:
            self.next_look_s = now + LOOK_S
            pid = self.deployment.pids().get(kill.victim)
            if pid is None or pid in self.killed:
                return  # its replacement has not been started yet
            self.there_s = now
        if now < self.there_s + kill.delay_s:
            return
        pid = self.deployment.pids().get(kill.victim)
        if pid is None:  # it ended meanwhile, as another of its group was killed
            self.there_s = None
            return
        os.kill(pid, signal.SIGKILL)
        self.killed.add(pid)
        self.done.append(kill.victim)
        self.left.pop(0)
        self.tokens, self.there_s = 0, None


def run(deployment: Deployed, *, name: str, killer: Killer | None = None) -> list[Stream]:
    """All requests together, to their end."""
    streams = [
        deployment.client.open(f"{deployment.connection.tag}{name}.{i}", prompt=prompt, sampling=sampling)
        for i, (prompt, sampling) in enumerate(zip(prompts_of(NUM_REQUESTS), SAMPLINGS, strict=True))
    ]
    last_s, num_killed = time.monotonic(), 0
    while deployment.client.streams:
        if killer is not None:
            killer.look(0)
        fresh = deployment.poll()
        if killer is not None:
            killer.look(fresh)
        if fresh or (killer is not None and len(killer.done) > num_killed):
            last_s, num_killed = time.monotonic(), 0 if killer is None else len(killer.done)
        assert time.monotonic() < last_s + WAIT_S, f"nothing comes any more\n{deployment.logs()}"
    return streams


def accepted(streams: list[Stream]) -> int:
    return sum(stream.kinds.count("accepted") for stream in streams)


def check_kills(folder: Path, settings: Config, *, num_kills: int, seed: int) -> None:
    with deployed(folder, settings) as deployment:
        first = run(deployment, name="first")
        texts = [stream.tokens for stream in first]
        assert [len(text) for text in texts] == [NUM_TOKENS] * NUM_REQUESTS
        killer = Killer(deployment=deployment, left=schedule(num_kills, seed=seed))
        num_accepted = number = 0
        while killer.left:
            streams = run(deployment, name=f"kill{number}.", killer=killer)
            number += 1
            assert [stream.tokens for stream in streams] == texts, (killer.done, deployment.logs())
            assert {stream.reason for stream in streams} == {"length"}
            num_accepted += accepted(streams)
        assert set(killer.done) == set(VICTIMS)
        assert num_accepted > 0
        check_both_draft(deployment, texts)
        assert "frame #" not in deployment.logs(), "torch's own trace of a dead rank"


def check_both_draft(deployment: Deployed, texts: list[list[int]]) -> None:
    """Sooner or later guesses of both are accepted again; the one that knows texts must see them first."""
    deployment.until_drafters()
    deadline = time.monotonic() + WAIT_S
    for number in count():
        streams = run(deployment, name=f"again{number}.")
        assert [stream.tokens for stream in streams] == texts
        stats = streams[-1].stats
        if stats.get("drafter_twin_accepted") and stats.get("drafter_lookup_accepted"):
            return
        assert time.monotonic() < deadline, f"nobody speculates again\n{deployment.logs()}"


@pytest.mark.timeout(900)
def test_eight_kills(tmp_path: Path) -> None:
    check_kills(tmp_path, config(script(tmp_path)), num_kills=8, seed=71)


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("speculation", "seed"), [({}, 1), (PULL, 2)], ids=["push", "pull"])
def test_many_kills(tmp_path: Path, speculation: dict[str, Any], seed: int) -> None:
    check_kills(tmp_path, config(TWIN, **speculation), num_kills=25, seed=seed)
