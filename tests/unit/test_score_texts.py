"""Prompt files and options of `score`: what is taken, and what is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dist_spec.bench.score.pair import chosen_drafter
from dist_spec.bench.score.texts import read_prompt_file
from dist_spec.commands.score import live_modes
from dist_spec.config import parse_config
from dist_spec.errors import ConfigError, DistSpecError, RequestError
from tests.unit.test_cli import TINY, Run, dist_spec

__all__ = ["dist_spec"]  # the fixture


def lines(path: Path, *entries: object) -> Path:
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in entries))
    return path


def test_prompts_come_domain_by_domain(tmp_path: Path) -> None:
    entries = [{"prompt": "a", "domain": "x"}, {"prompt": "b\u2028c"}, "", {"prompt": "d", "domain": "x", "more": 1}]
    found = read_prompt_file(lines(tmp_path / "p.jsonl", *entries))
    assert [(one.domain, one.text) for one in found] == [("x", "a"), ("x", "d"), ("", "b\u2028c")]


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("{not json", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ([1], "line 2 holds no JSON object"),
        ({"text": "x"}, "line 2: `prompt`"),
        ({"prompt": " "}, "line 2: `prompt`"),
        ({"prompt": "x", "domain": "a:b"}, "line 2: `domain`"),
        ({"prompt": "x", "domain": 3}, "line 2: `domain`"),
        ({"prompt": "\ud800"}, "line 2: `prompt` is not text in UTF-8"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, entry: object, named: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_prompt_file(lines(tmp_path / "p.jsonl", {"prompt": "fine"}, entry))
    assert f"p.jsonl: {named}" in caught.value.message
    assert caught.value.fix


@pytest.mark.parametrize(
    ("content", "named"), [(None, "cannot be read"), (b"", "no prompts"), (b"\xff\xfe", "not text in UTF-8")]
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes | None, named: str) -> None:
    path = tmp_path / "p.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RequestError, match=named):
        read_prompt_file(path)


CONFIG = parse_config(
    {
        "target": {"model": TINY, "dtype": "float32"},
        "drafters": [{"kind": "ngram", "name": "one"}, {"kind": "ngram", "name": "two"}, {"kind": "suffix"}],
    }
)


def test_a_drafter_is_meant_by_name_kind_or_model(tmp_path: Path) -> None:
    assert chosen_drafter(CONFIG, "two").name == "two"
    assert chosen_drafter(CONFIG, "suffix").name == "suffix2"
    model = chosen_drafter(CONFIG, TINY)
    assert (model.kind, getattr(model, "model", ""), getattr(model, "dtype", "")) == ("model", TINY, "float32")
    assert getattr(chosen_drafter(CONFIG, str(tmp_path)), "model", "") == str(tmp_path)
    alone = parse_config({"target": {"model": TINY}, "drafters": [{"kind": "suffix"}]})
    assert chosen_drafter(alone, None).kind == "suffix"
    assert chosen_drafter(alone, "ngram").kind == "ngram"


@pytest.mark.parametrize(
    ("name", "named"),
    [
        (None, "which of 3 drafters"),
        ("ngram", "2 drafters are of this kind"),
        ("three", "no drafter is called 'three'"),
    ],
)
def test_a_drafter_that_cannot_be_meant_is_refused_with_those_there_are(name: str | None, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        chosen_drafter(CONFIG, name)
    assert "one, two, suffix2" in str(caught.value.fix)


def test_ways_to_run_it() -> None:
    assert live_modes(["streamed", "streamed", "configured"]) == ("streamed", "configured")
    assert live_modes(["none"]) == ()
    for wrong in (["nonsense"], ["none", "streamed"]):
        with pytest.raises(DistSpecError, match="--live"):
            live_modes(wrong)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "which of 0 drafters"),
        (["--drafter", "nobody"], "no drafter is called 'nobody'"),
        (["--drafter", "ngram", "--prompts", "missing.jsonl"], "missing.jsonl: cannot be read"),
        (["--drafter", "ngram", "--prompts", "x", "--builtin-prompts", "1"], "exclude each other"),
        (["--drafter", "ngram", "--live", "fast"], "--live: there is no way called 'fast'"),
        (["--drafter", "ngram", "--json", "/nowhere/x"], "--json: /nowhere/x cannot be written"),
        (["--drafter", "ngram", "--temperature", "1000"], "temperature"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    dist_spec: Run, arguments: list[str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr("dist_spec.bench.score.live.Deployment", refuse)
    outcome = dist_spec("score", "--target", TINY, *arguments)
    assert outcome.code == 2
    assert named in outcome.err
    assert "fix:" in outcome.err or "temperature" in named
