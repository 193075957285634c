"""Two "nodes", network namespaces with addresses of their own: a target with its frontend on one, drafters on the other. The
link is cut and restored, either side is killed; the text stays as it is and speculation goes on by itself."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dist_spec.bench.generate import encode_prompt
from dist_spec.config import Config, parse_config
from dist_spec.core.types import Sampling
from dist_spec.models.tokenizer import load_tokenizer
from tests.integration.local_cluster import PLAIN, LocalCluster
from tests.integration.test_commands import command
from tests.integration.test_equality import model
from tests.integration.test_processes import TARGET

HEAD, FAR = "10.231.77.1", "10.231.77.2"
ADDRESS = f"tcp://{HEAD}:5599"
PROMPT = "over the network"
NUM_TOKENS = 800


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(("ip", *words), capture_output=True, text=True, check=False)


def may_make_namespaces() -> bool:
    name = f"dsprobe{secrets.token_hex(2)}"
    try:
        made = ip("netns", "add", name).returncode == 0
    except FileNotFoundError:
        return False
    if made:
        ip("netns", "del", name)
    return made


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not may_make_namespaces(), reason="NOT TESTED: two nodes need `ip netns` (iproute2 and CAP_NET_ADMIN)"
    ),
]


class Nodes:
    """Two namespaces joined by a pair of virtual devices, and the processes in them."""

    def __init__(self, folder: Path) -> None:
        tag = secrets.token_hex(2)
        self.head, self.far = f"dsh{tag}", f"dsf{tag}"
        self._devices = {self.head: f"vh{tag}", self.far: f"vf{tag}"}
        self.settings = folder / "settings.yaml"
        self.folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        for name in (self.head, self.far):
            self._must("netns", "add", name)
        ends = list(self._devices.items())
        self._must(
            "link", "add", ends[0][1], "netns", ends[0][0], "type", "veth", "peer", ends[1][1], "netns", ends[1][0]
        )
        for (name, device), address in zip(ends, (HEAD, FAR), strict=True):
            self._must("-n", name, "addr", "add", f"{address}/24", "dev", device)
            for one in ("lo", device):
                self._must("-n", name, "link", "set", one, "up")

    def _must(self, *words: str) -> None:
        done = ip(*words)
        assert done.returncode == 0, done.stderr

    def link(self, state: str) -> None:
        """To "up" or "down"."""
        self._must("-n", self.far, "link", "set", self._devices[self.far], state)

    def start(self, node: str, *words: str | Path) -> subprocess.Popen[bytes]:
        log = self.log_of(len(self._running)).open("wb")
        process = subprocess.Popen(("ip", "netns", "exec", node, *command(*words)), stdout=log, stderr=log)
        log.close()
        self._running.append(process)
        return process

    def log_of(self, number: int) -> Path:
        return self.folder / f"{number}.log"

    def target(self) -> subprocess.Popen[bytes]:
        return self.start(self.head, "target", self.settings, "--bind", ADDRESS)

    def drafter(self) -> subprocess.Popen[bytes]:
        return self.start(self.far, "draft", self.settings, "--connect", ADDRESS)

    def generate(self, *, max_tokens: int, wait_s: float = 120.0) -> Asked:
        """A frontend beside the target."""
        number = len(self._running)
        out = self.folder / f"out{number}.json"
        words = (
            "--connect",
            ADDRESS,
            "--config",
            self.settings,
            "--max-tokens",
            str(max_tokens),
            "--wait-s",
            str(wait_s),
        )
        return Asked(self.start(self.head, "generate", PROMPT, *words, "--json", out), out, shown=self.log_of(number))

    def close(self) -> None:
        for process in self._running:
            process.kill()
        for process in self._running:
            process.wait()
        for name in (self.head, self.far):
            ip("netns", "del", name)


class Asked:
    """A running `generate`, which shows its text as it comes."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, *, shown: Path) -> None:
        self.process = process
        self.shown = shown
        self._out = out

    def report(self) -> dict[str, Any]:
        assert self.process.wait(timeout=200) == 0
        report: dict[str, Any] = json.loads(self._out.read_text())
        return report


