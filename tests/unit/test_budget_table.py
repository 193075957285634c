"""The controller against fixed budgets: ratios, their errors and criteria from made-up times; and the order of the runs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dist_spec.bench.budget_table import AUTO, BudgetTable, Ratio, lines_of
from dist_spec.bench.budgets import order_of

SPEEDS = {
    "code": {AUTO: 200.0, "0": 100.0, "4": 150.0, "16": 205.0},
    "chat": {AUTO: 120.0, "0": 100.0, "4": 122.0, "16": 80.0},
    "random drafter": {AUTO: 99.0, "0": 100.0, "4": 80.0, "16": 50.0},
}


def table(
    auto: dict[str, float], *, noise: float = 0.0, rounds: int = 3, seed: int = 0, prompts: int = 2
) -> BudgetTable:
    """Two domains that want different budgets, and a random drafter; `auto` overrides the controller's speeds."""
    made, draw = BudgetTable(), np.random.default_rng(seed)
    for case, row in SPEEDS.items():
        for turn, prompt in itertools.product(range(rounds), range(prompts)):
            machine = 2.0 ** (turn - 1)  # the machine's own speed changes from round to round
            for budget, speed in row.items():
                speed = machine * (auto.get(case, speed) if budget == AUTO else speed)
                made.add(case, prompt, budget, (50 + 50 * prompt) / speed * math.exp(noise * draw.standard_normal()))
    return made


def test_a_good_controller_passes() -> None:
    good = table({})
    assert good.fixed == ["0", "4", "16"]
    assert (good.best_fixed("code"), good.best_fixed("chat"), good.best_fixed("random drafter")) == ("16", "4", "0")
    assert [(one.passed, one.clear) for one in good.criteria()] == [(True, True)] * 3
    assert good.criteria()[1].found.value == pytest.approx(200 / 205)
    assert good.mean("4") == pytest.approx((1.5 * 1.22 * 0.8) ** (1 / 3))
    assert good.overall_against_best().value == pytest.approx((2.0 * 1.2 * 0.99 / (1.5 * 1.22 * 0.8)) ** (1 / 3))
    assert good.ratio("code", AUTO).error == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"random drafter": 96.0}, [0]),
        ({"chat": 118.0}, [1]),
        ({"code": 100.0, "chat": 100.0}, [1, 2]),
    ],
)
def test_each_criterion_can_fail(changes: dict[str, float], failed: list[int]) -> None:
    criteria = table(changes).criteria()
    assert [number for number, one in enumerate(criteria) if not one.passed] == failed


def test_a_ratio_is_one_of_tokens_per_second_and_a_disturbed_run_is_left_aside() -> None:
    """A prompt that takes twice as long weighs twice as much."""
    made = BudgetTable()
    for turn in range(3):
        for prompt, (plain, auto) in enumerate([(1.0, 0.5), (2.0, 2.0)]):
            made.add("code", prompt, "0", plain)
            made.add("code", prompt, AUTO, auto * (9.0 if (turn, prompt) == (1, 1) else 1.0))
    assert made.speed("code", AUTO) == pytest.approx(3.0 / 2.5)
    assert made.speed("code", AUTO, rounds=[1]) == pytest.approx(3.0 / 18.5)


def test_the_error_is_that_of_the_noise() -> None:
    """Over many made-up runs the figures spread as they say."""
    found = [table({}, noise=0.05, rounds=6, seed=seed).ratio("code", AUTO) for seed in range(60)]
    spread = float(np.std([one.value for one in found]))
    assert np.mean([one.error for one in found]) == pytest.approx(spread, rel=0.35)
    assert np.mean([one.value for one in found]) == pytest.approx(2.0, rel=0.02)


def test_noise_alone_makes_no_best_budget() -> None:
    """All budgets alike: the fastest of five noisy ones must not look faster than it is."""
    ratios = []
    for seed in range(80):
        made, draw = BudgetTable(), np.random.default_rng(seed)
        for _, prompt in itertools.product(range(3), range(2)):
            for budget in (AUTO, "0", "2", "4", "8", "16"):
                made.add("code", prompt, budget, math.exp(0.04 * draw.standard_normal()))
        ratios.append(made.against_best("code").value)
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.012)


def test_one_round_has_no_error_and_decides_all_the_same() -> None:
    single = table({}, rounds=1)
    assert math.isnan(single.ratio("code", AUTO).error)
    assert str(single.ratio("code", AUTO)) == "2.000"
    assert [one.passed for one in single.criteria()] == [True, True, True]


def test_rows_for_people_and_for_programs() -> None:
    rows = lines_of(table({}))
    assert rows[0] == ("code", "2.000 ±0.000", "1", "1.500 ±0.000", "2.050 ±0.000", "16", "0.976 ±0.000")
    assert rows[-1][0] == "overall"
    report = table({}).report()
    assert report["ratio_to_best_fixed"]["chat"]["best"] == "4"
    assert report["ratio_to_best_fixed"]["chat"]["ratio"] == pytest.approx(120 / 122)
    assert [one["passed"] for one in report["criteria"]] == [True, True, True]
    assert str(Ratio(value=1.0, error=0.01)) == "1.000 ±0.010"


def test_everyone_runs_at_every_place_and_after_everyone() -> None:
    budgets = [AUTO, "0", "2", "4", "8", "16"]
    orders = [order_of(budgets, turn=turn, number=number) for turn in range(2) for number in range(6)]
    for budget in budgets:
        places = [order.index(budget) for order in orders]
        assert all(places.count(place) == 2 for place in range(6))
    after = [(a, b) for order in orders for a, b in itertools.pairwise(order)]
    assert all(after.count((b, a)) == after.count((a, b)) for a, b in after)
