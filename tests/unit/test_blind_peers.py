"""Drafters that a rule which weighs drafts with their laws cannot take: a second one, and one set up for another rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dist_spec.core.law import DraftLaw
from dist_spec.core.messages import Bye, Hello, Open, Ping, Propose
from dist_spec.core.target_session import TargetSession
from tests.laws.session_chains import BLIND, sampling, target_session


def greet(session: TargetSession, name: str, *, kind: str = "model", role: str = "drafter") -> object:
    return session.receive(name, Hello(role=role, name=name, kind=kind), now=0.0)[0][1]


@pytest.mark.parametrize(
    ("settings", "is_refused"), [(BLIND, True), (replace(BLIND, blind=False), False), (replace(BLIND, budget=0), False)]
)
def test_a_second_drafter_is_refused_where_drafts_are_weighed(settings, is_refused):
    session = target_session(settings, vocab_size=8)
    assert isinstance(greet(session, "one"), Ping)
    answer = greet(session, "two")
    assert isinstance(answer, Bye) is is_refused
    assert not is_refused or (answer.fatal and "one is attached" in answer.reason)
    assert isinstance(greet(session, "one"), Ping)  # the first may greet again
    assert isinstance(greet(session, "user", role="frontend"), Ping)


def test_another_drafter_takes_over_from_one_that_left_or_fell_silent():
    session = target_session(BLIND, vocab_size=8)
    greet(session, "one")
    session.lost("one")
    assert isinstance(greet(session, "two"), Ping)
    session.membership.members["two"].silent = True
    assert isinstance(greet(session, "three"), Ping)


@pytest.mark.parametrize(
    ("settings", "kind", "temperature", "law", "is_refused"),
    [
        (BLIND, "model", 1.0, None, True),
        (BLIND, "model", 1.0, DraftLaw.sparse([3, 4], [0.5, 0.5]), False),
        (BLIND, "model", 0.0, None, False),  # a guess that is no draw
        (BLIND, "ngram", 1.0, None, False),
        (replace(BLIND, blind=False), "model", 1.0, None, False),
    ],
)
def test_draws_without_their_laws_are_refused_with_their_drafter(settings, kind, temperature, law, is_refused):
    session = target_session(settings, vocab_size=8)
    greet(session, "one", kind=kind)
    asked = replace(sampling(5), temperature=temperature)
    session.open(Open(request="r", generation=0, prompt=np.array([1], np.int32), sampling=asked), now=0.0)
    session.admit(now=0.0)
    live = session.live["r", 0]
    proposal = Propose(
        request="r",
        generation=0,
        base_length=1,
        base_digest=live.sequence.prefix.digest,
        tokens=np.array([3], np.int32),
        parents=np.array([-1], np.int32),
        scores=np.zeros(1, np.float32),
        laws=() if law is None else (law,),
    )
    answers = [message for _, message in session.receive("one", proposal, now=0.0)]
    assert [isinstance(one, Bye) and one.fatal for one in answers] == ([True] if is_refused else [])
    assert live.tree.is_empty() is is_refused
    assert ("one" in session.membership.members) is not is_refused
