"""The command line, as a user meets it: results, and what bad input ends in (exit code 2, place and fix, no traceback)."""

from __future__ import annotations

import io
import json
import os
import shlex
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from dist_spec import __version__, cli
from dist_spec.commands.options import option_overrides
from dist_spec.commands.prompts import MAX_PROMPT_BYTES, read_prompts
from dist_spec.config import load_config
from dist_spec.errors import RequestError, WorkerError

TINY = "random:llama?seed=1&layers=2&hidden=64&heads=4"


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def dist_spec(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line in this process, with a wide terminal so that nothing is wrapped."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.delenv("DIST_SPEC_DEBUG", raising=False)

    def run(*arguments: str | Path) -> Outcome:
        code = cli.run(lambda: cli.app([str(argument) for argument in arguments]))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(f"target: {{model: '{TINY}', dtype: float32}}\ndrafters: [{{kind: ngram}}]\n", encoding="utf-8")
    return path


def test_version(dist_spec: Run) -> None:
    assert dist_spec("version") == Outcome(0, f"dist-spec {__version__}\n", "")


@pytest.mark.parametrize(
    "command", [[], ["generate"], ["chat"], ["target"], ["draft"], ["up"], ["plan"], ["check"], ["score"]], ids=str
)
def test_help_is_there(dist_spec: Run, command: list[str]) -> None:
    outcome = dist_spec(*command, "--help")
    assert outcome.code == 0
    assert "Usage" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "named", "fix"),
    [
        (["check", "missing.yaml"], "missing.yaml: there is no such file", "fix:"),
        (["plan", "missing.yaml"], "missing.yaml: there is no such file", "fix:"),
        (["target", "missing.yaml"], "missing.yaml: there is no such file", "fix:"),
        (["up", "missing.yaml"], "missing.yaml: there is no such file", "fix:"),
        (["draft", "missing.yaml", "--connect", "tcp://127.0.0.1:1"], "missing.yaml: there is no such file", "fix:"),
        (["generate", "--config", "missing.yaml"], "missing.yaml: there is no such file", "fix:"),
        (["generate"], "no target model is given", "--target ID"),
        (["generate", "--target", TINY, "--device", "gpu"], "target.device: 'gpu'", "cuda:0"),
        (["generate", "--target", TINY, "--temperature", "-1"], "sampling.temperature", "fix:"),
        (["generate", "--target", TINY, "--set", "speculation.growth=nne"], "speculation.growth: 'nne'", "best_first"),
        (["generate", "--target", TINY, "--set", "speculation.budgt=1"], "speculation.budgt", "known keys here"),
        (
            ["generate", "--target", TINY, "--prompt-file", "missing.txt"],
            "missing.txt: cannot be read",
            "--prompt-file",
        ),
        (["generate", "-", "-", "--target", TINY], "standard input (-) is asked for twice", "fix:"),
        (["generate", "\udcff", "--target", TINY], "is not text in UTF-8", "convert it first"),
        (["generate", "hi", "--target", "x" * 5000], "cannot be read", "check the path"),
        (["generate", "hi", "--target", "~nobody_of_that_name/x"], "cannot be read", "check the path"),
        (["generate", "hi", "--target", TINY, "--json", "/nowhere/x"], "--json: /nowhere/x cannot be written", "fix:"),
    ],
)
def test_bad_input_ends_in_place_fix_and_code_2(dist_spec: Run, arguments: list[str], named: str, fix: str) -> None:
    outcome = dist_spec(*arguments)
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert named in outcome.err
    assert fix in outcome.err


@pytest.mark.parametrize("arguments", [["nonsense"], ["plan"], ["generate", "--seed", "x"], ["generate", "--nonsense"]])
def test_wrong_usage_ends_in_code_2(dist_spec: Run, arguments: list[str]) -> None:
    assert dist_spec(*arguments).code == 2


@pytest.mark.parametrize(
    ("setting", "named", "help_"),
    [
        ("speculation.growht=none", "speculation.growht: unknown key", "did you mean 'growth'"),
        ("target.max_sequences=many", "target.max_sequences: should be a whole number, got 'many' (a text)", "fix:"),
        ("verification.rule=block", "verification.rule: block is not in this release", "'coupled'"),
        ("speculation.growth=none", "speculation.growth: none", "speculation.delivery: pull"),
        ("target.cores=[4096]", "no core 4096", "leave the setting out"),
    ],
)
def test_bad_settings(dist_spec: Run, config: Path, setting: str, named: str, help_: str) -> None:
    outcome = dist_spec("plan", config, "--set", setting)
    assert outcome.code == 2
    assert named in outcome.err
    assert help_ in outcome.err


