"""Streamed text in colours: every character keeps the colour of its token, and nothing else changes."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dist_spec.bench.printer import COLOURS, TextPrinter, may_colour
from dist_spec.models.tokenizer import load_tokenizer

TINY = "random:llama?seed=1"


def test_text_keeps_its_colour_though_it_is_held_back(capsys: pytest.CaptureFixture[str]) -> None:
    """What may become a stop string comes out later than it went in, and so does half a character."""
    tokenizer = load_tokenizer(TINY)
    printer = TextPrinter(tokenizer, texts=["p"], live=True, quiet=False, stops=["STOP"], colour=True)
    parts = (("abST", "accepted"), ("cd", "recovered"), ("efé", "plain"), ("gSTOP", "bonus"))
    tokens = [(token, kind) for text, kind in parts for token in tokenizer.encode(text)]
    for token, kind in tokens:
        printer.show(0, [token], [kind])
    ids, kinds = [token for token, _ in tokens], [kind for _, kind in tokens]
    printer.finish(cast(Any, SimpleNamespace(streams=[SimpleNamespace(tokens=ids, kinds=kinds, reason="stop")])))
    shown = capsys.readouterr().out.rstrip("\n")
    assert re.sub(r"\033\[\d+m", "", shown) == "abSTcdefég"
    green, red, cyan = (COLOURS[kind] for kind in ("accepted", "recovered", "bonus"))
    characters: dict[str, str] = {}
    for colour, text in re.findall(r"(\033\[3\dm)?([a-zA-Zé]+)(?:\033\[0m)?", shown):
        characters |= dict.fromkeys(text, colour)
    assert characters == dict.fromkeys("abST", green) | dict.fromkeys("cd", red) | dict.fromkeys("efé", "") | {
        "g": cyan
    }


@pytest.mark.parametrize("live", [True, False])
def test_colours_change_nothing_but_colours(live: bool, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = load_tokenizer(TINY)
    tokens = tokenizer.encode("one two three")
    kinds = ["accepted", "recovered", "bonus", "plain"] * len(tokens)
    shown = []
    for colour in (False, True):
        printer = TextPrinter(tokenizer, texts=["p"], live=live, quiet=False, colour=colour)
        printer.show(0, tokens, kinds[: len(tokens)])
        printer.finish(
            cast(Any, SimpleNamespace(streams=[SimpleNamespace(tokens=tokens, kinds=kinds, reason="length")]))
        )
        shown.append(capsys.readouterr().out)
        assert (printer.detokenise_s > 0) == live  # else it comes after the requests, and is no part of their time
    assert "\033" not in shown[0]
    assert COLOURS["accepted"] in shown[1]
    assert re.sub(r"\033\[\d+m", "", shown[1]) == shown[0]


@pytest.mark.parametrize(
    ("terminal", "environment", "expected"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": "0"}, False),
        (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    ],
)
def test_when_colours_are_wanted(
    terminal: bool, environment: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    assert may_colour(stream) is expected
