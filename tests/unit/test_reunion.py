"""A commit waits for its features, not for long, and for nobody else's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dist_spec.core.feature_inbox import features_of
from dist_spec.core.messages import Commit, Features, Message, Ping
from dist_spec.transports.base import LEADER
from dist_spec.transports.reunion import PATIENCE_S, Reunion


def commit(length: int, *, apart: bool = True) -> Commit:
    tokens = np.array([3, 4, 5], np.int32)
    return Commit(request="r", generation=1, base_length=length, base_digest=7, tokens=tokens, apart=apart)


def features(length: int, *, of_another_text: bool = False) -> Features:
    return replace(
        features_of(commit(length)),
        base_digest=features_of(commit(length)).base_digest + of_another_text,
        rows=np.zeros((2, 3), np.float16),
    )


def passed(reunion: Reunion, *messages: Message, now: float = 0.0, is_up: bool = True) -> list[Message]:
    return [message for _, message in reunion.passed([(LEADER, one) for one in messages], now=now, is_up=is_up)]


def test_features_first_and_then_their_commit() -> None:
    reunion = Reunion()
    first, second = features(10), commit(10)
    assert passed(reunion, first)[0] is first
    assert passed(reunion, second)[0] is second
    assert reunion.due_s == float("inf")


def test_a_commit_waits_and_others_pass_by() -> None:
    reunion = Reunion()
    early, late, bystander, whole = commit(10), features(10), Ping(), commit(50, apart=False)
    assert list(map(type, passed(reunion, early, bystander, whole))) == [Ping, Commit]
    assert reunion.due_s == pytest.approx(PATIENCE_S)
    assert len(passed(reunion, features(10, of_another_text=True))) == 1
    assert list(map(id, passed(reunion, late))) == [id(late), id(early)]


def test_it_does_not_wait_for_ever_nor_for_a_link_that_is_down() -> None:
    reunion = Reunion()
    assert passed(reunion, commit(10)) == []
    assert passed(reunion, now=PATIENCE_S / 2) == []
    assert len(passed(reunion, now=PATIENCE_S)) == 1
    assert passed(reunion, commit(20), now=1.0) == []
    assert len(passed(reunion, now=1.0, is_up=False)) == 1
    assert len(passed(reunion, commit(30), now=1.0, is_up=False)) == 1


def test_told_twice_the_first_is_let_go() -> None:
    reunion = Reunion()
    assert passed(reunion, commit(10)) == []
    assert len(passed(reunion, commit(10))) == 1
    assert len(passed(reunion, features(10))) == 2


def test_names_are_not_remembered_without_end() -> None:
    reunion = Reunion()
    for length in range(3000):
        passed(reunion, features(length))
    assert passed(reunion, commit(2999)) != []
    assert passed(reunion, commit(0)) == []
