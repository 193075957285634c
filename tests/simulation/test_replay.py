"""Exact replay: from the order of inputs alone, integer for integer; and it notices when anything differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dist_spec.core.messages import Commit, Hello, Message, Open, Ping, Propose
from dist_spec.core.settings import Speculation
from dist_spec.core.types import Sampling
from dist_spec.drafters.rank_law import RankLaw
from dist_spec.errors import ProtocolError, RequestError
from dist_spec.sim.build import build_draft, build_target
from dist_spec.sim.cluster import simulate
from dist_spec.sim.devices import DeviceTimes
from dist_spec.sim.faults import combinations, random_schedule, small_settings
from dist_spec.sim.network import Link
from dist_spec.sim.replay import replay_scenario
from dist_spec.sim.scenario import Result, Scenario, truths_of
from dist_spec.transports.base import LEADER
from dist_spec.transports.inproc import InprocHub
from dist_spec.workers.record import Event, Recorder, describe, load_events, name_of, rebuild
from dist_spec.workers.replay import RecordedTarget, ReplayError, replay

SHAKY = Scenario(
    num_tokens=80,
    num_requests=2,
    link=Link(latency_s=0.002, jitter_s=0.003, loss=0.03, duplicate=0.1, reorder=0.1),
    record=True,
)


def recorded(scenario: Scenario) -> tuple[Result, dict[str, list[Event]]]:
    result = simulate(replace(scenario, record=True))
    assert result.correct
    return result, {name: recorder.events for name, recorder in result.records.items()}


def check(scenario: Scenario) -> None:
    """Replays a run: all counts of all machines agree."""
    result, records = recorded(scenario)
    again = replay_scenario(scenario, records)
    assert again.target.session.counts == result.counts
    for name, worker in again.drafters.items():
        drafted = [event[2] for event in records[name] if event[0] == "expanded"]
        assert worker.session.num_drafted == max(drafted, default=0)
        assert worker.session.steps == len(drafted)


@pytest.mark.parametrize("combination", combinations(), ids="-".join)
def test_every_combination_replays(combination: tuple) -> None:
    check(replace(SHAKY, speculation=small_settings(*combination), num_tokens=40))


SEEDS = [range(8), pytest.param(range(8, 40), marks=pytest.mark.slow)]
THOROUGH = pytest.param(range(2000, 3000), marks=[pytest.mark.long, pytest.mark.timeout(1800)])


@pytest.mark.parametrize("seeds", [*SEEDS, THOROUGH], ids=len)
def test_fault_schedules_replay(seeds: range) -> None:
    """Crashes, restarts and garbage included; batch 1 to 4, one or two drafters."""
    lives = 0
    for seed in seeds:
        scenario = random_schedule(seed)
        check(scenario)
        lives += any(fault.kind == "restart" for fault in scenario.faults)
    assert lives > len(seeds) // 12


ADAPTIVE = Scenario(
    speculation=Speculation(budget=16, adaptive=True, num_draft_tokens=32),
    law=RankLaw(a=0.6, b=0.5, concentration=3.0),
    times=DeviceTimes(verify_s=15e-3, verify_flat=1, verify_per_token_s=1e-3),
    num_drafters=2,
    num_requests=2,
    num_tokens=60,
    record=True,
)


def test_decisions_by_price_replay() -> None:
    """Calibrated scores, corrected costs, shares of two drafters, the floor: all follow from recorded inputs."""
    check(ADAPTIVE)
    check(replace(ADAPTIVE, link=Link(latency_s=0.002, jitter_s=0.002)))


def test_other_costs_give_other_decisions() -> None:
    _, records = recorded(ADAPTIVE)
    table = dict(records[LEADER][0][2])
    assert records[LEADER][0][0] == "measured"
    table["seconds"] = [[second * (1.0 + 0.2 * i) for i, second in enumerate(row)] for row in table["seconds"]]
    changed = [("measured", 0.0, table), *records[LEADER][1:]]
    with pytest.raises(ReplayError, match="leader, event"):
        replay_scenario(ADAPTIVE, {**records, LEADER: changed})


def test_usage_of_every_request_is_the_same() -> None:
    seen = []
    for _ in range(2):
        _, records = recorded(SHAKY)
        commits = [event for event in records[LEADER] if event[0] == "applied"]
        seen.append(commits)
        replay_scenario(SHAKY, records)
    assert seen[0] == seen[1]


# ---- negative controls --------------------------------------------------------------------------------------------


def first(events: list[Event], kind: str, *, after: int = 20) -> int:
    return next(i for i, event in enumerate(events) if i >= after and event[0] == kind)


def without(kind: str) -> Callable[[list[Event]], list[Event]]:
    def change(events: list[Event]) -> list[Event]:
        proposals = [i for i, event in enumerate(events) if event[0] == "received" and event[3] and event[3][0] == kind]
        at = proposals[len(proposals) // 2]
        return events[:at] + events[at + 1 :]

    return change


def altered(kind: str, field: int, value: object) -> Callable[[list[Event]], list[Event]]:
    def change(events: list[Event]) -> list[Event]:
        at = first(events, kind)
        event = list(events[at])
        event[field] = value
        return [*events[:at], tuple(event), *events[at + 1 :]]

    return change


def late_proposal(events: list[Event]) -> list[Event]:
    """The proposal consumed last before some selection that used it is consumed after it."""
    for at, event in enumerate(events):
        if event[0] == "selected" and at > 20 and events[at - 1][0] == "received" and event[6][0][3]:
            return [*events[: at - 1], event, events[at - 1], *events[at + 1 :]]
    raise AssertionError("no such place")


CHANGES = {
    "a verdict": (LEADER, altered("applied", 3, [[[], [1]]])),
    "a budget": (LEADER, altered("selected", 3, 1)),
    "a price": (LEADER, altered("selected", 4, 123.0)),
    "a predicted duration": (LEADER, altered("selected", 5, 0.5)),
    "selected nodes": (LEADER, altered("selected", 6, [["r0", 0, 9, 99, 9]])),
    "leaves": ("drafter0", altered("drafted", 2, [["r0", 0, 99]])),
    "nodes drafted": ("drafter0", altered("expanded", 2, 1)),
    "a lost commit": ("drafter0", without("commit")),
    "a message nobody sent": (LEADER, altered("received", 3, ["propose", "r0", 0, 99999999, 8, 2])),
}


@cache
def unaltered() -> tuple[Scenario, dict[str, list[Event]]]:
    """A run that replays."""
    scenario = Scenario(num_tokens=80, record=True)
    _, records = recorded(scenario)
    replay_scenario(scenario, records)
    return scenario, records


@pytest.mark.parametrize("change", CHANGES)
def test_any_altered_event_is_noticed(change: str) -> None:
    scenario, records = unaltered()
    machine, alter = CHANGES[change]
    with pytest.raises(ReplayError, match=machine if change != "a lost commit" else "event"):
        replay_scenario(scenario, {**records, machine: alter(list(records[machine]))})


@pytest.mark.parametrize(
    ("machine", "begun", "done"), [("drafter0", "drafted", "expanded"), (LEADER, "selected", "applied")]
)
def test_a_step_that_never_began_is_noticed_where_it_ends(machine: str, begun: str, done: str) -> None:
    """Nothing of an older step is done again: the tree has moved on, and its nodes may mean others now."""
    scenario, records = unaltered()
    events = records[machine]
    for at in [i for i, event in enumerate(events) if event[0] == begun][5:60:9]:
        end = next(i for i in range(at, len(events)) if events[i][0] == done) - 1
        with pytest.raises(ReplayError, match=rf"{machine}, event {end} .*recorded \[\"{done}\".*replayed \[\]"):
            replay_scenario(scenario, {**records, machine: [*events[:at], *events[at + 1 :]]})


def test_the_order_of_inputs_is_what_matters() -> None:
    """A proposal consumed after a selection instead of before it gives another selection, somewhere."""
    scenario = Scenario(num_tokens=80, record=True, speculation=Speculation(num_leaves=1, num_children=1))
    _, records = recorded(scenario)
    with pytest.raises(ReplayError, match="leader, event"):
        replay_scenario(scenario, {**records, LEADER: late_proposal(records[LEADER])})


def test_another_drafter_is_noticed() -> None:
    _, records = recorded(SHAKY)
    with pytest.raises(ReplayError):
        replay_scenario(replace(SHAKY, seed=2), records)
    with pytest.raises(ReplayError):
        replay_scenario(replace(SHAKY, speculation=Speculation(num_leaves=3)), records)


def test_two_percent_of_draft_time_changes_the_counts_and_not_the_text() -> None:
    """Why the order must be recorded: a free run is no replay."""
    base = Scenario(num_tokens=100, record=True)
    slower = replace(base, times=DeviceTimes(draft_s=2.5e-3 * 1.02))
    one, other = recorded(base)[0], recorded(slower)[0]
    assert one.texts == other.texts
    assert one.counts != other.counts
    check(base)
    check(slower)


def test_a_missing_record_is_named() -> None:
    _, records = recorded(Scenario(num_tokens=40))
    with pytest.raises(ProtocolError, match="no record of its sender"):
        replay_scenario(Scenario(num_tokens=40), {LEADER: records[LEADER]})


# ---- records on disk, and runs that are not simulated -------------------------------------------------------------


def test_a_record_survives_the_disk(tmp_path: Path) -> None:
    result = simulate(SHAKY)
    loaded = {}
    for name, recorder in result.records.items():
        recorder.save(tmp_path / f"{name}.jsonl")
        machine, events = load_events(tmp_path / f"{name}.jsonl")
        loaded[machine] = events
    assert set(loaded) == set(result.records)
    assert replay_scenario(SHAKY, loaded).target.session.counts == result.counts


def test_a_record_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text('{"machine": "leader", "version": 1}\n')
    with pytest.raises(ProtocolError, match="version 1"):
        load_events(path)


def test_the_target_is_not_needed_to_replay() -> None:
    result, records = recorded(SHAKY)
    truths = truths_of(SHAKY)

    def target(transport, recorder):
        worker = build_target(SHAKY, {}, transport=transport, recorder=recorder)
        worker.backend = RecordedTarget(records[LEADER])
        return worker

    def drafter(transport, recorder):
        return build_draft(SHAKY, truths, machine="drafter0", transport=transport, recorder=recorder)

    again = replay(records, target=target, drafters={"drafter0": drafter})
    assert again.target.session.counts == result.counts


def test_a_run_over_a_real_transport_with_a_frontend_replays() -> None:
    """Workers on the in-process transport, uneven polling, a frontend that opens, aborts and sends garbage."""
    scenario, hub = Scenario(num_tokens=40, num_requests=2), InprocHub()
    truths = truths_of(scenario)
    recorders = {LEADER: Recorder(LEADER), "drafter0": Recorder("drafter0")}
    target = build_target(scenario, truths, transport=hub.leader(), recorder=recorders[LEADER])
    draft = build_draft(
        scenario, truths, machine="drafter0", transport=hub.connect("drafter0"), recorder=recorders["drafter0"]
    )
    frontend = hub.connect("f")
    frontend.send(LEADER, Hello(role="frontend", name="f"))
    for request, truth in truths.items():
        sampling = Sampling(max_tokens=40, ignore_eos=True, stop_token_ids=(3, 4), seed=9)
        message = Open(request=request[0], generation=0, prompt=np.array(truth[:8], np.int32), sampling=sampling)
        frontend.send(LEADER, message)
    draft.start(now=0.0)
    now, turn = 0.0, 0
    while turn < 5 or not target.session.idle:
        turn += 1
        now += 0.001 * (turn % 7)
        target.receive(clock=lambda: now)  # noqa: B023
        plan = target.begin(now=now)
        for _ in range(turn % 4):
            draft.receive(clock=lambda: now)  # noqa: B023
            batch = draft.begin(now=now)
            if batch is not None:
                draft.finish(batch, now=now + 0.0005)
        if turn % 5 == 0:
            hub.deliver("drafter0", [b"garbage"])
            draft.tick(now=now, busy_s=now / 2)
            target.tick(now=now)
        if plan is not None:
            target.finish(plan, now=now + 0.002)
    draft.leave(now=now)
    target.receive(clock=lambda: now)
    assert "drafter0" not in target.session.membership.members
    assert target.session.counts.accepted > 20
    assert target.session.counts.garbage > 0
    again = replay(
        {name: recorder.events for name, recorder in recorders.items()},
        target=lambda transport, recorder: build_target(scenario, truths, transport=transport, recorder=recorder),
        drafters={
            "drafter0": lambda transport, recorder: build_draft(
                scenario, truths, machine="drafter0", transport=transport, recorder=recorder
            )
        },
    )
    assert again.target.session.counts == target.session.counts
    assert again.drafters["drafter0"].session.num_drafted == draft.session.num_drafted


def test_a_failed_row_is_recorded_and_replayed() -> None:
    events: list[Event] = [("applied", 0.0, 1, ["NaN logits", None, [[0], [5, 6]]])]

    class AnyPlan:
        step = 1

    error, chunk, verdict = RecordedTarget(events).collect(AnyPlan())  # type: ignore[arg-type]
    assert isinstance(error, RequestError)
    assert chunk is None
    assert (verdict.path, verdict.token, verdict.tokens) == ((0,), 6, (5, 6))
    AnyPlan.step = 2
    with pytest.raises(ReplayError, match="step 2"):
        RecordedTarget(events).collect(AnyPlan())  # type: ignore[arg-type]


def test_messages_from_outside_are_rebuilt() -> None:
    sampling = Sampling(temperature=0.5, seed=2**63, max_tokens=7, stop=("x", "y"), stop_token_ids=(1,))
    tokens = np.array([1, 2], np.int32)
    opening = Open(request="r", generation=2, prompt=tokens, generated=tokens, generated_offset=4, sampling=sampling)
    again = rebuild(name_of(opening), describe(opening))
    assert isinstance(again, Open)
    assert describe(again) == describe(opening)
    assert again.sampling == sampling
    scores = np.array([-0.5, -1.0], np.float32)
    proposal = Propose(
        request="r", generation=0, base_length=3, base_digest=4, tokens=tokens, parents=tokens - 2, scores=scores
    )
    assert describe(rebuild(name_of(proposal), describe(proposal))) == describe(proposal)
    small: list[Message] = [Ping(progress=3, busy_s=0.5, num_drafters=1), Hello(role="frontend", name="f")]
    assert [rebuild(name_of(message)) for message in small] == small
    with pytest.raises(ProtocolError):
        rebuild(name_of(Commit(request="r", generation=0, base_length=1, base_digest=2, tokens=tokens)))
