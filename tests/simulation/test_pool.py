"""A pool of drafters that share requests out, on virtual time: they join, leave, are slow, dead or cut off; the text stays
as it is, and speculation goes on with those that are left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from dist_spec.core.settings import Speculation
from dist_spec.sim.cluster import Cluster, simulate
from dist_spec.sim.faults import random_schedule, spares_a_drafter
from dist_spec.sim.replay import replay_scenario
from dist_spec.sim.scenario import Fault, Result, Scenario

ONE_EACH = Speculation(drafters_per_request=1, budget=32)
TOGETHER = replace(ONE_EACH, drafters_per_request="all")
EITHER = replace(ONE_EACH, drafters_per_request="auto")


def run_all(seeds: Iterable[int]) -> tuple[int, int]:
    """(schedules that spare a drafter, those of them with accepted tokens)."""
    spared = speculated = 0
    for seed in seeds:
        scenario = random_schedule(seed, num_tokens=50, max_drafters=4, max_requests=6)
        limit = (1, 2, "auto")[seed % 3]
        scenario = replace(scenario, speculation=replace(scenario.speculation, drafters_per_request=limit))
        result = simulate(scenario)
        assert result.finished, f"schedule {seed} does not end"
        assert result.correct, f"schedule {seed} has a wrong text"
        if spares_a_drafter(scenario):
            spared += 1
            speculated += result.counts.accepted > 0
    return spared, speculated


def check(spared: int, speculated: int) -> None:
    assert spared > 0
    assert speculated >= 0.99 * spared


def test_schedules_of_a_pool_end_with_the_right_text_and_with_speculation() -> None:
    check(*run_all(range(24)))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_thousands_of_schedules_of_a_pool() -> None:
    check(*run_all(range(1000, 3000)))


def pool(num_drafters: int, **changes: object) -> Scenario:
    base = Scenario(speculation=ONE_EACH, num_drafters=num_drafters, num_requests=8, num_tokens=80)
    return replace(base, **changes)  # type: ignore[arg-type]


def acceptance(result: Result) -> float:
    assert result.correct
    return result.acceptance_length


@pytest.mark.parametrize("num_requests", [1, 8])
def test_drafters_help_each_other_with_one_request_and_share_out_many(num_requests: int) -> None:
    """Eight requests of one drafter get an eighth of its steps each; all four on one tree cover more of it."""
    scenario = pool(4, num_requests=num_requests)
    found = {speculation: simulate(replace(scenario, speculation=speculation)) for speculation in (ONE_EACH, TOGETHER)}
    best, other = (ONE_EACH, TOGETHER) if num_requests == 8 else (TOGETHER, ONE_EACH)
    assert acceptance(found[best]) > 1.07 * acceptance(found[other])
    chosen = simulate(replace(scenario, speculation=EITHER))
    assert acceptance(chosen) > 0.98 * acceptance(found[best])
    assert chosen.texts == found[best].texts


def test_a_drafter_that_joins_takes_over_and_survivors_take_over_from_the_dead() -> None:
    late = (Fault(at_s=0.0, kind="crash", drafter="drafter1"), Fault(at_s=1.0, kind="restart", drafter="drafter1"))
    dead = (Fault(at_s=0.5, kind="crash", drafter="drafter0"), Fault(at_s=0.7, kind="cut", drafter="drafter2"))
    plain = simulate(pool(3, num_requests=4))
    for faults in (late, late + dead):
        result = simulate(pool(3, num_requests=4, faults=faults))
        assert result.texts == plain.texts
        assert acceptance(result) > 0.6 * acceptance(plain)


def test_a_drafter_that_is_always_too_late_loses_its_requests() -> None:
    """Without the judgement by usefulness a third of the requests would be decoded plainly to the end."""
    slow = {"drafter1": 400.0}
    result = simulate(pool(3, num_requests=3, slow=slow, num_tokens=300))
    without = simulate(pool(2, num_requests=3, num_tokens=300))
    assert acceptance(result) > 0.8 * acceptance(without)


def test_a_slower_drafter_gets_fewer_requests() -> None:
    cluster = Cluster(pool(2, num_requests=5, slow={"drafter1": 4.0}, num_tokens=300))
    session = cluster.target.worker.session
    loads: list[tuple[int, int]] = []

    def look() -> None:
        loads.append(tuple(session.assignment._load(f"drafter{i}") for i in range(2)))  # type: ignore[arg-type]
        cluster.clock.at(cluster.clock.now + 0.1, look)

    cluster.clock.at(2.0, look)
    assert cluster.run().correct
    busy = [one for one in loads if sum(one) == 5]
    assert busy
    assert sum(fast for fast, _ in busy) > 2 * sum(slow for _, slow in busy)


@pytest.mark.parametrize("limit", [1, 2])
def test_a_recorded_pool_replays_integer_for_integer(limit: int) -> None:
    faults = (
        Fault(at_s=0.2, kind="crash", drafter="drafter0"),
        Fault(at_s=0.9, kind="restart", drafter="drafter0"),
        Fault(at_s=0.4, kind="stop", drafter="drafter1"),
        Fault(at_s=1.4, kind="resume", drafter="drafter1"),
    )
    speculation = replace(ONE_EACH, drafters_per_request=limit)
    scenario = pool(3, num_requests=4, num_tokens=60, faults=faults, record=True, speculation=speculation)
    result = simulate(scenario)
    assert result.correct
    assert result.counts.accepted > 0
    replayed = replay_scenario(scenario, {name: one.events for name, one in result.records.items()})
    assert replayed.target.session.counts == result.counts
