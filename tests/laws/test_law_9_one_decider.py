"""Law 9, one decider: what a step verifies is decided once, on the leader, and is whole in the plan; whoever executes it
decides nothing, and a replay needs nothing but the leader's inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dist_spec.core.control.costs import VerifyCost
from dist_spec.core.plan import Plan
from dist_spec.core.settings import Speculation
from dist_spec.sim.devices import ScriptedTarget
from tests.unit.session_cases import Leader, chain, text_of, tree_below

TEXT = text_of(1)
ADAPTIVE = Speculation(budget=16, adaptive=True)
STEEP = VerifyCost.of(lambda rows, nodes: 10e-3 + 4e-3 * nodes, max_rows=4, max_nodes=16)


def leader(settings: Speculation = ADAPTIVE, *, costs: VerifyCost | None = STEEP) -> Leader:
    made = Leader({"r": TEXT}, settings)
    if costs is not None:
        made.session.measured(costs)
    made.hello("d")
    made.open()
    made.step()
    return made


def proposed(made: Leader, probabilities: list[float]) -> Plan:
    """The next plan, with a chain of right guesses of these probabilities at hand."""
    base = len(made.session.live["r", 0].sequence.prefix)
    scores = np.log(np.array(probabilities, np.float32))
    made.send("d", replace(chain(TEXT, base, TEXT[base : base + len(scores)]), scores=scores))
    plan, _ = made.begin()
    assert isinstance(plan, Plan)
    return plan


def test_the_plan_says_how_much_is_verified_and_at_what_price() -> None:
    made = leader()
    plan = proposed(made, [0.95, 0.9, 0.9, 0.02, 0.9])
    assert plan.budget == plan.num_nodes == 3
    assert plan.predicted_s == pytest.approx(10e-3 + 3 * 4e-3, rel=0.2)
    made.finish(plan)
    assert made.session.price.tokens_per_s > 0
    assert proposed(made, [0.9]).price == made.session.price.tokens_per_s


def test_no_node_is_the_very_plan_of_a_leader_without_drafters() -> None:
    made, plain = leader(), Leader({"r": TEXT}, Speculation(budget=0))
    plain.open()
    plain.step()
    plan = proposed(made, [0.1, 0.1])
    alone, _ = plain.begin()
    assert isinstance(alone, Plan)
    assert (plan.budget, plan.num_nodes) == (0, 0)
    for row, other in zip(plan.rows, alone.rows, strict=True):
        assert row.forward.tokens.tolist() == other.forward.tokens.tolist()
        assert row.forward.parents.tolist() == other.forward.parents.tolist() == []
        assert (row.forward.num_logits, row.forward.cached, row.noise_index) == (
            1,
            other.forward.cached,
            other.noise_index,
        )


def test_executing_a_plan_twice_or_elsewhere_gives_the_same_and_changes_no_decision() -> None:
    """A rank has the plan and its own device: nothing of the session."""
    made = leader()
    plan = proposed(made, [0.9, 0.9, 0.5])
    outcomes = [ScriptedTarget(lambda key: TEXT).collect(plan) for _ in range(3)]
    assert outcomes[0] == outcomes[1] == outcomes[2]
    made.finish(plan)
    assert made.session.counts.verified == plan.num_nodes


def test_time_decides_nothing_while_a_step_is_chosen() -> None:
    """Equal inputs at other moments: the same plan (law 7 as well)."""
    early, late = leader(), leader()
    late.now = 1234.5
    plans = [proposed(made, [0.9, 0.7, 0.6]) for made in (early, late)]
    assert plans[0].budget == plans[1].budget
    assert plans[0].rows[0].forward.tokens.tolist() == plans[1].rows[0].forward.tokens.tolist()


def test_a_fixed_budget_is_not_second_guessed() -> None:
    made = leader(Speculation(budget=4))
    plan = proposed(made, [0.01] * 6)
    assert (plan.budget, plan.num_nodes) == (4, 4)
    wide = tree_below(TEXT, len(made.session.live["r", 0].sequence.prefix), [1, 2, 3, 4, 5, 6], [-1] * 6)
    made.send("d", wide)
    assert made.session.settings.budget == 4
