"""Law 7, arguments not ambience: what a session decides is a function of its inputs, `now` among them, alone."""

from __future__ import annotations

from dataclasses import replace

from dist_spec.sim.cluster import simulate
from dist_spec.sim.faults import random_schedule
from dist_spec.sim.network import Link
from dist_spec.sim.scenario import Scenario


def events(scenario: Scenario) -> dict[str, list]:
    return {name: recorder.events for name, recorder in simulate(replace(scenario, record=True)).records.items()}


def test_the_same_scenario_gives_the_same_events() -> None:
    for seed in range(8):
        scenario = random_schedule(seed)
        assert events(scenario) == events(scenario)


def test_the_comparison_can_fail() -> None:
    scenario = Scenario(num_tokens=40, link=Link(latency_s=0.002, jitter_s=0.002))
    assert events(scenario) != events(replace(scenario, network_seed=scenario.network_seed + 1))
    assert events(scenario) != events(replace(scenario, seed=scenario.seed + 1))
