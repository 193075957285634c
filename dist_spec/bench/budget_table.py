"""Speeds of the controller and of fixed budgets, case by case, and what must hold of them. Pure arithmetic."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

AUTO = "auto"
PLAIN = "0"
"""Budget 0: drafting off, no drafters."""

LEAST = 0.97


@dataclass(frozen=True, kw_only=True, slots=True)
class Criterion:
    """Something that must hold, with the figures that decide it."""

    name: str
    passed: bool
    found: float
    wanted: float
    where: str


@dataclass(kw_only=True, slots=True)
class BudgetTable:
    """Tokens per second by case ("chat", ..., "random drafter") and budget ("auto", "0", "2", ...), one per round.

    Attributes:
        control: the case with the random drafter; it is no domain.
    """

    control: str = "random drafter"
    speeds: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, case: str, budget: str, tokens_per_s: float) -> None:
        self.speeds.setdefault(case, {}).setdefault(budget, []).append(tokens_per_s)

    @property
    def fixed(self) -> list[str]:
        """The fixed budgets, smallest first."""
        names = {budget for row in self.speeds.values() for budget in row} - {AUTO}
        return sorted(names, key=int)

    def ratio(self, case: str, budget: str, other: str) -> float:
        """Median over rounds of `budget` over `other`, side by side in one round."""
        row = self.speeds[case]
        return statistics.median(mine / theirs for mine, theirs in zip(row[budget], row[other], strict=True))

    def best_fixed(self, case: str) -> str:
        """The fixed budget that is fastest in this case."""
        return max(self.fixed, key=lambda budget: self.ratio(case, budget, PLAIN))

    def overall(self, budget: str) -> float:
        """Geometric mean over all cases of the ratio to plain."""
        return statistics.geometric_mean(self.ratio(case, budget, PLAIN) for case in self.speeds)

    def criteria(self) -> list[Criterion]:
        """Never below 0.97x of plain; at least 0.97x of the best fixed budget in every domain; above every single fixed
        budget overall."""
        domains = [case for case in self.speeds if case != self.control]
        found = [
            _least(f"never below {LEAST}x of plain", ((self.ratio(case, AUTO, PLAIN), case) for case in self.speeds))
        ]
        if domains:
            ratios = ((self.ratio(case, AUTO, self.best_fixed(case)), case) for case in domains)
            found.append(_least(f"at least {LEAST}x of the best fixed budget in every domain", ratios))
        best = max(self.fixed, key=self.overall)
        mine, theirs = self.overall(AUTO), self.overall(best)
        found.append(
            Criterion(
                name="above the best single fixed budget overall (geometric mean of ratios to plain)",
                passed=mine > theirs,
                found=mine,
                wanted=theirs,
                where=f"budget {best}",
            )
        )
        return found

    def report(self) -> dict[str, Any]:
        """Everything as plain data."""
        budgets = [AUTO, *self.fixed]
        return {
            "tokens_per_s": self.speeds,
            "ratio_to_plain": {
                case: {budget: self.ratio(case, budget, PLAIN) for budget in budgets} for case in self.speeds
            },
            "ratio_to_best_fixed": {
                case: {"best": (best := self.best_fixed(case)), "ratio": self.ratio(case, AUTO, best)}
                for case in self.speeds
            },
            "overall": {budget: self.overall(budget) for budget in budgets},
            "criteria": [
                {"name": one.name, "passed": one.passed, "found": one.found, "wanted": one.wanted, "where": one.where}
                for one in self.criteria()
            ],
        }


def _least(name: str, ratios: Iterator[tuple[float, str]]) -> Criterion:
    found, where = min(ratios)
    return Criterion(name=name, passed=found >= LEAST, found=found, wanted=LEAST, where=where)


def lines_of(table: BudgetTable) -> Sequence[tuple[str, ...]]:
    """(case, ratio to plain of auto and of every fixed budget ..., best fixed, auto / best fixed), and the overall row."""
    budgets = [AUTO, *table.fixed]
    rows: list[tuple[str, ...]] = []
    for case in table.speeds:
        best = table.best_fixed(case)
        ratios = [f"{table.ratio(case, budget, PLAIN):.3f}" for budget in budgets]
        rows.append((case, *ratios, best, f"{table.ratio(case, AUTO, best):.3f}"))
    best = max(table.fixed, key=table.overall)
    overall = [f"{table.overall(budget):.3f}" for budget in budgets]
    rows.append(("overall", *overall, best, f"{table.overall(AUTO) / table.overall(best):.3f}"))
    return rows