def test_a_port_in_use_is_found_by_check(dist_spec: Run, config: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        outcome = dist_spec("check", config, "--set", f"transport.bind={address}")
    assert outcome.code == 2
    assert f"cannot listen at {address}" in outcome.err
    assert "choose another port" in outcome.err


def test_draft_says_which_drafters_there_are(dist_spec: Run, config: Path) -> None:
    several = ("--set", "drafters=[{kind: ngram}, {kind: ngram}]")
    outcome = dist_spec("draft", config, "--connect", "tcp://127.0.0.1:1", *several)
    assert outcome.code == 2
    assert "ngram0, ngram1" in outcome.err
    outcome = dist_spec("draft", config, "--connect", "tcp://127.0.0.1:1", "--name", "other")
    assert (outcome.code, "no drafter is called 'other'" in outcome.err) == (2, True)
    outcome = dist_spec("draft", config, "--connect", "nowhere")
    assert (outcome.code, "'nowhere' is no address" in outcome.err) == (2, True)
    inside = ("--set", "drafters=[{kind: ngram}, {kind: ngram, name: inside, placement: leader}]")
    outcome = dist_spec("draft", config, "--connect", "tcp://127.0.0.1:1", "--name", "inside", *inside)
    assert (outcome.code, "runs inside the target" in outcome.err, "ngram0" in outcome.err) == (2, True, True)
    outcome = dist_spec("draft", config, "--connect", "tcp://127.0.0.1:1", "--set", "drafters=[]")
    assert (outcome.code, "no drafter there has a process" in outcome.err) == (2, True)


def test_plan_hands_on_what_it_was_given(dist_spec: Run, config: Path) -> None:
    address, setting = "tcp://127.0.0.1:4711", "speculation.budget=4"
    outcome = dist_spec("plan", config, "--bind", address, "--set", setting, "--output", "json")
    assert outcome.code == 0
    target, drafter = json.loads(outcome.out)
    assert (target["name"], drafter["name"], target["restart"], drafter["restart"]) == ("target", "ngram0", True, True)
    assert target["argv"][3:] == ["target", str(config), "--bind", address, "--set", setting]
    assert drafter["argv"][3:] == ["draft", str(config), "--name", "ngram0", "--connect", address, "--set", setting]
    assert target["argv"][0] == sys.executable
    assert set(target["cores"]) <= os.sched_getaffinity(0)


def test_plan_says_what_happens_when_a_process_ends(dist_spec: Run, config: Path) -> None:
    """As `up` does it: nothing there ends all."""
    ranks = ("--set", "parallel.tp_size=2", "--set", "target.device=cpu")
    outcome = dist_spec("plan", config, *ranks, "--output", "json")
    assert all(one["restart"] for one in json.loads(outcome.out))
    assert [one["group"] for one in json.loads(outcome.out)] == ["target", "target", None]
    table = dist_spec("plan", config, *ranks).out
    assert table.count("restart target ranks") == 2
    assert "end all" not in table


def test_plan_gives_addresses_that_work(dist_spec: Run, config: Path) -> None:
    outcome = dist_spec("plan", config, "--bind", "nonsense")
    assert (outcome.code, "'nonsense' is no address" in outcome.err) == (2, True)
    target, drafter = json.loads(dist_spec("plan", config, "--bind", "tcp://127.0.0.1:0", "--output", "json").out)
    assert target["argv"][-1] == drafter["argv"][-1] != "tcp://127.0.0.1:0"
    with socket.socket() as taken:  # a plan may be made while what it plans is running, or for another host
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bind = f"transport.bind=tcp://127.0.0.1:{taken.getsockname()[1]}"
        assert dist_spec("plan", config, "--set", bind).code == 0


def test_plan_as_shell_lines_and_as_a_table(dist_spec: Run, config: Path) -> None:
    lines = dist_spec("plan", config, "--bind", "tcp://127.0.0.1:4711", "--output", "shell").out.splitlines()
    assert len(lines) == 2
    assert "OMP_NUM_THREADS=1" in shlex.split(lines[1])
    table = dist_spec("plan", config, "--bind", "tcp://127.0.0.1:4711").out
    assert "target" in table
    assert "tcp://127.0.0.1:4711" in table


def test_debugging_shows_the_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("broken\nin two lines")

    monkeypatch.delenv("DIST_SPEC_DEBUG", raising=False)
    assert cli.run(fail) == 1
    shown = capsys.readouterr().err
    assert "unexpected ValueError: broken in two lines" in shown
    assert "DIST_SPEC_DEBUG=1" in shown
    assert "Traceback" not in shown
    monkeypatch.setenv("DIST_SPEC_DEBUG", "1")
    assert cli.run(fail) == 1
    assert "Traceback" in capsys.readouterr().err


def test_exit_codes_follow_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: BaseException) -> Callable[[], None]:
        def command() -> None:
            raise error

        return command

    assert cli.run(lambda: None) == 0
    assert cli.run(fail(WorkerError("target died"))) == 1
    assert cli.run(fail(RequestError("too long", fix="shorten it"))) == 2
    assert cli.run(fail(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "error: target died\nerror: too long\n  fix: shorten it\n"


def test_options_become_settings() -> None:
    overrides = option_overrides(target="t", drafters=["ngram", "d"], num_draft_tokens=5, device="cuda:0", seed=3)
    config = load_config(None, overrides=overrides)
    assert (config.target.model, config.target.device, config.sampling.seed) == ("t", "cuda:0", 3)
    assert [drafter.kind for drafter in config.drafters] == ["ngram", "model"]
    assert [drafter.num_draft_tokens for drafter in config.drafters] == [5, 5]
    assert config.drafters[1].model_dump()["device"] == "cuda:0"
    assert load_config(None, overrides=option_overrides(target="t", drafters=["none"])).drafters == ()


def test_prompts_come_from_arguments_files_and_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text("from a file\n", encoding="utf-8")
    assert read_prompts(["one", "-"], files=[file], stdin=io.StringIO("two\n")) == ["one", "two", "from a file"]
    assert read_prompts([], files=[Path("-")], stdin=io.StringIO("in")) == ["in"]
    assert read_prompts([""], files=[], stdin=io.StringIO()) == [""]
    with pytest.raises(RequestError, match="standard input is not text in UTF-8"):
        read_prompts(["-"], files=[], stdin=io.StringIO("\udcff"))
    with pytest.raises(RequestError, match="too large"):
        read_prompts(["-"], files=[], stdin=io.StringIO("x" * (MAX_PROMPT_BYTES + 1)))
    file.write_bytes(b"\xff\xff")
    with pytest.raises(RequestError, match="not text in UTF-8"):
        read_prompts([], files=[file], stdin=io.StringIO())
