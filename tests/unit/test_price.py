"""The price of the target's time, and what a wait on a miss is worth against it."""

from __future__ import annotations

import pytest

from dist_spec.core.control.price import MissWait, Price


def test_the_price_is_tokens_per_second() -> None:
    price = Price()
    assert price.tokens_per_s == 0.0
    price.earned(3, 0.02)
    assert price.tokens_per_s == pytest.approx(150.0)  # the first step counts in full
    for _ in range(200):
        price.earned(1, 0.02)
    assert price.tokens_per_s == pytest.approx(50.0, rel=0.01)


def test_an_unknown_price_buys_the_longest_wait() -> None:
    assert MissWait(max_wait_s=0.005).bound_s(0.0) == 0.005


def test_a_wait_lasts_as_long_as_its_gain_is_worth() -> None:
    wait = MissWait(max_wait_s=1.0, probe_every=1000)
    for _ in range(200):
        wait.answered(0.002)
        wait.brought(2)
    assert wait.bound_s(100.0) == pytest.approx(0.02, rel=0.01)  # 2 tokens at 100 tokens/s
    assert wait.bound_s(1e-9) == 1.0


def test_a_wait_that_costs_more_than_it_brings_is_not_begun() -> None:
    wait = MissWait(max_wait_s=1.0, probe_every=1000)
    for _ in range(200):
        wait.answered(0.05)
        wait.brought(1)
    assert wait.bound_s(100.0) == 0.0  # an answer takes 50 ms, a token is worth 10


def test_a_drafter_that_became_fast_is_noticed() -> None:
    wait = MissWait(max_wait_s=1.0, probe_every=8)
    for _ in range(200):
        wait.answered(0.5)
        wait.brought(0)
    bounds = [wait.bound_s(100.0) for _ in range(32)]
    assert bounds.count(1.0) == 4
    assert bounds.count(0.0) == 28
    for _ in range(100):
        wait.answered(0.001)
        wait.brought(3)
    assert wait.bound_s(100.0) > 0.02
