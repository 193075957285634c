"""`dist-spec distill` as a command: data, training, a kill in between, the head and its card; several ranks."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from dist_spec.distill.checkpoint import CHECKPOINT
from dist_spec.distill.settings import TrainSettings
from dist_spec.models.head_formats import load_head
from dist_spec.models.head_target import target_facts

pytestmark = pytest.mark.slow

TARGET = "random:llama?layers=4&hidden=32"
EVALUATE_EVERY = TrainSettings().evaluate_every


def command(folder: Path, *more: str) -> list[str]:
    return [
        *("distill", "--target", TARGET, "--out", str(folder / "out"), "--cache", str(folder / "cache")),
        *("--tokens", "2000", "--max-new-tokens", "16", "--draft-vocab", "150", "--threads", "1", "--device", "cpu"),
        *more,
    ]


@contextmanager
def run(arguments: list[str], *, launcher: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """The command as a process that is gone when the block ends."""
    environment = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, *launcher, "-m", "dist_spec.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        yield process
    finally:
        process.terminate()  # a launcher ends its ranks
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=20)
        process.kill()
        process.communicate()


def finished(process: subprocess.Popen[str], *, code: int = 0) -> str:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == code, output
    return output


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while not file.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)


def prompts(folder: Path) -> Path:
    file = folder / "own.jsonl"
    file.write_text("".join(f'{{"prompt": "say {i}", "domain": "count"}}\n' for i in range(40)))
    return file


def test_a_killed_training_goes_on_and_gives_a_head(tmp_path: Path) -> None:
    own = ("--prompts", str(prompts(tmp_path)))
    with run(command(tmp_path, "--minutes", "30", *own)) as process:
        wait_for(tmp_path / "out" / CHECKPOINT, process)
        process.kill()
    assert not (tmp_path / "out" / "head.json").exists()
    shards = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "cache").glob("*.safetensors")}
    with run(command(tmp_path, "--positions", "1", "--resume", *own)) as process:
        output = finished(process)
    assert "agreement by step" in output
    assert shards == {file.name: file.stat().st_mtime_ns for file in (tmp_path / "cache").glob("*.safetensors")}
    head = load_head(tmp_path / "out", target=target_facts(TARGET))
    assert head.config.draft_vocab_size == 150
    assert bool(torch.isfinite(head.fuse(torch.ones(1, head.config.feature_size))).all())
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"--target '{TARGET}'" in card
    assert "| count |" in card
    with (tmp_path / "out" / "curve.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) >= 2
    assert int(rows[-1]["positions"]) >= EVALUATE_EVERY


def test_ctrl_c_saves(tmp_path: Path) -> None:
    with run(command(tmp_path, "--minutes", "30", "--prompts", str(prompts(tmp_path)))) as process:
        wait_for(tmp_path / "out" / CHECKPOINT, process)
        process.send_signal(signal.SIGINT)
        assert "interrupted" in finished(process)
    assert load_head(tmp_path / "out", target=target_facts(TARGET)).config.num_steps == 4


def test_two_ranks_make_one_head(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    arguments = command(tmp_path, "--positions", "2000", "--prompts", str(prompts(tmp_path)))
    with run(arguments, launcher=launcher) as process:
        assert finished(process).count("agreement by step") == 1
    assert load_head(tmp_path / "out", target=target_facts(TARGET)).config.draft_vocab_size == 150


@pytest.mark.parametrize(
    ("more", "words"), [(("--worker", "2/2"), "--worker 2/2"), (("--prompts", "none.jsonl"), "cannot read")]
)
def test_errors_name_the_fix(tmp_path: Path, more: tuple[str, ...], words: str) -> None:
    with run(command(tmp_path, *more)) as process:
        output = finished(process, code=2)
    assert words in output
    assert "fix" in output
    assert "Traceback" not in output
