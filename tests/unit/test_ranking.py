"""The best few candidates as guesses: order, scores, and the features that a match is learned from."""

from __future__ import annotations

import numpy as np
import pytest

from dist_spec.drafters.ranking import NUM_FEATURES, best, likeliest


def test_likeliest_is_in_order_of_probability_and_ties_go_to_the_smallest_id() -> None:
    scores = np.log(np.array([0.2, 0.5, 0.2, 0.1], np.float32))
    guesses = likeliest(np.array([9, 4, 3, 1]), scores, width=3)
    assert guesses.tokens.tolist() == [4, 3, 9]
    assert np.exp(guesses.scores) == pytest.approx([0.5, 0.2, 0.2])
    assert guesses.features is not None
    assert guesses.features.shape == (3, NUM_FEATURES)
    assert guesses.features[:, 1] == pytest.approx([np.log(2.5), np.log(0.4), np.log(0.4)])


def test_best_ranks_by_the_perturbed_value_and_tells_the_plain_probability_and_the_margin() -> None:
    plain = np.log(np.array([0.7, 0.2, 0.1]))
    values = plain + np.array([0.0, 3.0, 0.5])
    guesses = best(np.array([5, 6, 7]), values, plain=plain, width=2)
    assert guesses.tokens.tolist() == [6, 5]
    share = np.exp(values) / np.exp(values).sum()
    assert np.exp(guesses.scores) == pytest.approx([share[1], share[0]])
    assert guesses.features is not None
    assert np.exp(guesses.features[:, 0]) == pytest.approx([0.2, 0.7])
    gap = values[1] - values[0]
    assert guesses.features[:, 1] == pytest.approx([gap, -gap])
    assert guesses.features[:, 2].tolist() == [0, 1]


def test_impossible_candidates_are_left_out() -> None:
    values = np.array([-np.inf, 1.0, -np.inf])
    assert best(np.array([1, 2, 3]), values, plain=values, width=3).tokens.tolist() == [2]
    nothing = np.full(3, -np.inf)
    assert len(best(np.array([1, 2, 3]), nothing, plain=nothing, width=3).tokens) == 0
