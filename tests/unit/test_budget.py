"""The number of nodes that earns the most tokens per second."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_spec.core.control.budget import Budget
from dist_spec.core.control.costs import VerifyCost
from dist_spec.core.messages import NO_FLOOR


def budget(costs: VerifyCost | None, *, limit: int = 32, adaptive: bool = True) -> Budget:
    made = Budget(limit=limit, adaptive=adaptive)
    made.costs = costs
    return made


STEEP = VerifyCost.of(lambda r, n: 10e-3 + 5e-3 * n, max_rows=4, max_nodes=32)
FLAT = VerifyCost.of(lambda r, n: 10e-3, max_rows=4, max_nodes=32)


@given(
    st.lists(st.floats(0.0, 1.0), max_size=32),
    st.integers(1, 4),
    st.integers(0, 8),
    st.lists(st.floats(0.0, 5e-3), min_size=7, max_size=7),
)
def test_it_is_the_best_of_all(survival: list[float], rows: int, extra: int, rises: list[float]) -> None:
    """Against brute force, for cost curves of any shape, steps among them."""
    survival = sorted(survival, reverse=True)
    curve = 10e-3 + np.cumsum(rises)
    costs = VerifyCost(rows=[1, 4], nodes=[0, 1, 2, 4, 8, 16, 32], seconds=[curve, 1.2 * curve])
    chosen = budget(costs).choose(np.array(survival), rows=rows, extra=extra)
    rates = [
        (rows + sum(survival[:n])) / costs.curve(rows, extra=extra, budget=32)[n] for n in range(len(survival) + 1)
    ]
    assert rates[chosen.num_nodes] == pytest.approx(max(rates), rel=1e-9)
    assert chosen.predicted_s == costs.curve(rows, extra=extra, budget=32)[chosen.num_nodes]


def test_free_nodes_are_all_taken_and_hopeless_ones_at_a_price_are_not() -> None:
    survival = np.array([0.4, 0.2, 0.1, 0.01])
    assert budget(FLAT).choose(survival, rows=1).num_nodes == 4
    assert budget(STEEP).choose(survival, rows=1).num_nodes == 0
    assert budget(STEEP).choose(np.array([0.9, 0.8]), rows=1).num_nodes == 2


def test_a_fixed_budget_is_spent_and_unknown_costs_too() -> None:
    survival = np.array([1e-6] * 5)
    assert budget(STEEP, adaptive=False).choose(survival, rows=1).num_nodes == 5
    unknown = budget(None).choose(survival, rows=1)
    assert (unknown.num_nodes, unknown.predicted_s) == (5, 0.0)


def test_once_in_a_while_the_passed_over_are_tried() -> None:
    made = budget(STEEP)
    survival = np.array([0.2, 0.1])
    chosen = [made.choose(survival, rows=1).num_nodes for _ in range(200)]
    assert [step for step, n in enumerate(chosen) if n] == [63, 127, 191]
    assert max(chosen) == 1
    nothing = [made.choose(np.empty(0), rows=1).num_nodes for _ in range(200)]
    assert not any(nothing)


def test_the_floor_is_a_share_of_what_a_node_must_earn() -> None:
    assert budget(FLAT).floor(price=100.0, rows=1) == NO_FLOOR
    assert budget(None).floor(price=100.0, rows=1) == NO_FLOOR
    assert budget(STEEP, adaptive=False).floor(price=100.0, rows=1) == NO_FLOOR
    assert budget(STEEP).floor(price=0.0, rows=1) == NO_FLOOR
    floor = budget(STEEP).floor(price=100.0, rows=1)
    assert math.exp(floor) == pytest.approx(0.05 * 100.0 * 5e-3, rel=0.1)
    assert math.exp(budget(STEEP).floor(price=1e6, rows=1)) == pytest.approx(0.5, abs=0.01)
