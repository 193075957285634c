"""One scenario, one result; and one text whoever drafts, however many, in whatever batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dist_spec.sim.cluster import simulate
from dist_spec.sim.faults import combinations, random_schedule, small_settings
from dist_spec.sim.network import Link
from dist_spec.sim.scenario import Scenario, truths_of


@pytest.mark.parametrize("num_requests", [1, 3])
@pytest.mark.parametrize("combination", combinations(), ids="-".join)
def test_the_text_is_the_same_with_any_number_of_drafters(combination: tuple, num_requests: int) -> None:
    base = Scenario(speculation=small_settings(*combination), num_requests=num_requests, num_tokens=30, limit_s=60.0)
    results = [simulate(replace(base, num_drafters=number)) for number in (0, 1, 2)]
    assert all(result.finished and result.correct for result in results)
    assert results[0].texts == results[1].texts == results[2].texts
    assert results[0].counts.accepted == 0
    assert results[1].counts.accepted > 0
    assert results[2].counts.accepted > 0
    assert results[1].counts.rows < results[0].counts.rows


def test_a_request_has_the_same_text_in_any_batch() -> None:
    base = Scenario(num_tokens=50)
    alone, together = simulate(base), simulate(replace(base, num_requests=4))
    assert together.texts[0] == alone.texts[0]
    assert len({tuple(text) for text in together.texts}) == 4


def test_the_same_scenario_has_the_same_result() -> None:
    for seed in range(6):
        scenario = random_schedule(seed)
        first, second = simulate(scenario), simulate(scenario)
        assert (first.texts, first.counts, first.seconds) == (second.texts, second.counts, second.seconds)


def test_jitter_changes_the_counts_and_not_the_text() -> None:
    base = Scenario(num_tokens=150, link=Link(latency_s=0.001))
    shaky = replace(base, link=Link(latency_s=0.001, jitter_s=0.004))
    first, second = simulate(base), simulate(shaky)
    assert first.texts == second.texts
    assert first.counts != second.counts


def test_texts_are_a_function_of_the_seed() -> None:
    base = Scenario(num_tokens=20, num_requests=2)
    assert truths_of(base) == truths_of(replace(base, network_seed=7))
    assert truths_of(base) != truths_of(replace(base, seed=7))
    assert truths_of(base)["r0", 0] == truths_of(replace(base, num_requests=1))["r0", 0]


def test_a_run_that_cannot_end_in_time_says_so() -> None:
    result = simulate(Scenario(num_tokens=100, num_drafters=0, limit_s=0.5))
    assert not result.finished
    assert not result.correct
    assert result.counts.committed == pytest.approx(0.5 / 0.0183, abs=1)
