"""Replays a simulated run from its records alone: no clock, no network, no faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from dist_spec.sim.build import build_draft, build_target
from dist_spec.sim.scenario import Scenario, Truths, truths_of
from dist_spec.transports.base import LEADER, Transport
from dist_spec.workers.draft import DraftWorker
from dist_spec.workers.record import Event, Recorder
from dist_spec.workers.replay import Replayed, replay
from dist_spec.workers.target import TargetWorker

__all__ = ["replay_scenario"]


def replay_scenario(scenario: Scenario, records: Mapping[str, Sequence[Event]]) -> Replayed:
    """Run a recorded scenario's machines again; raises ReplayError where they decide differently."""
    truths = truths_of(scenario)
    drafters = {name: partial(_draft, scenario, truths, name) for name in records if name != LEADER}
    return replay(records, target=partial(_target, scenario, truths), drafters=drafters)


def _target(scenario: Scenario, truths: Truths, transport: Transport, recorder: Recorder) -> TargetWorker:
    return build_target(scenario, truths, transport=transport, recorder=recorder)


def _draft(scenario: Scenario, truths: Truths, name: str, transport: Transport, recorder: Recorder) -> DraftWorker:
    return build_draft(scenario, truths, machine=name, transport=transport, recorder=recorder)
