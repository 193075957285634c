"""Law 10, progress is health: liveness is judged by progress, not by an open socket; every wait has a deadline."""

from __future__ import annotations

import pytest

from dist_spec.core.messages import Message
from dist_spec.sim.cluster import Cluster, simulate
from dist_spec.sim.faults import combinations, small_settings
from dist_spec.sim.scenario import Fault, Scenario

PULLS = [combination for combination in combinations() if combination[1] == "pull" or combination[3] == "wait"]


def scenario(combination: tuple, *faults: Fault, **fields: object) -> Scenario:
    values = {"num_tokens": 100, "record": True, "limit_s": 60.0, **fields}
    return Scenario(speculation=small_settings(*combination), faults=faults, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("combination", PULLS, ids="-".join)
def test_a_frozen_drafter_holds_the_target_up_once(combination: tuple) -> None:
    """Its link stays up; it just does nothing. One deadline passes, then the target goes on alone."""
    frozen = Fault(at_s=0.3, kind="stop", drafter="drafter0")
    result = simulate(scenario(combination, frozen))
    assert result.correct
    settings = result.records["leader"].events
    waits = [event for event in settings if event[0] == "waited"]
    longest = max(small_settings(*combination).pull_timeout_s, small_settings(*combination).max_wait_s)
    assert all(until - now <= longest + 1e-9 for _, now, until, _ in waits)
    alone = [event for event in waits if event[1] > 0.3]
    deadlines = {event[2] for event in alone}
    assert len(deadlines) <= 2 if combination[1] == "pull" else len(deadlines) <= 30


@pytest.mark.parametrize("combination", combinations(), ids="-".join)
def test_a_drafter_that_comes_back_is_used_again(combination: tuple) -> None:
    stop = Fault(at_s=0.1, kind="stop", drafter="drafter0")
    resume = Fault(at_s=1.2, kind="resume", drafter="drafter0")
    cluster = Cluster(scenario(combination, stop, resume, num_tokens=200))
    silent: list[bool] = []
    accepted: list[int] = []

    def look() -> None:
        session = cluster.target.worker.session
        silent.append(session.membership.members["drafter0"].silent)
        accepted.append(session.counts.accepted)

    cluster.clock.at(1.1, look)
    result = cluster.run()
    assert silent == [True]
    assert result.correct
    assert result.counts.accepted > accepted[0] + 20


def test_a_silent_drafter_is_sent_no_commits() -> None:
    fault = Fault(at_s=0.1, kind="cut", drafter="drafter0")
    cluster = Cluster(scenario(("best_first", "push", "tree", "plain"), fault, num_tokens=200))
    sent: list[tuple[float, str]] = []
    post = cluster.network.post

    def spy(source: str, target: str, message: Message) -> None:
        sent.append((cluster.clock.now, type(message).__name__) if target == "drafter0" else (0.0, ""))
        post(source, target, message)

    cluster.network.post = spy  # type: ignore[method-assign]
    result = cluster.run()
    assert result.seconds > 1.5
    assert {kind for when, kind in sent if when < 0.1} >= {"Open", "Commit"}
    assert {kind for when, kind in sent if when > 0.1 + 0.5 + 0.2} == {"Ping"}  # dead_after_s and two ticks
