"""Drafters that live on the target's hidden features, under faults: the right text, nothing but true features ever reaches
them, and they speculate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dist_spec.core.messages import Features
from dist_spec.errors import DistSpecError
from dist_spec.sim.cluster import Cluster, simulate
from dist_spec.sim.faults import random_schedule, spares_a_drafter
from dist_spec.sim.features import FeatureReader, features_of
from dist_spec.sim.network import Link
from dist_spec.sim.replay import replay_scenario
from dist_spec.sim.scenario import Fault, Scenario, truths_of

FED = Scenario(features=True, num_tokens=120, num_requests=3)


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 60), marks=pytest.mark.slow)], ids=len)
def test_fault_schedules(seeds: range) -> None:
    spared = speculated = 0
    for seed in seeds:
        scenario = replace(random_schedule(seed), features=True)
        result = simulate(scenario)
        assert result.finished, f"schedule {seed} does not end"
        assert result.correct, f"schedule {seed} has a wrong text"
        spared += spares_a_drafter(scenario)
        speculated += spares_a_drafter(scenario) and result.counts.accepted > 0
    assert spared > len(seeds) // 5
    assert speculated >= 0.99 * spared


@pytest.mark.parametrize(
    "link",
    [Link(loss=0.3), Link(duplicate=0.5), Link(latency_s=0.02), Link(reorder=0.5, reorder_s=0.1)],
    ids=["lost", "repeated", "late", "reordered"],
)
def test_features_lost_late_repeated_reordered(link: Link) -> None:
    result = simulate(replace(FED, link=link))
    assert result.correct
    assert result.counts.accepted > 30


def test_fed_it_does_as_well_as_a_drafter_that_needs_nothing() -> None:
    fed, free = simulate(FED), simulate(replace(FED, features=False))
    assert fed.texts == free.texts
    assert fed.acceptance_length > 0.95 * free.acceptance_length


def test_a_drafter_that_comes_back_starts_from_a_recent_window() -> None:
    away = (
        Fault(at_s=0.2, kind="crash", drafter="drafter0"),
        Fault(at_s=0.5, kind="restart", drafter="drafter0"),
    )
    scenario = replace(FED, num_requests=1, num_tokens=300)
    gone, back = (simulate(replace(scenario, faults=away[:n])) for n in (1, 2))
    assert back.correct
    assert back.counts.accepted > gone.counts.accepted + 30
    cluster = Cluster(replace(scenario, faults=away))
    sent: list[Features] = []
    post = cluster.network.post

    def noted(source: str, target: str, message: object) -> None:
        if isinstance(message, Features) and cluster.clock.now > 0.5:
            sent.append(message)
        post(source, target, message)  # type: ignore[arg-type]

    cluster.network.post = noted  # type: ignore[method-assign]
    cluster.run()
    assert sum(len(message.rows) for message in sent) >= 20


def test_a_run_with_features_replays() -> None:
    told = rode = 0
    for seed in range(8):
        scenario = replace(random_schedule(seed), features=True, record=True)
        result = simulate(scenario)
        records = {name: recorder.events for name, recorder in result.records.items()}
        again = replay_scenario(scenario, records)
        assert again.target.session.counts == result.counts
        received = [event[3] for events in records.values() for event in events if event[0] == "received" and event[3]]
        told += any(name[0] == "features" for name in received)
        rode += any(name[0] == "commit" and name[-1] > 0 for name in received)
    assert told > 1
    assert rode > 4


def test_the_measure_can_fail() -> None:
    """The reader notices features of another text, and guesses nothing without any."""
    truths = truths_of(FED)
    cluster = Cluster(FED)
    drafter = cluster.drafters["drafter0"]
    drafter.start()
    reader = drafter.worker.drafter
    assert isinstance(reader, FeatureReader)
    with pytest.raises(DistSpecError, match="another text"):
        reader.features(("r0", 0), 0, features_of(truths["r1", 0], 0, 3))
    reader.features(("r1", 0), 0, features_of(truths["r1", 0], 0, 3))
    assert reader.num_rows == 3
    silent = simulate(replace(FED, link=Link(latency_s=1e6)))  # nothing ever comes
    assert silent.correct
    assert silent.counts.accepted == 0
