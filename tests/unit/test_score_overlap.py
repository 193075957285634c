"""Chances of a guess from both distributions, against brute force and against drawing with shared noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_spec.bench.score.overlap import Overlap, coupled_match, overlap, probs_of
from dist_spec.core.law import DraftLaw
from dist_spec.core.noise import gumbel_row, request_key

SIZE = 6


def law_of(seed: int, *, zeros: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet(np.ones(SIZE))
    probs[generator.choice(SIZE, zeros, replace=False)] = 0.0
    return probs / probs.sum()


def brute(p: np.ndarray, q: np.ndarray) -> float:
    """sum over x of 1 / sum over y of max(p(y) / p(x), q(y) / q(x)), term by term."""
    total = 0.0
    for x in range(SIZE):
        if p[x] > 0 and q[x] > 0:
            total += 1.0 / sum(max(p[y] / p[x], q[y] / q[x]) for y in range(SIZE))
    return total


@given(st.integers(0, 10_000), st.integers(0, 3), st.integers(0, 3))
def test_coupled_match_is_the_sum_term_by_term(seed: int, zeros_p: int, zeros_q: int) -> None:
    p, q = law_of(seed, zeros=zeros_p), law_of(seed + 1, zeros=zeros_q)
    found = coupled_match(p, q)
    assert found == pytest.approx(brute(p, q), abs=1e-5)
    shared = overlap(p, q)
    assert shared / (2.0 - shared) - 1e-5 <= found <= shared + 1e-9  # its known bounds


def test_coupled_match_is_what_shared_noise_gives() -> None:
    p, q = law_of(1), law_of(2)
    hits, draws = 0, 6000
    for seed in range(draws):
        noise = gumbel_row(request_key(seed, 0), 0, SIZE)
        hits += int((np.log(p) + noise).argmax() == (np.log(q) + noise).argmax())
    assert coupled_match(p, q) == pytest.approx(hits / draws, abs=0.025)


def test_one_law_always_matches_itself_and_never_what_it_rules_out() -> None:
    p = law_of(3)
    assert coupled_match(p, p) == pytest.approx(1.0)
    assert overlap(p, p) == pytest.approx(1.0)
    left, right = np.array([1.0, 0, 0, 0, 0, 0]), np.array([0, 1.0, 0, 0, 0, 0])
    assert coupled_match(left, right) == overlap(left, right) == 0.0


def test_a_certain_guess_stands_with_the_probability_of_its_token() -> None:
    p = law_of(4)
    one = Overlap()
    one.add(p, law=None, guesses=(2, 0, 5, 1))
    assert one.coupled_match == pytest.approx(p[2])
    assert one.sum_min == pytest.approx(p[2])
    for after in (one.plain(), one.rejection()):
        expected = np.cumsum(p[[0, 5, 1]]) / (1 - p[2])
        assert after.next_guesses == pytest.approx(tuple(expected))


def test_without_a_guess_nothing_stands() -> None:
    one = Overlap()
    one.add(law_of(4), law=None, guesses=())
    assert (one.coupled_match, one.sum_min, one.plain().first) == (0.0, 0.0, 0.0)
    assert one.plain().next_guesses == one.rejection().next_guesses == (0.0, 0.0, 0.0)


def test_laws_are_read_as_they_travel() -> None:
    q = law_of(5)
    dense, sparse = DraftLaw.dense(q), DraftLaw.sparse(np.arange(3), q[:3])
    assert probs_of(dense, (), SIZE) == pytest.approx(q, abs=1e-6)
    row = probs_of(sparse, (), SIZE)
    assert row == pytest.approx([*(q[:3] / q[:3].sum()), 0, 0, 0], abs=1e-4)
    assert probs_of(None, (4, 1), SIZE).tolist() == [0, 0, 0, 0, 1, 0]
    assert probs_of(None, (SIZE,), SIZE).sum() == 0.0  # an id that the target does not have


def test_the_three_rankings_of_one_law() -> None:
    p, q = law_of(6), law_of(7)
    one = Overlap()
    one.add(p, law=DraftLaw.dense(q), guesses=(0, 1, 2, 3))
    ranked = np.argsort(-q)
    plain = one.plain()
    assert plain.first == pytest.approx(p[ranked[0]], abs=1e-6)
    assert plain.next_guesses == pytest.approx(tuple(np.cumsum(p[ranked[1:4]]) / (1 - p[ranked[0]])), abs=1e-5)
    rest, lost = np.maximum(p - q, 0), np.maximum(q - p, 0)
    hits = [
        sum(lost[x] * rest[[y for y in ranked if y != x][:number]].sum() for x in range(SIZE)) / rest.sum()
        for number in (1, 2, 3)
    ]
    assert one.rejection().first == pytest.approx(overlap(p, q), abs=1e-6)
    assert one.rejection().next_guesses == pytest.approx(tuple(np.array(hits) / rest.sum()), abs=1e-4)
    whole = one.merged(one)
    assert (whole.positions, whole.sum_min) == (2, pytest.approx(one.sum_min))


def test_a_draft_that_is_never_rejected_is_never_replaced() -> None:
    p = law_of(8)
    one = Overlap()
    one.add(p, law=DraftLaw(ids=np.empty(0, np.int32), weights=p, total=1.0), guesses=())
    assert one.rejection().next_guesses == (0.0, 0.0, 0.0)
