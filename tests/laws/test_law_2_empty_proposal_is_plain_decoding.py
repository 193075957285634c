"""Law 2, an empty proposal is plain decoding: no drafter, a dead, slow, late or wrong one are the same code path."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dist_spec.core.settings import Speculation
from dist_spec.drafters.scripted import RankLaw
from dist_spec.sim.cluster import simulate
from dist_spec.sim.devices import DeviceTimes
from dist_spec.sim.faults import combinations, small_settings
from dist_spec.sim.scenario import Fault, Scenario

BASE = Scenario(num_tokens=40, num_requests=2, limit_s=60.0)


def test_no_drafter_is_no_budget_step_by_step() -> None:
    alone = simulate(replace(BASE, num_drafters=0))
    no_budget = simulate(replace(BASE, speculation=Speculation(budget=0)))
    assert alone.correct
    assert alone.texts == no_budget.texts
    assert alone.seconds == no_budget.seconds
    assert alone.counts.steps == no_budget.counts.steps == BASE.num_tokens
    assert alone.counts.verified == no_budget.counts.verified == 0


@pytest.mark.parametrize("combination", combinations(), ids="-".join)
def test_a_dead_slow_or_wrong_drafter_changes_no_token(combination: tuple) -> None:
    base = replace(BASE, speculation=small_settings(*combination))
    right = simulate(base)
    assert right.correct
    assert right.counts.accepted > 0
    cases = {
        "dead": replace(base, faults=(Fault(at_s=0.0, kind="crash", drafter="drafter0"),)),
        "frozen": replace(base, faults=(Fault(at_s=0.2, kind="stop", drafter="drafter0"),)),
        "slow": replace(base, times=DeviceTimes(draft_s=0.4)),
        "wrong": replace(base, law=RankLaw(a=0.0, b=0.0)),
        "mad": replace(base, faults=tuple(Fault(at_s=0.05 * i, kind="garbage", drafter="drafter0") for i in range(20))),
    }
    for name, scenario in cases.items():
        result = simulate(scenario)
        assert result.finished, name
        assert result.texts == right.texts, name
        if name in ("dead", "wrong"):
            assert result.counts.accepted == 0
