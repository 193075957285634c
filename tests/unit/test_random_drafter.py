"""The random drafter, a control: a plugin, sure of itself, and a function of its seed."""

from __future__ import annotations

import numpy as np
import pytest

from dist_spec.config import parse_config
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Expansion, Sampling
from dist_spec.drafters.base import Drafter, ExpandRow
from dist_spec.drafters.build import build_drafter
from dist_spec.errors import ConfigError

TARGET = "dist_spec.bench.random_drafter:RandomDrafter"


def built(**options: int) -> Drafter:
    entry = {"kind": "plugin", "name": "d", "target": TARGET, "options": options}
    [drafter] = parse_config({"target": {"model": "m"}, "drafters": [entry]}).drafters
    return build_drafter(drafter).drafter


def expand(drafter: Drafter, *, width: int = 4) -> list[Expansion]:
    tree = DraftTree(2, 1)
    row = ExpandRow(
        key=("r", 0),
        history=[1, 1],
        history_slots=[-1, -1],
        prompt_length=2,
        generated_offset=0,
        sampling=Sampling(),
        tree=tree,
        leaves=[tree.root] * 50,
        width=width,
    )
    [expansions] = drafter.expand([row])
    return expansions


def test_guesses_are_random_and_sure_of_themselves() -> None:
    guesses = expand(built(vocab_size=100, seed=3))
    tokens = np.concatenate([guess.tokens for guess in guesses])
    assert len(tokens) == 200
    assert (tokens.min() < 10, tokens.max() > 90, tokens.max() < 100) == (True, True, True)
    assert len(set(tokens.tolist())) > 60
    for guess in guesses:
        assert len(set(guess.tokens.tolist())) == 4
        assert np.exp(guess.scores[0]) > 0.8
        assert np.exp(guess.scores).sum() <= 1.0
        assert (np.diff(guess.scores) < 0).all()
        assert guess.features is not None
        assert guess.features.shape == (4, 2)


def test_the_seed_decides() -> None:
    def first(seed: int) -> list[int]:
        return expand(built(vocab_size=1000, seed=seed))[0].tokens.tolist()

    assert first(1) == first(1) != first(2)


def test_it_offers_no_more_than_there_is() -> None:
    assert all(guess.tokens.tolist() == [0] for guess in expand(built(vocab_size=1)))
    assert all(len(guess.tokens) == 2 for guess in expand(built(width=3), width=2))
    assert all(len(guess.tokens) == 3 for guess in expand(built(width=3), width=9))
    with pytest.raises(ConfigError, match="vocab_size"):
        built(vocab_size=0)
