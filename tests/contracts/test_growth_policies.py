"""One contract for every combination of growth, delivery, verify shape and what to do on a miss."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from dist_spec.core.settings import Speculation
from dist_spec.drafters.scripted import RankLaw
from dist_spec.errors import ConfigError
from dist_spec.sim.cluster import Cluster, simulate
from dist_spec.sim.faults import combinations, small_settings
from dist_spec.sim.network import Link
from dist_spec.sim.scenario import Result, Scenario

NUM_TOKENS = 40
ALL = pytest.mark.parametrize("combination", combinations(), ids="-".join)


def scenario(combination: tuple, **fields: object) -> Scenario:
    values = {"num_tokens": NUM_TOKENS, "num_requests": 2, "limit_s": 60.0, **fields}
    return Scenario(speculation=small_settings(*combination), **values)  # type: ignore[arg-type]


@cache
def undisturbed(combination: tuple) -> Result:
    return simulate(scenario(combination))


def test_which_combinations_there_are() -> None:
    found = combinations()
    assert len(found) == len(set(found)) == 32
    for growth in ("none", "fan_out"):
        assert {delivery for g, delivery, _, _ in found if g == growth} == {"pull"}
        with pytest.raises(ConfigError, match=growth):
            Speculation(growth=growth)
    with pytest.raises(ConfigError, match="draft"):
        Speculation(on_miss="draft")


@ALL
def test_it_gives_the_right_text_faster_than_plain_decoding(combination: tuple) -> None:
    result = undisturbed(combination)
    plain = simulate(scenario(combination, num_drafters=0))
    assert result.correct
    assert result.texts == plain.texts
    assert result.acceptance_length > 1.8
    assert result.tokens_per_s > 1.5 * plain.tokens_per_s


@ALL
def test_it_works_across_a_slow_link(combination: tuple) -> None:
    near, far = undisturbed(combination), simulate(scenario(combination, link=Link(latency_s=0.005)))
    assert far.correct
    assert far.counts.accepted > 0.5 * near.counts.accepted
    assert far.tokens_per_s < near.tokens_per_s


@ALL
def test_a_perfect_drafter_is_never_rejected(combination: tuple) -> None:
    """On a chain all that is verified is accepted; a tree's branches besides it are not."""
    result = simulate(scenario(combination, law=RankLaw(a=1.0, b=0.5)))
    assert result.correct
    assert result.acceptance_length > 2.5
    if combination[2] == "chain":
        assert result.counts.accepted == result.counts.verified


@ALL
def test_a_useless_drafter_costs_no_token(combination: tuple) -> None:
    result = simulate(scenario(combination, law=RankLaw(a=0.0, b=0.0)))
    assert result.correct
    assert result.counts.accepted == 0
    assert result.counts.steps == NUM_TOKENS


@ALL
def test_it_stops_drafting_when_there_is_nothing_left_to_do(combination: tuple) -> None:
    """Trees are capped, so a drafter whose target is slow comes to rest instead of growing for ever."""
    base = scenario(combination, num_requests=1, num_tokens=6)
    cluster = Cluster(replace(base, times=replace(base.times, verify_s=5.0), heartbeat_s=1.0, dead_after_s=20.0))
    drafter = cluster.drafters["drafter0"]
    resting: list[bool] = []
    for at_s in (4.9, 9.9):  # the first and the second verification are about to end
        cluster.clock.at(at_s, lambda: resting.append(drafter.worker.session.next_batch() is None))
    assert cluster.run().correct
    assert resting == [True, True]


@ALL
def test_what_waits_is_what_the_settings_say(combination: tuple) -> None:
    _, delivery, _, on_miss = combination
    result = undisturbed(combination)
    assert (result.counts.waits > 0) == (delivery == "pull" or on_miss == "wait")
    assert (result.wait_s > 0) == (result.counts.waits > 0)


@pytest.mark.parametrize("growth", ["optimistic", "best_first"])
def test_push_does_not_lose_to_pull_across_a_link(growth: str) -> None:
    """The round trip is what streaming saves."""
    link = Link(latency_s=0.005)
    push = simulate(scenario((growth, "push", "tree", "plain"), link=link, num_tokens=200))
    pull = simulate(scenario((growth, "pull", "tree", "plain"), link=link, num_tokens=200))
    assert push.tokens_per_s > 1.1 * pull.tokens_per_s
