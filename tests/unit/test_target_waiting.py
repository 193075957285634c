"""Who is asked for guesses, and how long the leader waits for an answer."""

from __future__ import annotations

import pytest

from dist_spec.core.messages import Bye, Commit, Ping
from dist_spec.core.plan import Plan, Wait
from dist_spec.core.settings import Speculation
from tests.unit.leader_cases import PULL, TEXT, answer, attached, leader, length
from tests.unit.session_cases import kinds


def test_push_never_waits() -> None:
    made = attached()
    for _ in range(10):
        assert isinstance(made.step()[0], Plan)
    assert made.session.counts.waits == 0


def test_pull_waits_for_the_answer_and_counts_it_once() -> None:
    made = attached(PULL)
    _, out = made.step()
    assert kinds(out, Commit, "d")[0].ask
    for _ in range(3):
        wait, _ = made.begin()
        assert isinstance(wait, Wait)
        assert wait.until_s == pytest.approx(made.now + 0.5)
        assert wait.cause == "pull"
    at = length(made)
    answer(made, TEXT[at : at + 2])
    assert made.step()[0].num_nodes == 2
    assert made.session.counts.waits == 1


def test_pull_goes_on_after_the_deadline_and_does_not_wait_again_until_it_hears() -> None:
    made = attached(PULL)
    made.step()
    made.now += 0.6
    plan, _ = made.begin()
    assert isinstance(plan, Plan)
    out = made.finish(plan)
    # It is asked again, as its answer would end its lateness, but nobody waits for it.
    assert kinds(out, Commit, "d")[0].ask
    assert isinstance(made.begin()[0], Plan)
    made.send("d", Ping())
    _, out = made.step()
    assert kinds(out, Commit, "d")[0].ask
    assert isinstance(made.begin()[0], Wait)


def test_nobody_is_asked_where_only_the_targets_own_token_is_left() -> None:
    made = leader(PULL)
    made.hello("d")
    made.open(max_tokens=3)
    _, out = made.step()
    assert [commit.ask for commit in kinds(out, Commit, "d")] == [True]
    answer(made, [])
    _, out = made.step()
    assert [commit.ask for commit in kinds(out, Commit, "d")] == [False]
    made.step()
    assert made.closed["r"] == "length"


def test_a_drafter_that_goes_is_not_waited_for() -> None:
    for leave in (lambda made: made.send("d", Bye()), lambda made: made.session.lost("d")):
        made = attached(PULL)
        made.step()
        leave(made)
        assert isinstance(made.begin()[0], Plan)
    made = attached(PULL)
    made.step()
    made.session.membership.dead_after_s = 0.1
    made.now += 0.2
    made.session.tick(now=made.now)
    assert isinstance(made.begin()[0], Plan)


def test_a_wait_on_a_miss_ends_with_the_first_guess() -> None:
    made = leader(Speculation(on_miss="wait", max_wait_s=0.01))
    made.hello("d")
    made.open()
    _, out = made.step()
    assert kinds(out, Commit, "d")[0].ask
    wait, _ = made.begin()
    assert isinstance(wait, Wait)
    assert wait.cause == "miss"
    assert wait.until_s <= made.now + 0.01
    at = length(made)
    answer(made, TEXT[at : at + 2])
    _, out = made.step()
    assert made.session.counts.accepted == 2
    answer(made, TEXT[length(made) : length(made) + 12])
    _, out = made.step()
    assert not kinds(out, Commit, "d")[0].ask  # part of the guess survives: no miss


def test_no_budget_asks_nobody() -> None:
    made = leader(Speculation(delivery="pull", budget=0))
    made.hello("d")
    made.open(max_tokens=3)
    made.run()
    assert made.session.counts.waits == 0
    assert made.now < 0.1
