"""From a drafter's settings to the drafter: what a file or a class from outside may get wrong ends in a clear error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dist_spec.config import parse_config
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Sampling
from dist_spec.drafters.base import ExpandRow
from dist_spec.drafters.build import BuiltDrafter, build_drafter
from dist_spec.drafters.suffix import SuffixDrafter
from dist_spec.errors import ConfigError
from dist_spec.models.tokenizer import Tokenizer, load_tokenizer


def build(*, tokenizer: Callable[[], Tokenizer] | None = None, **entry: Any) -> BuiltDrafter:
    [drafter] = parse_config({"target": {"model": "m"}, "drafters": [{"name": "d", **entry}]}).drafters
    return build_drafter(drafter, tokenizer=tokenizer)


class Good:
    kind = "good"

    def __init__(self, *, depth: int = 1) -> None:
        if depth < 1:
            raise ValueError(f"depth {depth}")

    def expand(self, rows: object) -> list[object]:
        return []

    def close(self, key: object) -> None: ...


class NoDrafter:
    expand = None
    close = None


@pytest.fixture(autouse=True)
def _module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("outside_drafters")
    vars(module).update(Good=Good, NoDrafter=NoDrafter, Empty=type("Empty", (), {}))
    monkeypatch.setitem(sys.modules, "outside_drafters", module)


def test_a_plugin_is_made_with_its_options() -> None:
    assert build(kind="plugin", target="outside_drafters:Good", options={"depth": 2}).drafter.kind == "good"


@pytest.mark.parametrize(
    ("target", "options", "named"),
    [
        ("nowhere_xyz:Good", {}, "nowhere_xyz"),
        ("outside_drafters:Bad", {}, "Bad"),
        ("outside_drafters:Good", {"width": 1}, "width"),
        ("outside_drafters:Good", {"depth": 0}, "ValueError: depth 0"),
        ("outside_drafters:Empty", {}, "expand"),
        ("outside_drafters:NoDrafter", {}, "must be methods"),
    ],
)
def test_a_plugin_that_cannot_be_made_is_bad_input(target: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        build(kind="plugin", target=target, options=options)
    assert "drafter d" in caught.value.message
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "named"), [("", "is empty"), ("1 x", "cannot read"), ("1 -2", "is no id"), (f"{2**31}", "is no id")]
)
def test_a_script_that_is_none_is_bad_input(text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(ConfigError, match=named) as caught:
        build(kind="scripted", text_file=str(tmp_path / "t"))
    assert "token ids" in (caught.value.fix or "")


def test_a_suffix_drafter_reads_its_corpus_with_the_targets_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("abcabd")
    tokenizer = load_tokenizer("random:llama?seed=1")
    built = build(kind="suffix", corpus=[str(tmp_path / "t")], tokenizer=lambda: tokenizer)
    assert built.vocabulary == tokenizer.vocabulary_hashes()
    assert built.tokens == tokenizer.token_map
    a, b, c = tokenizer.encode("abc", add_special=False)
    tree = DraftTree(3, b)
    row = ExpandRow(
        key=("r", 0),
        history=[c, a, b],
        history_slots=[-1] * 3,
        prompt_length=3,
        generated_offset=0,
        sampling=Sampling(),
        tree=tree,
        leaves=[tree.root],
        width=2,
    )
    [[guess]] = built.drafter.expand([row])
    assert guess.tokens[0] == tokenizer.encode("d", add_special=False)[0]  # c a b was followed by d


def test_a_suffix_drafter_without_a_corpus_needs_no_tokenizer(tmp_path: Path) -> None:
    plain = build(kind="suffix", remember=False, num_draft_tokens=5).drafter
    assert isinstance(plain, SuffixDrafter)
    assert (plain.remember, plain.num_draft_tokens) == (False, 5)
    with pytest.raises(ConfigError, match="tokenizer"):
        build(kind="suffix", corpus=[str(tmp_path / "t")])


def test_a_script_is_read(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("1 2 3\n\n4 5\n")
    assert build(kind="scripted", text_file=str(tmp_path / "t"), step_s=0.5).step_s == 0.5
