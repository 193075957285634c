"""The controller against fixed budgets: ratios and criteria from made-up speeds."""

from __future__ import annotations

import pytest

from dist_spec.bench.budget_table import AUTO, BudgetTable, lines_of


def table(auto: dict[str, float]) -> BudgetTable:
    """Two domains that want different budgets, and a random drafter; `auto` overrides the controller's speeds."""
    speeds = {
        "code": {AUTO: 200.0, "0": 100.0, "4": 150.0, "16": 205.0},
        "chat": {AUTO: 120.0, "0": 100.0, "4": 122.0, "16": 80.0},
        "random drafter": {AUTO: 99.0, "0": 100.0, "4": 80.0, "16": 50.0},
    }
    made = BudgetTable()
    for case, row in speeds.items():
        for machine in (1.0, 0.5, 2.0):  # the machine's own speed changes from round to round
            for budget, speed in row.items():
                made.add(case, budget, machine * (auto.get(case, speed) if budget == AUTO else speed))
    return made


def test_a_good_controller_passes() -> None:
    good = table({})
    assert good.fixed == ["0", "4", "16"]
    assert (good.best_fixed("code"), good.best_fixed("chat"), good.best_fixed("random drafter")) == ("16", "4", "0")
    assert [one.passed for one in good.criteria()] == [True, True, True]
    assert good.criteria()[1].found == pytest.approx(200 / 205)
    assert good.overall("4") == pytest.approx((1.5 * 1.22 * 0.8) ** (1 / 3))


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


def test_rows_for_people_and_for_programs() -> None:
    rows = lines_of(table({}))
    assert rows[0] == ("code", "2.000", "1.000", "1.500", "2.050", "16", "0.976")
    assert rows[-1][0] == "overall"
    report = table({}).report()
    assert report["ratio_to_best_fixed"]["chat"] == {"best": "4", "ratio": pytest.approx(120 / 122)}
    assert [one["passed"] for one in report["criteria"]] == [True, True, True]
