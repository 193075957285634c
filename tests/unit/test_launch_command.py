"""`dist-spec launch` on the command line: what is handed on, and to whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_spec import cli
from dist_spec.config import Config
from dist_spec.exits import run
from dist_spec.workers.launch_app import Launch

CONFIG = "target: {model: m}\ndrafters: [{kind: ngram}]\n"


def launched(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str, code: int = 0
) -> tuple[int, Config, Launch]:
    """The exit code, and what the command line made of these arguments."""
    file = folder / "c.yaml"
    file.write_text(CONFIG)
    seen: list[tuple[Config, Launch]] = []

    def stand_in(config: Config, launch: Launch) -> int:
        seen.append((config, launch))
        return code

    monkeypatch.setattr("dist_spec.workers.launch_app.run_launch", stand_in)
    found = run(lambda: cli.app(["launch", str(file), *arguments]))
    return found, *seen[0]


def test_what_follows_the_dashes_is_handed_on_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ("--set", "target.max_sequences=2", "a prompt", "--", "--max-tokens", "4", "--set", "x=1")
    code, config, launch = launched(monkeypatch, tmp_path, *options, code=3)
    assert code == 3
    assert config.target.max_sequences == 2
    assert list(launch.prompts) == [
        *("--config", str(tmp_path / "c.yaml"), "--set", "target.max_sequences=2"),
        *("a prompt", "--max-tokens", "4", "--set", "x=1"),
    ]


def test_without_prompts_it_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ("--role", "drafter", "--connect", "tcp://h:1", "--drafter", "a", "--drafter", "b")
    code, _, launch = launched(monkeypatch, tmp_path, *options, "--meet-timeout-s", "5")
    assert code == 0
    assert launch == Launch(role="drafter", connect=["tcp://h:1"], drafters=["a", "b"], prompts=[], meet_timeout_s=5.0)


def test_a_process_that_no_launcher_started_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "WORLD_SIZE", "ROLE_NAME", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "c.yaml"
    file.write_text(CONFIG)
    assert run(lambda: cli.app(["launch", str(file)])) == 2
    assert "no launcher started this process" in capsys.readouterr().err
