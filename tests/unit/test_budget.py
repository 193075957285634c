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


@given(st.lists(st.lists(st.floats(0.0, 1.0), max_size=8), min_size=1, max_size=20), st.floats(1e-4, 5e-3))
def test_at_the_price_of_the_run_no_other_choice_earns_more_in_it(steps: list[list[float]], rise: float) -> None:
    """Steps with different candidates: with the rate that the choices themselves earn as price, no fixed budget, and no
    maximum of each step's own rate, earns more over all of them."""
    costs = VerifyCost.of(lambda r, n: 10e-3 + rise * n, max_rows=1, max_nodes=8)
    curve = costs.curve(1, budget=8)
    made = budget(costs, limit=8)
    steps = [sorted(one, reverse=True) for one in steps]

    def rate(chosen: list[int]) -> float:
        tokens = sum(1 + sum(one[:n]) for one, n in zip(steps, chosen, strict=True))
        return tokens / sum(float(curve[n]) for n in chosen)

    price = 1.0
    for _ in range(50):  # Dinkelbach's iteration: the price rises until it is what is earned at it
        price = rate([made.choose(one, rows=1, price=price).num_nodes for one in steps])
    own_rates = [made.choose(one, rows=1).num_nodes for one in steps]
    others = [[min(n, len(one)) for one in steps] for n in range(9)]
    assert all(price >= rate(chosen) * (1 - 1e-9) for chosen in [own_rates, *others])


def test_sure_guesses_may_cost_more_than_a_step_alone_would_pay() -> None:
    """After many poor steps a long sure chain is taken whole; by its own rate the step would stop early."""
    costs = VerifyCost.of(lambda r, n: 10e-3 + 2e-3 * n, max_rows=1, max_nodes=16)
    survival = [0.9**n for n in range(1, 17)]
    assert budget(costs).choose(survival, rows=1).num_nodes == 7
    assert budget(costs).choose(survival, rows=1, price=120.0).num_nodes == 13


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
