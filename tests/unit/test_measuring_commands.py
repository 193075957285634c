"""What is started with `python -m`: nonsense is refused before any work, in a sentence, with exit code 2."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dist_spec
from dist_spec.bench import budgets, rules
from dist_spec.bench.arguments import at_least_1, numbers
from dist_spec.exits import run

PACKAGE = Path(dist_spec.__file__).parent
CHILDREN = {"workers/leash.py", "bench/peers.py", "cli.py"}
"""Started by our own processes, or (cli) by way of `main`."""
GOOD = "target: {model: 'random:llama?seed=1', dtype: float32}\ndrafters: [{kind: ngram}]\n"
NO_DRAFTERS = "target: {model: 'random:llama?seed=1', dtype: float32}\ndrafters: []\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(GOOD, encoding="utf-8")
    return file


def test_every_module_that_can_be_started_ends_in_a_message_and_an_exit_code() -> None:
    started = [
        file.relative_to(PACKAGE).as_posix()
        for file in sorted(PACKAGE.rglob("*.py"))
        if 'if __name__ == "__main__":' in file.read_text(encoding="utf-8")
    ]
    assert "bench/budgets.py" in started
    for name in set(started) - CHILDREN:
        last = ast.unparse(ast.parse((PACKAGE / name).read_text(encoding="utf-8")).body[-1])
        assert last.splitlines()[1:] in (["    sys.exit(run(main))"], ["    sys.exit(run_command(main))"]), name


@pytest.mark.parametrize("module", [budgets, rules], ids=["budgets", "rules"])
@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--set", "speculation.budgets=3"], "speculation"),
        (["--set", "target.dtype=float7"], "target.dtype"),
        (["--set", "nonsense"], "nonsense"),
        (["--set", "target.model=no/such-model-anywhere"], "no/such-model-anywhere"),
        (["--temperature", "-1"], "temperature"),
        (["--json", "/no/such/folder/out.json"], "cannot be written"),
        (["--rounds", "0"], "at least 1"),
        (["--prompts-per-domain", "0"], "at least 1"),
        (["--max-tokens", "many"], "at least 1"),
    ],
    ids=lambda one: "_".join(one)[:40] if isinstance(one, list) else "",
)
def test_bad_settings_are_named(
    module: object, extra: list[str], said: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if module is rules and extra[0] == "--rounds":
        extra = ["--depth", "0"]
    code = run(lambda: module.main(["--config", str(config), *extra]))  # type: ignore[attr-defined]
    shown = capsys.readouterr().err
    assert code == 2, shown
    assert said in shown
    assert "Traceback" not in shown
    assert "bug in dist_spec" not in shown


@pytest.mark.parametrize("content", [None, "target: [", "target: {}\n", NO_DRAFTERS])
def test_a_bad_file_is_named(content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings.yaml"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    assert run(lambda: budgets.main(["--config", str(file)])) == 2
    shown = capsys.readouterr().err
    assert str(file) in shown
    assert "fix:" in shown


def test_a_budget_beyond_the_limit_is_refused_before_anything_starts(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(lambda: budgets.main(["--config", str(config), "--budgets", "2,99999"])) == 2
    assert "budget" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("bench.budgets", ["--config", "nowhere.yaml"]),
        pytest.param("bench.forward_cost", ["no/such-model-anywhere"], marks=pytest.mark.slow),  # loads torch
        ("bench.coordination", ["--verifications", "0"]),
        ("sim.table", ["--rows", "nonsense"]),
        ("telemetry.trace", ["out.json", "no-such-part.json"]),
    ],
)
def test_from_a_shell_too(module: str, arguments: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"dist_spec.{module}", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "rror" in done.stderr


def test_numbers_in_arguments() -> None:
    assert (at_least_1("3"), numbers("0, 4,16")) == (3, [0, 4, 16])
