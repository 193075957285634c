"""Frontends of a target that somebody else runs: several at once, through its death, its orderly end and its restarts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dist_spec.bench.connection import Connection
from dist_spec.bench.generate import encode_prompt, sampling_of
from dist_spec.core.types import Sampling
from dist_spec.llm import LLM
from dist_spec.models.tokenizer import load_tokenizer
from dist_spec.server.client import Stream
from dist_spec.server.params import SamplingParams
from tests.integration.local_cluster import PLAIN, LocalCluster, prompts_of
from tests.integration.test_commands import children_of, command, free_address, run
from tests.integration.test_equality import model
from tests.integration.test_processes import NUM_TOKENS, TARGET, accepted, config, plain_texts, samplings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Up:
    """`dist-spec up` as a user starts it."""

    def __init__(self, folder: Path) -> None:
        self.address = free_address()
        self.settings = folder / "settings.yaml"
        self.settings.write_text(config(telemetry={"log_dir": str(folder)}).to_yaml())
        self.log = (folder / "up.log").open("w+")
        argv = command("up", self.settings, "--bind", self.address)
        self.process = subprocess.Popen(argv, stderr=self.log, start_new_session=True)

    def pid_of(self, role: str) -> int | None:
        """The process of the command `role`, once it runs."""
        for pid in children_of(self.process.pid):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"dist_spec.cli" in words and role.encode() in words:
                return pid
        return None

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=20)
        finally:
            self.process.kill()
            self.log.close()


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with tempfile.TemporaryDirectory() as folder:
        started = Up(Path(folder))
        try:
            yield started
        finally:
            started.end()


def connected(up: Up, *, wait_s: float = 60.0) -> Connection:
    connection = Connection(up.address, config(), tokenizer=load_tokenizer(TARGET), wait_s=wait_s)
    connection.wait_ready()
    return connection


def wait_for_drafter(connection: Connection) -> None:
    until(lambda: connection.client.num_drafters > 0, [connection])


def until(condition: Callable[[], object], connections: list[Connection], *, timeout_s: float = 150.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        for connection in connections:
            connection.client.poll(timeout_s=0.01)
        assert time.monotonic() < deadline, "timed out"


def opened(connection: Connection, count: int, *, name: str) -> list[Stream]:
    return [
        connection.client.open(f"{connection.tag}{name}{i}", prompt=prompt, sampling=sampling)
        for i, (prompt, sampling) in enumerate(zip(prompts_of(count), samplings(count), strict=True))
    ]


def texts(streams: list[Stream]) -> list[list[int]]:
    return [stream.tokens for stream in streams]


def test_two_frontends_through_the_death_of_their_target(up: Up) -> None:
    first, second = connected(up), connected(up)
    both = [first, second]
    wait_for_drafter(first)
    streams = opened(first, 2, name="a") + opened(second, 2, name="a")
    until(lambda: all(len(stream.tokens) > 20 for stream in streams), both)
    victim = up.pid_of("target")
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    until(lambda: not first.client.streams and not second.client.streams, both)
    assert texts(streams) == plain_texts(2) * 2
    assert {stream.reason for stream in streams} == {"length"}
    assert any(0 < stream.stats["committed"] < NUM_TOKENS for stream in streams), "nothing was gone on with"
    wait_for_drafter(first)  # it attached again by itself
    again = opened(first, 1, name="b")
    until(lambda: not first.client.streams, both)
    assert texts(again) == plain_texts(1)
    assert accepted(again) > 0
    for connection in both:
        connection.client.close()


def test_sigterm_lets_running_requests_end_and_the_next_target_take_the_others(up: Up) -> None:
    connection = connected(up)
    wait_for_drafter(connection)
    running = opened(connection, 1, name="c")
    until(lambda: running[0].tokens, [connection])
    target = up.pid_of("target")
    assert target is not None
    os.kill(target, signal.SIGTERM)
    until(lambda: len(running[0].tokens) > 30, [connection])
    late = connection.client.open(f"{connection.tag}late", prompt=prompts_of(2)[1], sampling=samplings(2)[1])
    until(lambda: running[0].reason, [connection])
    # By the one that it began with, which stayed until that was read: the next one would have had nothing to commit.
    assert running[0].stats["committed"] == NUM_TOKENS
    until(lambda: not connection.client.streams, [connection])
    assert texts([*running, late]) == plain_texts(2)
    assert up.pid_of("target") != target
    connection.client.close()


def test_generate_asks_a_running_target(up: Up, tmp_path: Path) -> None:
    out, words = tmp_path / "out.json", ["some words", "other words"]
    asked = ("--connect", up.address, "--config", up.settings, "--max-tokens", "24")
    done = run("generate", *words, *asked, "--json", out, "--stats")
    assert done.returncode == 0, done.stderr
    tokenizer = load_tokenizer(TARGET)
    prompts = [encode_prompt(tokenizer, text, chat=True) for text in words]
    sampling = sampling_of(config(sampling={"max_tokens": 24}), temperature=0.0, tokenizer=tokenizer)
    plain = LocalCluster(model(TARGET), PLAIN, eos_ids=tuple(tokenizer.eos_ids)).run(prompts, [sampling] * 2)
    report = json.loads(out.read_text())
    assert report["token_ids"] == [stream.tokens for stream in plain]
    assert report["num_rows"] > 0
    assert report["acceptance_length"] >= 1


def test_an_llm_asks_a_running_target(up: Up) -> None:
    params = SamplingParams(temperature=0.8, seed=11, max_tokens=NUM_TOKENS, ignore_eos=True)
    prompts = prompts_of(2)
    with LLM(config=config(), connect=up.address) as llm:
        found = [one.outputs[0].token_ids for one in llm.generate(prompts, params)]
    sampling = Sampling(temperature=0.8, seed=11, max_tokens=NUM_TOKENS, ignore_eos=True)
    plain = LocalCluster(model(TARGET), PLAIN).run(prompts, [sampling] * 2)
    assert [list(one) for one in found] == [stream.tokens for stream in plain]


def test_chat_talks_with_a_running_target(up: Up) -> None:
    """Whose texts `generate` gets too; it starts no process and ends none."""
    long = ("--max-tokens", "24", "--set", "sampling.ignore_eos=true")
    asked = ("--connect", up.address, "--config", up.settings, *long)
    done = run("chat", *asked, stdin="some words\n/stats\n")
    assert done.returncode == 0, done.stderr
    assert "so far: 24 tokens in 1 answers" in done.stderr
    assert "drafted and accepted" in done.stderr
    assert done.stdout == run("generate", "some words", *asked).stdout
    assert up.pid_of("target") is not None


def test_up_lets_running_requests_end_on_sigterm(up: Up) -> None:
    """The last test of these: it ends them all."""
    connection = connected(up)
    running = opened(connection, 2, name="e")
    until(lambda: all(stream.tokens for stream in running), [connection])
    up.process.send_signal(signal.SIGTERM)
    until(lambda: not connection.client.streams, [connection])
    assert texts(running) == plain_texts(2)
    assert up.process.wait(timeout=30) == 0
    connection.client.close()


def test_nobody_there_is_told_after_the_wait() -> None:
    done = run("generate", "x", "--connect", free_address(), "--target", TARGET, "--wait-s", "1")
    assert done.returncode == 2
    assert "no target answers at tcp://127.0.0.1" in done.stderr
    done = run("chat", "--connect", free_address(), "--target", TARGET, "--wait-s", "1", stdin="x\n")
    assert (done.returncode, "no target answers at tcp://127.0.0.1" in done.stderr) == (2, True)