@cache
def plain_text() -> tuple[list[int], list[int]]:
    """The prompt's tokens, and what the target alone makes of them."""
    tokenizer = load_tokenizer(TARGET)
    ids = encode_prompt(tokenizer, PROMPT, chat=True)
    sampling = Sampling(max_tokens=NUM_TOKENS, ignore_eos=True)
    return ids, LocalCluster(model(TARGET), PLAIN, max_model_len=1024).run([ids], [sampling])[0].tokens


def settings(folder: Path) -> Config:
    prompt, text = plain_text()
    path = folder / "text"
    path.write_text(" ".join(map(str, [*prompt, *text])))
    script = {"kind": "scripted", "name": "script", "text_file": str(path), "a": 0.9, "b": 0.5, "step_s": 0.0005}
    return parse_config(
        {
            "target": {"model": TARGET, "dtype": "float32", "max_model_len": 1024, "threads": 1},
            "drafters": [script],
            "transport": {"heartbeat_s": 0.2, "dead_after_s": 1.0, "allow_plaintext": True},
            "sampling": {"ignore_eos": True},
        }
    )


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    try:
        made.settings.write_text(settings(tmp_path).to_yaml())
        yield made
    finally:
        made.close()


def speculates(report: dict[str, Any]) -> bool:
    assert report["token_ids"] == [plain_text()[1][: report["num_tokens"]]]
    return bool(report["acceptance_length"] > 1.5)


def until_it_speculates(nodes: Nodes) -> None:
    """Ask again and again until guesses are accepted: by itself, within seconds (and slow machines)."""
    deadline = time.monotonic() + 60
    while not speculates(nodes.generate(max_tokens=60).report()):
        assert time.monotonic() < deadline, "speculation did not resume"


def in_the_middle(asked: Asked, act: Callable[[], None], *, shown: int) -> None:
    """Do something when so many bytes have been shown, and the frontend still waits for the rest of its text."""
    deadline = time.monotonic() + 120
    while asked.shown.stat().st_size < shown:
        assert asked.process.poll() is None, "it was over too soon to be disturbed"
        assert time.monotonic() < deadline, "no text comes"
        time.sleep(0.002)
    act()


def test_a_cut_link_costs_speed_only_and_speculation_comes_back(nodes: Nodes) -> None:
    nodes.target()
    nodes.drafter()
    until_it_speculates(nodes)
    nodes.link("down")
    assert not speculates(nodes.generate(max_tokens=NUM_TOKENS).report())
    nodes.link("up")
    until_it_speculates(nodes)


@pytest.mark.long
@pytest.mark.parametrize("moment", range(4))
def test_a_link_cut_and_restored_in_the_middle_of_a_text(nodes: Nodes, moment: int) -> None:
    nodes.target()
    nodes.drafter()
    until_it_speculates(nodes)
    asked = nodes.generate(max_tokens=NUM_TOKENS)
    in_the_middle(asked, lambda: nodes.link("down"), shown=40 + 50 * moment)
    time.sleep(1.5)
    nodes.link("up")
    speculates(asked.report())
    until_it_speculates(nodes)


@pytest.mark.long
def test_a_killed_drafter_node_is_missed_and_welcomed_back(nodes: Nodes) -> None:
    nodes.target()
    drafter = nodes.drafter()
    until_it_speculates(nodes)
    kill(drafter)
    assert not speculates(nodes.generate(max_tokens=NUM_TOKENS).report())
    nodes.drafter()
    until_it_speculates(nodes)


@pytest.mark.long
def test_a_killed_target_node_is_waited_for_by_both_sides(nodes: Nodes) -> None:
    target = nodes.target()
    nodes.drafter()
    until_it_speculates(nodes)
    asked = nodes.generate(max_tokens=NUM_TOKENS)
    in_the_middle(asked, lambda: kill(target), shown=100)
    nodes.target()
    speculates(asked.report())
    until_it_speculates(nodes)


def kill(process: subprocess.Popen[bytes]) -> None:
    """`ip netns exec` becomes its command, so this is the process itself."""
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
