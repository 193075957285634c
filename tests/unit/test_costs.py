"""What a verification costs, and how corrections keep it true."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_spec.core.control.costs import VerifyCost, grid_points, row_points


def linear(rows: int, nodes: int) -> float:
    return 10e-3 + 2e-3 * (rows - 1) + 1e-3 * nodes


def made(*, max_rows: int = 4, max_nodes: int = 32) -> VerifyCost:
    return VerifyCost.of(linear, max_rows=max_rows, max_nodes=max_nodes)


def test_points_double_up_to_the_limit() -> None:
    assert grid_points(0) == [0]
    assert grid_points(1) == [0, 1]
    assert grid_points(9) == [0, 1, 2, 3, 4, 7, 8, 9]
    assert grid_points(32) == [0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32]
    assert row_points(1) == [1]
    assert row_points(6) == [1, 2, 4, 6]


@given(st.integers(1, 9), st.integers(0, 60), st.integers(0, 20))
def test_lines_between_the_points_and_beyond(rows: int, nodes: int, extra: int) -> None:
    cost = made()
    assert cost.seconds(rows, nodes) == pytest.approx(linear(rows, nodes), rel=1e-9)
    assert cost.curve(rows, extra=extra, budget=nodes)[-1] == pytest.approx(linear(rows, nodes + extra), rel=1e-9)


def test_a_measurement_is_made_monotone() -> None:
    cost = VerifyCost(rows=[1, 2], nodes=[0, 1, 2], seconds=[[3.0, 2.0, 4.0], [2.0, 5.0, 1.0]])
    assert cost.curve(1, budget=2).tolist() == [3.0, 3.0, 4.0]
    assert cost.curve(2, budget=2).tolist() == [3.0, 5.0, 5.0]
    assert VerifyCost(**cost.table()).curve(2, budget=2).tolist() == [3.0, 5.0, 5.0]


@pytest.mark.parametrize("seconds", [[[1.0]], [[1.0, 0.0]], [[1.0, math.nan]]])
def test_senseless_measurements_are_refused(seconds: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="positive"):
        VerifyCost(rows=[1], nodes=[0, 1], seconds=seconds)


def test_a_slower_machine_changes_all_alike() -> None:
    cost = made()
    for step in range(400):
        nodes = (0, 3, 8, 20)[step % 4]
        cost.observed(1, nodes, 1.3 * linear(1, nodes))
    for nodes in (0, 3, 8, 20):
        assert cost.seconds(1, nodes) == pytest.approx(1.3 * linear(1, nodes), rel=0.02)


def test_one_wrong_point_is_corrected_within_bounds() -> None:
    wrong = VerifyCost.of(lambda r, n: linear(r, n) * (1.4 if n == 8 else 1.0), max_rows=1, max_nodes=32)
    for step in range(4000):
        nodes = (0, 4, 8, 16)[step % 4]
        wrong.observed(1, nodes, linear(1, nodes))
    assert wrong.seconds(1, 8) == pytest.approx(linear(1, 8), rel=0.05)
    hopeless = made()
    for step in range(4000):
        nodes = (0, 8)[step % 2]
        hopeless.observed(1, nodes, linear(1, nodes) * (10.0 if nodes else 1.0))
    ratio = hopeless.seconds(1, 8) / hopeless.seconds(1, 0)
    assert ratio == pytest.approx(linear(1, 8) / linear(1, 0) * 1.5 / 0.7, rel=0.01)


def test_a_disturbed_step_counts_for_little() -> None:
    cost = made()
    cost.observed(1, 8, 100.0)
    for _ in range(10):
        cost.observed(1, 8, 0.0)  # no time at all: not a step
    for _ in range(7):
        cost.observed(1, 8, cost.seconds(1, 8))
    assert cost.seconds(1, 8) < 1.1 * linear(1, 8)


def test_what_lies_between_two_steps_is_paid_by_all() -> None:
    cost = made()
    before = cost.curve(1, budget=8).copy()
    for _ in range(200):
        cost.between(1e-3)
        cost.observed(1, 4, linear(1, 4))
    assert cost.curve(1, budget=8) - before == pytest.approx(np.full(9, 1e-3), rel=0.01)


def test_the_slope_is_that_of_nodes_in_bulk() -> None:
    assert made().slope(1, budget=32) == pytest.approx(1e-3)
    assert made().slope(1, budget=2) == pytest.approx(1e-3)
    assert made().slope(1, budget=0) == 0.0
    flat = VerifyCost.of(lambda r, n: 10e-3 + 1e-3 * max(0, n - 16), max_rows=1, max_nodes=32)
    assert flat.slope(1, budget=32) == 0.0
    few_free = VerifyCost.of(lambda r, n: 10e-3 + 1e-3 * max(0, n - 2), max_rows=1, max_nodes=32)
    assert few_free.slope(1, budget=32) == pytest.approx(6 / 8 * 1e-3)


@pytest.mark.parametrize("multiple", [1, 4, 8, 16])
def test_costs_that_come_in_steps_are_known_exactly_at_their_edges(multiple: int) -> None:
    """Rows in multiples: where one more node costs a whole step more is where a budget must end."""
    steps = VerifyCost.of(lambda r, n: 10e-3 + 2e-3 * -(-(r + n) // multiple), max_rows=1, max_nodes=32)
    edges = [n for n in (3, 4, 7, 8, 15, 16, 31, 32) if n + 1 <= 8 or multiple >= 8 or n in (15, 16, 31, 32)]
    for nodes in edges:
        assert steps.seconds(1, nodes) == pytest.approx(10e-3 + 2e-3 * -(-(1 + nodes) // multiple))


def test_the_first_steps_correct_a_point_quickly_and_later_ones_calmly() -> None:
    wrong = VerifyCost.of(lambda r, n: linear(r, n) * (1.25 if n == 8 else 1.0), max_rows=1, max_nodes=32)
    for step in range(80):  # a second of decoding
        nodes = (0, 8)[step % 2]
        wrong.observed(1, nodes, linear(1, nodes))
    ratio = wrong.seconds(1, 8) / wrong.seconds(1, 0)
    assert ratio == pytest.approx(linear(1, 8) / linear(1, 0), rel=0.07)
    before = ratio
    for _ in range(8):  # one disturbed second moves it little by now
        wrong.observed(1, 8, 1.5 * linear(1, 8))
        wrong.observed(1, 0, linear(1, 0))
    assert wrong.seconds(1, 8) / wrong.seconds(1, 0) < 1.08 * before
