"""The examples run as they stand and show what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path) -> str:
    """What an example prints, started as its docstring says, from another folder."""
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == {"offline.py", "custom_drafter.py"}


@pytest.mark.slow
def test_offline(tmp_path: Path) -> None:
    """The drafter that is the target saves verifications; the text is the same whoever drafts."""
    lines = [line for line in run("offline.py", tmp_path).splitlines() if "verifications" in line]
    assert len(lines) == 6
    assert all("same text: True" in line for line in lines)
    steps = {line.split("  ")[1].strip(): int(line.split(" verifications")[0].split()[-1]) for line in lines}
    assert steps["no drafter"] == 60
    assert steps["itself"] < 40


@pytest.mark.slow
def test_custom_drafter(tmp_path: Path) -> None:
    """Two processes; the plugin is found, and some of what it guesses is accepted."""
    found = re.search(r"120 tokens in (\d+) verifications\naccepted (\d+)", run("custom_drafter.py", tmp_path))
    assert found is not None
    assert int(found[1]) < 110
    assert int(found[2]) > 10
