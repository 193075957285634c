"""Law 3, content naming: loss, repetition, delay and reordering of drafter traffic cost speed, never output."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_spec.core.messages import Message
from dist_spec.core.settings import Speculation
from dist_spec.sim.faults import combinations, small_settings
from tests.unit.session_cases import PROMPT, DraftEnd, Leader, run_pair, text_of

TEXTS = {"r": text_of(21), "s": text_of(22)}
LENGTH = 30


class Wire:
    """One direction: each message may be lost, repeated, or held back for a few rounds."""

    def __init__(self, draw: random.Random, *, loss: float, repeat: float, delay: float) -> None:
        self._draw, self._loss, self._repeat, self._delay = draw, loss, repeat, delay
        self._held: list[tuple[int, Message]] = []
        self._round = 0

    def __call__(self, messages: list[Message]) -> list[Message]:
        self._round += 1
        for message in messages:
            for _ in range(2 if self._draw.random() < self._repeat else 1):
                if self._draw.random() >= self._loss:
                    later = self._draw.randint(1, 4) if self._draw.random() < self._delay else 0
                    self._held.append((self._round + later, message))
        due = [message for when, message in self._held if when <= self._round]
        self._held = [(when, message) for when, message in self._held if when > self._round]
        if self._delay:
            self._draw.shuffle(due)
        return due


def run(seed: int, settings_: Speculation, *, loss: float, repeat: float, delay: float) -> Leader:
    leader = Leader(TEXTS, settings_)
    for request in TEXTS:
        leader.open(request, max_tokens=LENGTH)
    draw = random.Random(seed)
    wires = [Wire(draw, loss=loss, repeat=repeat, delay=delay) for _ in range(2)]
    run_pair(leader, DraftEnd(TEXTS, settings_), to_drafter=wires[0], to_leader=wires[1])
    for request, text in TEXTS.items():
        assert leader.generated[request] == text[PROMPT : PROMPT + LENGTH]
    return leader


@pytest.mark.parametrize("examples", [60, pytest.param(1000, marks=pytest.mark.long)])
def test_any_disorder_gives_the_same_text(examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(
        st.integers(0, 2**32),
        st.sampled_from(combinations()),
        st.sampled_from([0.0, 0.2, 0.7]),
        st.sampled_from([0.0, 0.5]),
        st.sampled_from([0.0, 0.5]),
    )
    def check(seed: int, combination: tuple, loss: float, repeat: float, delay: float) -> None:
        run(seed, small_settings(*combination), loss=loss, repeat=repeat, delay=delay)

    check()


@pytest.mark.parametrize("combination", combinations(), ids="-".join)
def test_disorder_does_not_silence_a_drafter(combination: tuple) -> None:
    """A fault test that passes because nothing is ever drafted proves nothing."""
    settings_ = small_settings(*combination)
    undisturbed = run(5, settings_, loss=0.0, repeat=0.0, delay=0.0).session.counts
    repeated = run(5, settings_, loss=0.0, repeat=1.0, delay=0.0).session.counts
    assert undisturbed.accepted > 0.3 * undisturbed.committed
    assert (repeated.accepted, repeated.verified) == (undisturbed.accepted, undisturbed.verified)
    accepted = [run(seed, settings_, loss=0.2, repeat=0.3, delay=0.3).session.counts.accepted for seed in range(3)]
    assert min(accepted) > 0
