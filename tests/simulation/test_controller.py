"""The budget by price against fixed budgets, over acceptance laws and cost curves; and what the floor may not cost."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest

from dist_spec.core.settings import Speculation
from dist_spec.drafters.rank_law import RankLaw
from dist_spec.sim.cluster import Cluster, simulate
from dist_spec.sim.devices import DeviceTimes
from dist_spec.sim.scenario import Result, Scenario

LAWS = {
    "good": RankLaw(a=0.87, b=0.5, concentration=4.0),
    "middling": RankLaw(a=0.6, b=0.45, concentration=3.0),
    "bad": RankLaw(a=0.3, b=0.3, concentration=3.0),
}
COSTS = {
    "flat": DeviceTimes(),
    "a core": DeviceTimes(verify_s=14.8e-3, verify_flat=1, verify_per_token_s=1e-3),
    "steep": DeviceTimes(verify_s=14.8e-3, verify_flat=1, verify_per_token_s=4e-3),
}
FIXED = (0, 2, 4, 8, 16)
BASE = Scenario(num_tokens=300, heartbeat_s=1.0, dead_after_s=5.0)
QUICK, THOROUGH = (300, 1), (600, 4)
SLACK = {QUICK: 0.95, THOROUGH: 0.97}
"""By (tokens, seeds): the best of five noisy figures is above its mean, by more the shorter the texts."""
ONE_OF_EACH = {("good", "flat"), ("middling", "a core"), ("bad", "steep")}


def pairs() -> list:
    """Of the laws and costs a few quickly, all of them slowly, and all over more and longer texts when there is time."""
    every = [(law, costs) for law in LAWS for costs in COSTS]
    return [
        *(pytest.param(*pair, QUICK, marks=[] if pair in ONE_OF_EACH else [pytest.mark.slow]) for pair in every),
        *(pytest.param(*pair, THOROUGH, marks=pytest.mark.long) for pair in every),
    ]


def speed(law: str, costs: str, budget: int | None, effort: tuple[int, int]) -> float:
    """Tokens per second over all seeds."""
    tokens, seeds = effort
    seconds = sum(run(law, costs, budget, tokens=tokens, seed=seed).seconds for seed in range(seeds))
    return tokens * seeds / seconds


@cache
def run(law: str, costs: str, budget: int | None, *, tokens: int, seed: int = 0) -> Result:
    """`budget` None: by price."""
    speculation = Speculation(budget=16 if budget is None else budget, adaptive=budget is None, num_draft_tokens=64)
    result = simulate(
        replace(
            BASE,
            speculation=speculation,
            law=LAWS[law],
            times=COSTS[costs],
            num_tokens=tokens,
            num_drafters=0 if budget == 0 else 1,
            seed=seed,
        )
    )
    assert result.correct
    return result


@pytest.mark.parametrize(("law", "costs", "effort"), pairs())
def test_by_price_is_as_good_as_the_best_fixed_budget(law: str, costs: str, effort: tuple[int, int]) -> None:
    best = max(speed(law, costs, budget, effort) for budget in FIXED)
    assert speed(law, costs, None, effort) > SLACK[effort] * best


@pytest.mark.slow
@pytest.mark.parametrize("effort", [QUICK, pytest.param(THOROUGH, marks=pytest.mark.long)])
def test_by_price_is_better_than_any_one_budget_overall(effort: tuple[int, int]) -> None:
    def overall(budget: int | None) -> float:
        speeds = [math.log(speed(law, costs, budget, effort)) for law in LAWS for costs in COSTS]
        return math.exp(sum(speeds) / len(speeds))

    assert overall(None) > 1.02 * max(map(overall, FIXED))


@pytest.mark.parametrize(
    "costs", ["steep", *(pytest.param(costs, marks=pytest.mark.slow) for costs in ("flat", "a core"))]
)
def test_a_hopeless_drafter_with_confident_scores_is_never_below_plain(costs: str) -> None:
    """Calibration and price find it out; a fixed budget does not."""
    hopeless, claims = RankLaw(a=0.02, b=0.02), RankLaw(a=0.95, b=0.5)
    scenario = replace(BASE, law=hopeless, claims=claims, times=COSTS[costs], num_requests=2)
    plain = simulate(replace(scenario, num_drafters=0))
    settings = Speculation(budget=16, adaptive=True, num_draft_tokens=64)
    by_price = simulate(replace(scenario, speculation=settings))
    assert by_price.texts == plain.texts
    assert by_price.tokens_per_s > 0.97 * plain.tokens_per_s
    if costs == "steep":
        fixed = simulate(replace(scenario, speculation=replace(settings, adaptive=False)))
        assert fixed.tokens_per_s < 0.95 * plain.tokens_per_s


def test_a_drafter_that_turns_good_is_used_again() -> None:
    """Scores are calibrated by what was drafted, verified or not: no probe is needed to notice."""

    class Turning(RankLaw):
        def draw(self, seed: int, position: int, *, stream: int = 0) -> tuple[float, int, int]:
            _, rank, word = super().draw(seed, position, stream=stream)
            return self.a, rank if position > 400 else 0, word

    settings = Speculation(budget=16, adaptive=True, num_draft_tokens=64)
    scenario = replace(BASE, law=Turning(a=0.8, b=0.5), times=COSTS["steep"], speculation=settings, num_tokens=800)
    cluster = Cluster(scenario)
    result = cluster.run()
    assert result.correct
    assert result.counts.accepted > 150
    late = replace(scenario, law=RankLaw(a=0.8, b=0.5), num_tokens=400)
    plain_s = 400 / simulate(replace(late, num_drafters=0)).tokens_per_s
    assert result.seconds < 1.05 * plain_s + 1.15 * simulate(late).seconds


@pytest.mark.parametrize("law", ["good", *(pytest.param(law, marks=pytest.mark.slow) for law in ("middling", "bad"))])
def test_what_the_floor_keeps_back_is_not_missed(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same speed with fewer nodes sent; an absolute cut of path scores is another thing."""
    with_floor = run(law, "steep", None, tokens=300)
    monkeypatch.setattr("dist_spec.core.control.budget._FLOOR_SHARE", 0.0)
    without = run.__wrapped__(law, "steep", None, tokens=300)
    assert with_floor.tokens_per_s > 0.985 * without.tokens_per_s
    assert with_floor.counts.drafted < without.counts.drafted


def test_two_drafters_beat_one_where_leaves_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both grow the best chain, and each its own half of the branches."""
    settings = Speculation(budget=32, num_leaves=4, num_children=4, num_draft_tokens=64)
    scenario = replace(BASE, speculation=settings, law=RankLaw(a=0.8, b=0.5), heartbeat_s=0.05, num_tokens=700)
    one, two = (simulate(replace(scenario, num_drafters=n)) for n in (1, 2))
    assert two.texts == one.texts
    assert two.tokens_per_s > 1.03 * one.tokens_per_s
    monkeypatch.setattr("dist_spec.core.assignment.Assignment.share", lambda assignment, peer: (0, 1))
    without_shares = simulate(replace(scenario, num_drafters=2))
    assert two.tokens_per_s > 1.01 * without_shares.tokens_per_s
