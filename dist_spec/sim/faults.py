"""Random fault schedules: every scenario a function of one seed. It only writes scenarios down; the cluster runs them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import TypeAlias, get_args

from dist_spec.core.settings import Delivery, Growth, OnMiss, Speculation, VerifyShape
from dist_spec.drafters.scripted import RankLaw
from dist_spec.errors import ConfigError
from dist_spec.sim.network import Link
from dist_spec.sim.scenario import Fault, FaultKind, Scenario

_PAIRS: tuple[tuple[FaultKind, FaultKind], ...] = (("crash", "restart"), ("stop", "resume"), ("cut", "heal"))


Combination: TypeAlias = tuple[Growth, Delivery, VerifyShape, OnMiss]


def combinations() -> list[Combination]:
    """Every combination of the four switches that the settings allow."""
    switches = product(*map(get_args, (Growth, Delivery, VerifyShape, OnMiss)))
    return [combination for combination in switches if _allowed(*combination)]


def _allowed(growth: Growth, delivery: Delivery, shape: VerifyShape, on_miss: OnMiss) -> bool:
    try:
        Speculation(growth=growth, delivery=delivery, verify_shape=shape, on_miss=on_miss)
    except ConfigError:
        return False
    return True


def small_settings(growth: Growth, delivery: Delivery, shape: VerifyShape, on_miss: OnMiss) -> Speculation:
    """Settings of one combination at a size that simulates quickly; a pull is given up after three verifications."""
    return Speculation(
        growth=growth,
        delivery=delivery,
        verify_shape=shape,
        on_miss=on_miss,
        budget=16,
        num_draft_tokens=16 if growth in ("best_first", "optimistic") and on_miss != "draft" else 4,
        num_leaves=15 if growth == "fan_out" else 6,
        num_children=3,
        max_nodes=1024,
        pull_timeout_s=0.06,
    )


def random_schedule(
    seed: int, *, num_tokens: int = 60, gentle: bool = False, max_drafters: int = 2, max_requests: int = 4
) -> Scenario:
    """One scenario with faults.

    Args:
        gentle: only what leaves every drafter alive and loses nothing: latency, jitter, duplication, reordering and
            garbage; no crash, stop, cut or loss.
    """
    draw = random.Random(seed)
    combination = draw.choice(combinations())
    latency_s = draw.choice((0.0, 0.0005, 0.003))
    link = Link(
        latency_s=latency_s,
        jitter_s=draw.choice((0.0, 0.002)),
        loss=0.0 if gentle else draw.choice((0.0, 0.0, 0.02, 0.1)),
        duplicate=draw.choice((0.0, 0.1)),
        reorder=draw.choice((0.0, 0.05)),
        reorder_s=draw.choice((0.002, 0.01)),
    )
    num_drafters = draw.randint(1, max_drafters)
    scenario = Scenario(
        speculation=small_settings(*combination),
        law=RankLaw(a=draw.choice((0.7, 0.85)), b=draw.choice((0.45, 0.6))),
        link=link,
        num_drafters=num_drafters,
        num_requests=draw.randint(1, max_requests),
        num_tokens=num_tokens,
        seed=seed,
        network_seed=seed,
        limit_s=120.0,
    )
    span_s = num_tokens * scenario.times.verify_s / 2
    return replace(scenario, faults=_faults(draw, num_drafters, span_s, gentle=gentle))


def fault_free(scenario: Scenario) -> Scenario:
    """The same scenario over a perfect link of the same latency."""
    link = Link(latency_s=scenario.link.latency_s + scenario.link.jitter_s / 2)
    return replace(scenario, link=link, faults=())


def spares_a_drafter(scenario: Scenario) -> bool:
    """Whether at least one drafter is never crashed, stopped or cut off (the link may still lose, delay or reorder)."""
    hurt = {fault.drafter for fault in scenario.faults if fault.kind != "garbage"}
    return len(hurt) < scenario.num_drafters


def _faults(draw: random.Random, num_drafters: int, span_s: float, *, gentle: bool) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    for number in range(num_drafters):
        drafter = f"drafter{number}"
        faults += [
            Fault(at_s=draw.uniform(0, span_s), kind="garbage", drafter=drafter) for _ in range(draw.randint(0, 3))
        ]
        if gentle:
            continue
        for begin, end in draw.sample(_PAIRS, draw.randint(0, 2)):
            at_s = draw.uniform(0, span_s)
            faults.append(Fault(at_s=at_s, kind=begin, drafter=drafter))
            if draw.random() < 0.7:
                faults.append(Fault(at_s=at_s + draw.uniform(0.01, span_s), kind=end, drafter=drafter))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))
