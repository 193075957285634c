"""The commands as a user types them: roles by hand, `up`, `generate`, and what bad input gets."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dist_spec.core.types import Sampling
from dist_spec.models.source import cache_folder, smollm2_file
from dist_spec.server.client import Client
from dist_spec.transports.zmq import ZmqPeer
from tests.integration.local_cluster import PLAIN, LocalCluster, prompts_of
from tests.integration.process_cases import alive, free_address
from tests.integration.test_equality import model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TARGET = "random:llama?seed=5&hidden=48"
SETTINGS = f"""
target: {{model: "{TARGET}", dtype: float32, max_model_len: 512, threads: 1}}
drafters:
  - {{kind: model, name: twin, model: "{TARGET}", dtype: float32, num_draft_tokens: 4}}
speculation: {{growth: none, delivery: pull, on_miss: draft}}
transport: {{heartbeat_s: 0.2}}
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(SETTINGS)
    return path


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "dist_spec.cli", *map(str, words)]


def run(*words: str | Path, timeout: float = 120, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=timeout, input=stdin, check=False)


def ask(address: str, *, drafters: int) -> tuple[list[int], dict[str, float]]:
    """One request to a running target once it has its drafters."""
    client = Client(ZmqPeer(address, "frontend"), name="frontend")
    try:
        assert client.connect(timeout_s=60)
        deadline = time.monotonic() + 60
        while client.num_drafters < drafters:
            client.poll(timeout_s=0.05)
            assert time.monotonic() < deadline
        stream = client.open("r", prompt=prompts_of(1)[0], sampling=Sampling(max_tokens=30, ignore_eos=True))
        for _ in client.follow():
            assert time.monotonic() < deadline
        return stream.tokens, stream.stats
    finally:
        client.close()


def plain() -> list[int]:
    [stream] = LocalCluster(model(TARGET), PLAIN).run(prompts_of(1), [Sampling(max_tokens=30, ignore_eos=True)])
    return stream.tokens


def test_roles_by_hand_and_sigterm(settings: Path) -> None:
    address = free_address()
    target = subprocess.Popen(command("target", settings, "--bind", address))
    drafter = subprocess.Popen(command("draft", settings, "--connect", address))
    try:
        tokens, stats = ask(address, drafters=1)
        assert tokens == plain()
        assert stats["accepted"] > 10
        for process in (drafter, target):
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
    finally:
        for process in (drafter, target):
            process.kill()


def test_up_serves_and_ctrl_c_ends_everything(settings: Path) -> None:
    address = free_address()
    process = subprocess.Popen(command("up", settings, "--bind", address), start_new_session=True)
    try:
        tokens, stats = ask(address, drafters=1)
        assert tokens == plain()
        assert stats["accepted"] > 10
        children = children_of(process.pid)
        assert len(children) == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) in (0, 130)
        assert not any(map(alive, children))
    finally:
        process.kill()


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_generate_compares_and_writes_documented_keys(settings: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run(
        "generate", "some words", "other words", "--config", settings, "--max-tokens", "24", "--temperature", "0.8",
        "--compare-plain", "--stats", "--json", out, "--set", "sampling.ignore_eos=true",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["equal"] is True
    assert report["num_identical"] == report["num_compared"] == 6
    assert report["num_tokens"] == 48
    assert report["acceptance_length"] > 1.5
    for key in ("speedup_vs_plain", "target_idle_fraction", "pipeline_efficiency", "coordination_ms_median"):
        assert isinstance(report[key], float), key
    assert "speedup_vs_plain_all_devices" in report
    assert "equal" in done.stderr


def test_generate_from_standard_input_without_a_file() -> None:
    done = run("generate", "-", "--target", TARGET, "--drafter", "ngram", "--max-tokens", "5", stdin="hello\n")
    assert done.returncode == 0, done.stderr
    again = run("generate", "hello", "--target", TARGET, "--drafter", "none", "--max-tokens", "5")
    assert again.stdout == done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["", "--target", TARGET], "empty"),
        (["x" * 6000, "--target", TARGET], "context"),
        (["hi", "--target", "/nowhere/model"], "/nowhere/model"),
        (["hi", "--target", TARGET, "--set", "speculation.growht=none"], "growth"),
        (["hi", "--target", TARGET, "--max-tokens", "0"], "max_tokens"),
        (["--prompt-file", "/nowhere.txt", "--target", TARGET], "/nowhere.txt"),
        (["hi", "--target", TARGET, "--set", "verification.rule=block"], "block"),
    ],
)
def test_bad_input_is_named_with_exit_code_2(words: list[str], expected: str) -> None:
    done = run("generate", *words)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use(settings: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        for words in (("target", settings, "--bind", address), ("up", settings, "--bind", address)):
            done = run(*words)
            assert done.returncode == 2, done.stderr
            assert "in use" in done.stderr.lower()
            assert "Traceback" not in done.stderr


def test_a_drafter_with_another_tokenizer_is_refused_with_the_first_id(tmp_path: Path) -> None:
    if not (cache_folder() / "smollm2").is_dir():
        smollm2_file()  # says what is missing
    path = tmp_path / "mixed.yaml"
    path.write_text(
        f'target: {{model: "{TARGET}", dtype: float32, threads: 1}}\n'
        "drafters: [{kind: model, name: m, model: smollm2, vocabulary: same}]\n"
    )
    done = run("generate", "hi", "--config", path)
    assert done.returncode == 2
    assert "token 0 is" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
