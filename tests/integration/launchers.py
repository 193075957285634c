"""Launchers started as a user starts them: scripts of launch/, tiny models, and a look for processes left behind."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from dist_spec.bench.generate import encode_prompt
from dist_spec.core.types import Sampling
from dist_spec.models.tokenizer import load_tokenizer
from tests.integration.local_cluster import PLAIN, LocalCluster
from tests.integration.test_equality import model

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "launch"
BIN = Path(sys.executable).parent
TARGET = "random:llama?seed=5"
PROMPTS = ("one two three", "and now for")
NUM_TOKENS = 24
_MARK = "DIST_SPEC_TEST_START"
_TIMEOUT_S = 180.0
_LEFT_S = 10.0


def settings(*, tp_size: int = 1, drafters: int = 1, **sections: Any) -> dict[str, Any]:
    """A target and drafters that are the target's own model, so nearly every guess is right."""
    twin = {"kind": "model", "model": TARGET, "dtype": "float32", "width": 2, "num_draft_tokens": 4}
    return {
        "target": {"model": TARGET, "dtype": "float32", "max_model_len": 256, "drain_s": 10.0},
        "parallel": {"tp_size": tp_size, "timeout_s": 60.0},
        "drafters": [{**twin, "name": f"twin{index}"} for index in range(drafters)],
        # Every step asks, so that guesses are there however busy the machine is.
        "speculation": {"budget": 6, "growth": "none", "delivery": "pull", "on_miss": "draft"},
        "sampling": {"max_tokens": NUM_TOKENS, "ignore_eos": True},
        **sections,
    }


@cache
def plain_tokens(num_tokens: int = NUM_TOKENS) -> list[list[int]]:
    """What one process without a drafter makes of `PROMPTS`."""
    sampling = Sampling(temperature=0.0, seed=0, max_tokens=num_tokens, ignore_eos=True)
    return [LocalCluster(model(TARGET), PLAIN).run([prompt], [sampling])[0].tokens for prompt in prompt_ids()]


def prompt_ids() -> list[list[int]]:
    """Token ids of `PROMPTS`."""
    tokenizer = load_tokenizer(TARGET)
    return [encode_prompt(tokenizer, prompt, chat=False) for prompt in PROMPTS]


class Starter:
    """Starts commands that end before the test does; see the fixture `starter`.

    Attributes:
        folder: for files of the test.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = secrets.token_hex(8)
        self._started: list[subprocess.Popen[bytes]] = []

    def config(self, data: Mapping[str, Any], *, name: str = "config.yaml") -> str:
        path = self.folder / name
        path.write_text(yaml.safe_dump(dict(data)))
        return str(path)

    def start(self, *command: str, name: str = "launcher", **environ: str) -> subprocess.Popen[bytes]:
        """Run it in the repository's root with nothing of any launcher in its environment."""
        known = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "POD_IP")
        clean = {key: value for key, value in os.environ.items() if key not in known}
        clean |= {"OMP_NUM_THREADS": "1", "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", _MARK: self._mark}
        clean |= {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=clean | environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._started.append(process)
        return process

    def wait(self, process: subprocess.Popen[bytes], *, code: int | None = 0, name: str = "launcher") -> None:
        """Until it has ended with this code."""
        try:
            found = process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{name} did not end:\n{self.log(name)}")
        assert code is None or found == code, f"{name} ended with {found}:\n{self.log(name)}"

    def log(self, name: str = "launcher") -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, condition: Callable[[], object], *, name: str = "launcher") -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, f"nothing happened:\n{self.log(name)}"
            time.sleep(0.05)

    def workers(self, *words: str, of: subprocess.Popen[bytes] | None = None) -> list[int]:
        """Ids of processes that run dist_spec itself with all these words on their command line: no launchers.

        Args:
            of: the launcher that must be their parent.
        """
        found = []
        for pid in self.processes():
            command = _read(Path(f"/proc/{pid}/cmdline")).decode(errors="replace").split("\0")
            module = command[command.index("-m") + 1] if "-m" in command[:3] else ""
            parent = int((_read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split() or [b"", b"0"])[1])
            if module.startswith("dist_spec") and all(word in " ".join(command) for word in words):
                found += [pid] if of is None or parent == of.pid else []
        return sorted(found)

    def processes(self) -> list[int]:
        """Ids of all that descends from what this test started."""
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdecimal() and _is_marked(entry, self._mark)
        ]

    def end(self) -> list[int]:
        """Ids of processes that are still there some time after the end, all of them killed then."""
        deadline = time.monotonic() + _LEFT_S
        while (left := self.processes()) and time.monotonic() < deadline:
            for process in self._started:
                process.poll()
            time.sleep(0.1)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self._started:
            process.wait(10)
        return left


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    """What it starts must end by itself: leftover processes fail the test."""
    starter = Starter(tmp_path)
    yield starter
    left = starter.end()
    assert not left, f"processes were left behind: {left}"


def prompts(report: Path, *options: str) -> list[str]:
    """Arguments of `dist-spec launch` that run `PROMPTS` and write a report."""
    return [*PROMPTS, "--", "--no-chat", "--json", str(report), *options]


def check_report(report: Path, *, num_tokens: int = NUM_TOKENS) -> dict[str, Any]:
    """Text equal to plain decoding, and speculation happened."""
    found: dict[str, Any] = json.loads(report.read_text())
    assert found["token_ids"] == plain_tokens(num_tokens)
    assert found["num_accepted"] > 0.2 * num_tokens * len(PROMPTS), found["num_accepted"]
    return found


def _is_marked(entry: Path, mark: str) -> bool:
    """Whether a process (an entry of /proc) descends from what a test started, and runs."""
    if f"{_MARK}={mark}".encode() not in _read(entry / "environ").split(b"\0"):
        return False
    return _read(entry / "stat").rpartition(b")")[2].split()[:1] not in ([b"Z"], [b"X"], [])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended meanwhile
        return b""


def client(starter: Starter, address: str, config: str, report: Path, *options: str) -> subprocess.Popen[bytes]:
    """`dist-spec generate --connect`, as somebody elsewhere would start it."""
    command = [
        "dist-spec",
        "generate",
        "--config",
        config,
        "--connect",
        address,
        "--await-drafters",
        "1",
        "--wait-s",
        "110",
    ]
    return starter.start(*command, *PROMPTS, "--no-chat", "--json", str(report), *options, name="client")


def ask(starter: Starter, address: str, config: str, report: Path) -> None:
    """The same, to its end."""
    starter.wait(client(starter, address, config, report), name="client")
