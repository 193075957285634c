"""Speeds of the controller and of fixed budgets, prompt by prompt, and what must hold of them. Pure arithmetic.

A prompt's text is the same with every budget, so its ratio is one of times. Of the rounds the median counts (a disturbed run
is left aside), and prompts weigh by the time that they take plainly, so a ratio of a case is one of tokens per second. What
is stated beside it is the standard error over rounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

AUTO = "auto"
PLAIN = "0"
"""Budget 0: drafting off, no drafters."""

LEAST = 0.97


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """A ratio of speeds and its standard error (NaN with one round)."""

    value: float
    error: float = math.nan

    def __str__(self) -> str:
        return f"{self.value:.3f}" if math.isnan(self.error) else f"{self.value:.3f} ±{self.error:.3f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Criterion:
    """Something that must hold, with the figures that decide it."""

    name: str
    passed: bool
    found: Ratio
    wanted: float
    where: str

    @property
    def clear(self) -> bool:
        """The distance is more than twice the standard error."""
        return not abs(self.found.value - self.wanted) <= 2.0 * self.found.error


@dataclass(kw_only=True, slots=True)
class BudgetTable:
    """Seconds by case ("chat", ..., "random drafter"), prompt and budget ("auto", "0", "2", ...), one per round.

    Attributes:
        control: the case with the random drafter; it is no domain.
    """

    control: str = "random drafter"
    seconds: dict[str, dict[int, dict[str, list[float]]]] = field(default_factory=dict)

    def add(self, case: str, prompt: int, budget: str, seconds: float) -> None:
        self.seconds.setdefault(case, {}).setdefault(prompt, {}).setdefault(budget, []).append(seconds)

    @property
    def fixed(self) -> list[str]:
        """The fixed budgets, smallest first."""
        names = {budget for prompts in self.seconds.values() for row in prompts.values() for budget in row} - {AUTO}
        return sorted(names, key=int)

    @property
    def rounds(self) -> int:
        return min(len(times) for case in self.seconds.values() for row in case.values() for times in row.values())

    def speed(self, case: str, budget: str, other: str = PLAIN, *, rounds: Iterable[int] | None = None) -> float:
        """Speed of `budget` over that of `other` in some of the rounds (None: all)."""
        chosen = list(range(self.rounds)) if rounds is None else list(rounds)
        ours = theirs = 0.0
        for row in self.seconds[case].values():
            plain = statistics.median(row[PLAIN][turn] for turn in chosen)
            ours += plain * statistics.median(row[budget][turn] / row[PLAIN][turn] for turn in chosen)
            theirs += plain * statistics.median(row[other][turn] / row[PLAIN][turn] for turn in chosen)
        return theirs / ours

    def ratio(self, case: str, budget: str, other: str = PLAIN) -> Ratio:
        return self._with_error(lambda rounds: self.speed(case, budget, other, rounds=rounds))

    def mean(self, budget: str, other: str = PLAIN, *, rounds: Iterable[int] | None = None) -> float:
        """Geometric mean over all cases of `speed`."""
        chosen = None if rounds is None else list(rounds)
        return statistics.geometric_mean(self.speed(case, budget, other, rounds=chosen) for case in self.seconds)

    def overall(self, budget: str, other: str = PLAIN) -> Ratio:
        return self._with_error(lambda rounds: self.mean(budget, other, rounds=rounds))

    def best_fixed(self, case: str) -> str:
        """The fixed budget that is fastest in this case."""
        return max(self.fixed, key=lambda budget: self.speed(case, budget))

    def against_best(self, case: str) -> Ratio:
        """The controller over the best fixed budget of the case."""
        return self._against(
            lambda budget, rounds: self.speed(case, budget, rounds=rounds),
            lambda budget, rounds: self.speed(case, AUTO, budget, rounds=rounds),
        )

    def overall_against_best(self) -> Ratio:
        """The controller over the single fixed budget that is best overall."""
        return self._against(
            lambda budget, rounds: self.mean(budget, rounds=rounds),
            lambda budget, rounds: self.mean(AUTO, budget, rounds=rounds),
        )

    def _against(
        self, score: Callable[[str, Sequence[int]], float], compare: Callable[[str, Sequence[int]], float]
    ) -> Ratio:
        """The best budget is found in the other rounds than those it is compared in: the largest of several noisy figures is
        too large."""
        turns = range(self.rounds)
        found = []
        for turn in turns:
            others = [other for other in turns if other != turn] or [turn]
            best = max(self.fixed, key=lambda budget, others=others: score(budget, others))  # type: ignore[misc]
            found.append(compare(best, [turn]))
        return Ratio(value=statistics.median(found), error=_standard_error(found))

    def _with_error(self, figure: Callable[[Sequence[int] | None], float]) -> Ratio:
        return Ratio(value=figure(None), error=_standard_error([figure([turn]) for turn in range(self.rounds)]))

    def criteria(self) -> list[Criterion]:
        """Never below 0.97x of plain; at least 0.97x of the best fixed budget in every domain; above every single fixed
        budget overall."""
        domains = [case for case in self.seconds if case != self.control]
        found = [_least(f"never below {LEAST}x of plain", [(self.ratio(case, AUTO), case) for case in self.seconds])]
        if domains:
            ratios = [(self.against_best(case), case) for case in domains]
            found.append(_least(f"at least {LEAST}x of the best fixed budget in every domain", ratios))
        best = max(self.fixed, key=lambda budget: self.mean(budget))
        overall = self.overall_against_best()
        name = "above the best single fixed budget overall (geometric mean of ratios)"
        where = f"budget {best}"
        found.append(Criterion(name=name, passed=overall.value > 1.0, found=overall, wanted=1.0, where=where))
        return found

    def report(self) -> dict[str, Any]:
        """Everything as plain data."""
        budgets = [AUTO, *self.fixed]
        return {
            "seconds": {case: {str(n): row for n, row in prompts.items()} for case, prompts in self.seconds.items()},
            "ratio_to_plain": {
                case: {budget: _plain(self.ratio(case, budget)) for budget in budgets} for case in self.seconds
            },
            "ratio_to_best_fixed": {
                case: {"best": self.best_fixed(case), **_plain(self.against_best(case))} for case in self.seconds
            },
            "overall": {budget: _plain(self.overall(budget)) for budget in budgets},
            "criteria": [
                {
                    "name": one.name,
                    "passed": one.passed,
                    "clear": one.clear,
                    **_plain(one.found),
                    "wanted": one.wanted,
                    "where": one.where,
                }
                for one in self.criteria()
            ],
        }


def _standard_error(values: Sequence[float]) -> float:
    """Of the median of independent figures: 1.25 times that of their mean."""
    return 1.25 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _plain(ratio: Ratio) -> dict[str, float | None]:
    return {"ratio": ratio.value, "error": None if math.isnan(ratio.error) else ratio.error}


def _least(name: str, ratios: Sequence[tuple[Ratio, str]]) -> Criterion:
    found, where = min(ratios, key=lambda one: one[0].value)
    return Criterion(name=name, passed=found.value >= LEAST, found=found, wanted=LEAST, where=where)


def lines_of(table: BudgetTable) -> Sequence[tuple[str, ...]]:
    """(case, ratio to plain of auto and of every fixed budget ..., best fixed, auto / best fixed), and the overall row."""
    budgets = [AUTO, *table.fixed]
    rows: list[tuple[str, ...]] = []
    for case in table.seconds:
        ratios = [str(table.ratio(case, budget)) if budget != PLAIN else "1" for budget in budgets]
        rows.append((case, *ratios, table.best_fixed(case), str(table.against_best(case))))
    best = max(table.fixed, key=lambda budget: table.mean(budget))
    overall = [str(table.overall(budget)) if budget != PLAIN else "1" for budget in budgets]
    rows.append(("overall", *overall, best, str(table.overall_against_best())))
    return rows
