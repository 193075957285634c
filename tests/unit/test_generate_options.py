"""`--builtin-prompts` with and without its number, and files as settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_spec.commands.generate_options import check_connect, file_overrides, with_number
from dist_spec.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "understood"),
    [
        (["--builtin-prompts"], ["--builtin-prompts", "0"]),
        (["--builtin-prompts", "3", "--stats"], ["--builtin-prompts", "3", "--stats"]),
        (["--builtin-prompts", "--stats"], ["--builtin-prompts", "0", "--stats"]),
        (["--builtin-prompts=2"], ["--builtin-prompts=2"]),
        (["a", "--", "--builtin-prompts"], ["a", "--", "--builtin-prompts"]),
        ([], []),
    ],
)
def test_the_number_may_be_left_out(given: list[str], understood: list[str]) -> None:
    assert with_number("--builtin-prompts", given) == understood


def test_files_are_absolute_for_the_processes_that_write_them() -> None:
    assert file_overrides(trace=None, decisions=None) == []
    assert file_overrides(trace=Path("t.json"), decisions=Path("/d.jsonl")) == [
        ("telemetry.trace", str(Path.cwd() / "t.json")),
        ("telemetry.decisions", "/d.jsonl"),
    ]


def test_what_starts_processes_is_refused_with_a_running_target() -> None:
    check_connect(None, {"--drafter": ["ngram"], "--controls": True})
    check_connect("tcp://127.0.0.1:5", {"--drafter": None, "--controls": False, "--num-draft-tokens": None})
    for option, value in (
        ("--drafter", ["ngram"]),
        ("--controls", True),
        ("--num-draft-tokens", 0),
        ("--trace", Path("t")),
    ):
        with pytest.raises(ConfigError, match=f"{option} says how processes are started") as caught:
            check_connect("tcp://127.0.0.1:5", {"--device": None, option: value})
        assert f"leave {option} out" in str(caught.value.fix)
    with pytest.raises(ConfigError, match="no address"):
        check_connect("here", {})
