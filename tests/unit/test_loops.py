"""Looping tails: what counts as one, and speeds with and without it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_spec.bench.loops import loop_figures, looping_tail, speed_before
from dist_spec.bench.run import RunResult
from tests.unit.run_cases import stream

VARIED = np.random.default_rng(0).integers(0, 50_000, 500).tolist()


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], 0),
        (VARIED, 0),
        ([*VARIED, *[7] * 64], 64),
        ([*VARIED, *[7] * 63], 0),  # too short
        ([*VARIED, *list(range(32)) * 4], 128),
        ([*VARIED, *list(range(32)) * 3], 0),  # repeated too seldom
        ([*VARIED, *list(range(33)) * 9], 0),  # too long a period
        ([*VARIED, *[1, 2, 3] * 40, 1, 2], 122),  # the last repetition may be cut off
        ([*[1, 2, 3] * 40, *VARIED], 0),  # not at the end
        ([5] * 200, 200),
    ],
)
def test_looping_tail(tokens: list[int], expected: int) -> None:
    assert looping_tail(tokens) == expected


@given(st.integers(1, 32), st.integers(4, 20), st.integers(0, 31))
def test_every_repetition_that_is_long_enough_is_found(period: int, repeats: int, cut: int) -> None:
    loop = list(range(period)) * repeats + list(range(min(cut, period)))
    found = looping_tail([*VARIED, *loop])
    assert found == (len(loop) if len(loop) >= 64 else 0)


def test_speed_without_the_tail_ends_where_the_tail_begins() -> None:
    whole = stream([(1.0, 1), (2.0, 4), (3.0, 100)], opened_s=0.5, closed_s=3.1)
    assert speed_before([whole], [0]) == (105, pytest.approx(2.6))
    assert speed_before([whole], [100]) == (5, pytest.approx(1.5))
    assert speed_before([whole], [102]) == (3, pytest.approx(1.0))  # half of the second commit, half of its time
    assert speed_before([whole], [105]) == (0, pytest.approx(0.0))


def test_a_loop_is_reported_apart() -> None:
    """10 tokens in 1 s, then a loop of 100 in 1 s; plain decoding takes 10 s for either."""
    tokens = [*VARIED[:10], *[7] * 100]
    ours = RunResult(streams=[stream([(1.0, 10), (2.0, 100)], tokens=tokens)], wall_s=2.0)
    plain = RunResult(streams=[stream([(10.0, 10), (20.0, 100)], tokens=tokens)], wall_s=20.0)
    report = loop_figures(ours, plain)
    assert (report["num_texts"], report["num_tokens"]) == (1, 100)
    assert report["tokens_per_s_with"] == pytest.approx(55.0)
    assert report["tokens_per_s_without"] == pytest.approx(10.0)
    assert report["speedup_vs_plain_without"] == pytest.approx(10.0)
    assert "speedup_vs_plain_with" not in loop_figures(ours)
