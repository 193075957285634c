"""The prompts for training: many, of every domain, the same for the same seed, and none that measurements use."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from dist_spec.bench.prompts import DEMO_PROMPTS, builtin_prompts
from dist_spec.bench.prompts import DOMAINS as MEASURED_DOMAINS
from dist_spec.distill.prompts import _SLOT, DOMAINS, grammars, held_out_prompts, training_prompts
from dist_spec.errors import ConfigError

_RUN = 8
"""Words in a row that two prompts may not share."""


def _runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + _RUN]) for i in range(len(words) - _RUN + 1)}


def _normalised(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def _pieces(part: str) -> set[tuple[str, ...]]:
    """The runs of everything that a grammar may say between two slots."""
    entries = [entry for lists in grammars(part).values() for entries in lists.values() for entry in entries]
    return {run for entry in entries for piece in _SLOT.split(entry) for run in _runs(piece or "")}


def test_ten_thousand_different_ones_of_all_domains() -> None:
    prompts = training_prompts(10_000, seed=0)
    assert len({_normalised(prompt.text) for prompt in prompts}) > 9_900
    assert len({prompt.text for prompt in prompts}) == 10_000
    assert DOMAINS == MEASURED_DOMAINS
    assert set(Counter(prompt.domain for prompt in prompts).values()) == {1666, 1667}
    assert {prompt.domain for prompt in prompts if prompt.system is not None} == {"chat"}


def test_no_slot_is_left_open() -> None:
    for prompt in [*training_prompts(3_000, seed=1), *held_out_prompts(600, seed=1)]:
        assert "{{" not in prompt.text, prompt.text
        assert prompt.text == prompt.text.strip()
        assert 3 <= len(prompt.text.split()) <= 300


@pytest.mark.parametrize("prompts", [training_prompts, held_out_prompts])
def test_a_seed_names_the_list(prompts: type[training_prompts]) -> None:
    assert prompts(200, seed=3) == prompts(200, seed=3)
    assert prompts(200, seed=3) == prompts(300, seed=3)[:200]
    assert prompts(200, seed=3) != prompts(200, seed=4)


@pytest.mark.parametrize("part", ["training", "held_out"])
def test_nothing_of_the_measured_prompts(part: str) -> None:
    measured = [prompt.text for prompt in (*builtin_prompts(), *DEMO_PROMPTS)]
    runs = {run for text in measured for run in _runs(text)}
    assert not runs & _pieces(part)
    made = training_prompts(4_000, seed=5) if part == "training" else held_out_prompts(600, seed=5)
    assert not {_normalised(text) for text in measured} & {_normalised(prompt.text) for prompt in made}
    assert not [prompt.text for prompt in made if runs & _runs(prompt.text)]


def test_training_and_held_out_share_nothing() -> None:
    training, held_out = training_prompts(4_000, seed=7), held_out_prompts(600, seed=7)
    assert not {_normalised(prompt.text) for prompt in training} & {_normalised(prompt.text) for prompt in held_out}
    seen = {run for prompt in training for run in _runs(prompt.text)} | _pieces("training")
    assert not [prompt.text for prompt in held_out if seen & _runs(prompt.text)]
    for domain in DOMAINS:
        assert not set(grammars("training")[domain]["prompts"]) & set(grammars("held_out")[domain]["prompts"])


def test_too_many_are_refused() -> None:
    with pytest.raises(ConfigError, match="different prompts"):
        held_out_prompts(500_000, seed=0)
