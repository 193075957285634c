"""Random fault schedules: every run ends with the right text, and speculation goes on where a drafter lives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest

from dist_spec.sim.cluster import simulate
from dist_spec.sim.faults import fault_free, random_schedule, spares_a_drafter
from dist_spec.sim.scenario import Fault, Scenario

KINDS = {"crash", "restart", "stop", "resume", "cut", "heal", "garbage"}


@dataclass(kw_only=True)
class Tally:
    """Over many schedules: those that spare a drafter, those of them with accepted tokens, and kinds of faults met."""

    runs: int = 0
    spared: int = 0
    speculated: int = 0
    kinds: frozenset[str] = frozenset()


def run_all(seeds: Iterable[int]) -> Tally:
    tally = Tally()
    for seed in seeds:
        scenario = random_schedule(seed)
        result = simulate(scenario)
        assert result.finished, f"schedule {seed} does not end"
        assert result.correct, f"schedule {seed} has a wrong text"
        spared = spares_a_drafter(scenario)
        tally.runs += 1
        tally.spared += spared
        tally.speculated += spared and result.counts.accepted > 0
        tally.kinds |= {fault.kind for fault in scenario.faults}
    return tally


def check(tally: Tally) -> None:
    assert tally.kinds == KINDS
    assert tally.spared > 0.2 * tally.runs
    assert tally.speculated >= 0.99 * tally.spared


def acceptance(seeds: Iterable[int]) -> tuple[float, int]:
    """Over schedules that leave every drafter alive and lose nothing (latency, jitter, duplication, reordering, garbage):
    acceptance length as a share of that of the same scenarios without faults; and how many single ones lie below 0.9."""
    rows = rows_without = below = 0
    for seed in seeds:
        scenario = random_schedule(seed, gentle=True)
        result, without = simulate(scenario), simulate(fault_free(scenario))
        assert result.correct, f"schedule {seed} has a wrong text"
        assert result.counts.accepted > 0, f"schedule {seed} never speculates"
        rows += result.counts.rows
        rows_without += without.counts.rows
        below += result.acceptance_length < 0.9 * without.acceptance_length
    return rows_without / rows, below  # the texts are equal, so acceptance length goes with 1 / rows


def few_more_many(few: range, more: range, many: range) -> list:
    """Seeds in three sizes: of every quick run, of every full one, and thousands when there is time."""
    thorough = [pytest.mark.long, pytest.mark.timeout(1800)]
    return [few, pytest.param(more, marks=pytest.mark.slow), pytest.param(many, marks=thorough)]


@pytest.mark.parametrize("seeds", few_more_many(range(30), range(30, 160), range(1000, 4000)), ids=len)
def test_schedules_end_with_the_right_text_and_with_speculation(seeds: range) -> None:
    check(run_all(seeds))


@pytest.mark.parametrize("seeds", few_more_many(range(10), range(10, 60), range(1000, 1800)), ids=len)
def test_acceptance_length_holds_where_the_drafters_live(seeds: range) -> None:
    share, below = acceptance(seeds)
    assert share >= 0.97
    assert below <= max(1, len(seeds) // 100)


def under_loss(loss: float, seeds: Iterable[int]) -> float:
    """Acceptance length as a share of that without loss, over random settings whose only fault is lost messages."""
    rows = rows_without = 0
    for seed in seeds:
        scenario = random_schedule(seed)
        link = replace(scenario.link, loss=loss, duplicate=0.0, reorder=0.0)
        lossy = simulate(replace(scenario, faults=(), link=link))
        without = simulate(replace(scenario, faults=(), link=replace(link, loss=0.0)))
        assert lossy.correct
        rows, rows_without = rows + lossy.counts.rows, rows_without + without.counts.rows
    return rows_without / rows


@pytest.mark.parametrize("seeds", few_more_many(range(12), range(12, 80), range(1000, 1400)), ids=len)
def test_acceptance_length_holds_when_one_message_in_twenty_is_lost(seeds: range) -> None:
    """Every commit is told twice, and a late drafter is asked again; without these two this share is .78."""
    assert under_loss(0.05, seeds) >= 0.88


def test_a_schedule_is_a_function_of_its_seed() -> None:
    assert random_schedule(7) == random_schedule(7)
    assert random_schedule(7) != random_schedule(8)
    gentle = [random_schedule(seed, gentle=True) for seed in range(50)]
    assert all(scenario.link.loss == 0 for scenario in gentle)
    assert {fault.kind for scenario in gentle for fault in scenario.faults} == {"garbage"}


def test_what_spares_a_drafter() -> None:
    def scenario(*faults: tuple[str, str], drafters: int = 2) -> Scenario:
        made = tuple(Fault(at_s=0.1, kind=kind, drafter=drafter) for kind, drafter in faults)  # type: ignore[arg-type]
        return Scenario(num_drafters=drafters, faults=made)

    assert spares_a_drafter(scenario())
    assert spares_a_drafter(scenario(("crash", "drafter0"), ("garbage", "drafter1")))
    assert not spares_a_drafter(scenario(("crash", "drafter0"), ("cut", "drafter1")))
    assert not spares_a_drafter(scenario(("stop", "drafter0"), drafters=1))


def test_the_measure_can_fail() -> None:
    """A schedule that takes the only drafter away at once must not look like one with a live drafter."""
    crash = (Fault(at_s=0.0, kind="crash", drafter="drafter0"),)
    result = simulate(Scenario(num_tokens=60, faults=crash))
    assert result.correct
    assert result.counts.accepted == 0


@pytest.mark.parametrize("kinds", [("crash", "restart"), ("stop", "resume"), ("cut", "heal")])
def test_a_drafter_that_was_away_helps_again(kinds: tuple) -> None:
    away = (
        Fault(at_s=0.2, kind=kinds[0], drafter="drafter0"),
        Fault(at_s=1.2, kind=kinds[1], drafter="drafter0"),
    )
    gone = simulate(Scenario(num_tokens=200, faults=away[:1]))
    back = simulate(Scenario(num_tokens=200, faults=away))
    assert gone.texts == back.texts
    assert back.counts.accepted > gone.counts.accepted + 50
