"""The account of a process's time: every moment is in one phase, and steps are sampled by groups of phases."""

from __future__ import annotations

import pytest

from dist_spec.models.invariance import Probe
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.ledger import Ledger
from dist_spec.workers.report import run_stats
from tests.unit.session_cases import target_session


class Clock:
    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def test_phases_add_up_to_the_time_since_it_began() -> None:
    clock = Clock()
    timeline = Timeline(clock)
    for phase, spent in (("receive", 1.0), ("forward", 0.25), ("idle", 2.0), ("forward", 0.5)):
        clock.now += spent
        timeline.enter(phase)
    assert timeline.totals == {"idle": 1.0, "receive": 0.25, "forward": 2.0} | {"idle": 1.5}
    assert timeline.wall_s == clock.now - timeline.born_s


def test_medians_by_group_of_phases() -> None:
    clock = Clock()
    timeline = Timeline(clock, per_step={"all": ("verdict", "commit"), "handling": ("commit",)})
    for step, (verdict, commit) in enumerate([(9.0, 9.0), (3.0, 1.0), (1.0, 0.5), (2.0, 4.0)]):
        timeline.enter("verdict")
        clock.now += verdict
        timeline.enter("commit")
        clock.now += commit
        timeline.enter("forward")
        clock.now += 100.0
        timeline.step(count=step > 0)  # the first is not to count
    assert timeline.median_step_s("all") == pytest.approx(4.0)
    assert timeline.median_step_s("handling") == pytest.approx(1.0)
    assert timeline.median_step_s("unknown") == 0.0
    timeline.reset()
    assert (timeline.median_step_s("all"), timeline.totals, timeline.born_s) == (0.0, {}, clock.now)
    clock.now += 3.0  # what follows a warm-up is no part of the phase that it ended in
    timeline.enter("receive")
    assert timeline.totals == {"idle": 3.0}


def test_what_follows_the_last_request_is_idle_time() -> None:
    """The end of the last request is told in the middle of a commit; the rest of that commit belongs to no run."""
    clock, session = Clock(), target_session()
    timeline = Timeline(clock)
    timeline.enter("commit")
    clock.now += 1.0
    stats = run_stats(
        session, timeline, Ledger(), Probe(bit_equal=True, max_logit_difference=0.0, checked_rows=1), strict=True
    )
    clock.now += 0.5
    timeline.enter("receive")
    assert (stats["time_commit_s"], stats["clock_s"] - stats["born_s"]) == (1.0, 1.0)
    assert timeline.totals == {"idle": 0.5, "commit": 1.0}
