"""The examples run as they stand and show what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# So small that it soon repeats itself.
TINY = "random:llama?seed=0&layers=1&hidden=16&heads=1&kv_heads=1&ffn=16"


def run(name: str, folder: Path, *arguments: str) -> str:
    """What an example prints, started as its docstring says, from another folder."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == {"offline.py", "streaming.py", "custom_drafter.py"}


@pytest.mark.slow
def test_offline(tmp_path: Path) -> None:
    """The text is the same without a drafter."""
    out = run("offline.py", tmp_path, TINY, "--max-tokens", "40")
    found = re.findall(r"\[(\d+) tokens in (\d+) verifications, (\d+) of them drafted", out)
    assert len(found) == 3
    assert all(0 < int(steps) <= int(tokens) <= 40 for tokens, steps, _ in found)
    assert out.count("same text without a drafter: True") == 3
    assert re.search(r"[\d.]+ tokens/s, [\d.]+ tokens per verification\n$", out)


@pytest.mark.slow
def test_streaming(tmp_path: Path) -> None:
    """Every commit is shown with its prompt; both come to an end."""
    out = run("streaming.py", tmp_path, TINY, "--max-tokens", "40")
    commits = re.findall(r"^([01]): \[(\d+)\+([prb]?)\]", out, flags=re.MULTILINE)
    for place in "01":
        counts = [int(accepted) + len(own) for one, accepted, own in commits if one == place]
        assert 1 < sum(counts) <= 40
        assert f"{place}: the end (" in out


@pytest.mark.slow
def test_custom_drafter(tmp_path: Path) -> None:
    """Two processes; the plugin is found, and some of what it guesses is accepted."""
    found = re.search(r"120 tokens in (\d+) verifications\naccepted (\d+)", run("custom_drafter.py", tmp_path))
    assert found is not None
    assert int(found[1]) < 110
    assert int(found[2]) > 10
