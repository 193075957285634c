"""The rejection rule through the whole system with the real noise: sessions, messages, backend, the model drafter's own
drawing. A G-test against the target's law, and controls that must be found guilty by the same test."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dist_spec.core.law import DraftLaw
from dist_spec.core.noise import request_key, uniform
from dist_spec.core.types import Expansion
from dist_spec.core.verification import weigh
from dist_spec.core.verification.build import build_rule
from dist_spec.drafters import chooser
from dist_spec.drafters.draw import LawSettings, drawn
from dist_spec.workers.model_backend import ModelBackend
from tests.laws.enumeration import Table, texts
from tests.laws.session_chains import (
    BLIND,
    PROMPT,
    NoisyDrafter,
    Pair,
    Schedule,
    backend_options,
    sampling,
    target_session,
)

BATCH = 16
ALPHA = 1e-9
TABLES = (16, 116)
"""Seeds of a pair on which every wrong rule below gives itself away: p below 1e-18 with 1,000 texts."""


def sample(target: Table, drafts: Table, length: int, *, count: int, laws: LawSettings, first_seed: int) -> Counter:
    """Texts of `count` requests with seeds of their own, a batch at a time; says how much was accepted as text ()."""
    found: Counter[tuple[int, ...]] = Counter()
    settings = replace(BLIND, budget=3 * BATCH)
    schedules = [Schedule(draft_steps=(2,)), Schedule(draft_steps=(1, 0, 2)), Schedule(draft_steps=(2, 1), late=1)]
    for number in range(0, count, BATCH):
        pair = Pair(
            target_session(settings, vocab_size=target.vocab_size),
            ModelBackend(**backend_options(target)),
            NoisyDrafter(drafts, laws=laws),
            schedules[number // BATCH % len(schedules)],
            settings,
        )
        requests = {f"r{i}": sampling(length, seed=first_seed + number + i) for i in range(BATCH)}
        found.update(pair.run(requests).values())
        found[()] += pair.accepted
    return found


def p_value(counts: Counter, true: dict[tuple[int, ...], float]) -> float:
    """G-test; cells that are expected fewer than 5 times are pooled. 0 when something impossible came."""
    total = sum(counts.values())
    if any(text not in true for text in counts):
        return 0.0
    cells = [(counts[text], weight * total) for text, weight in true.items() if weight * total >= 5]
    rest = (total - sum(seen for seen, _ in cells), total - sum(expected for _, expected in cells))
    if rest[1] >= 5:
        cells.append(rest)
    seen, expected = (np.array(column, dtype=float) for column in zip(*cells, strict=True))
    return float(stats.power_divergence(seen, expected * seen.sum() / expected.sum(), lambda_="log-likelihood").pvalue)


def judge(count: int, *, vocab_size: int, length: int, laws: LawSettings) -> tuple[float, int]:
    """(p-value, accepted tokens); the seeds are drawn anew each time and printed."""
    first_seed = random.SystemRandom().randrange(2**48)
    print(f"first seed {first_seed}")
    target, drafts = Table(vocab_size, seed=TABLES[0], zeros=0.1), Table(vocab_size, seed=TABLES[1])
    counts = sample(target, drafts, length, count=count, laws=laws, first_seed=first_seed)
    accepted = counts.pop(())
    return p_value(counts, texts(target, length, PROMPT)), accepted


LAWS = {"sparse": LawSettings(size=2), "dense": LawSettings(dense=True)}


@pytest.mark.parametrize("laws", LAWS)
@pytest.mark.parametrize(
    ("count", "length"),
    [
        (1_000, 3),
        pytest.param(4_800, 3, marks=pytest.mark.slow),
        pytest.param(48_000, 3, marks=[pytest.mark.long, pytest.mark.timeout(900)]),
    ],
)
def test_the_whole_system_emits_the_targets_law(count, length, laws):
    p, accepted = judge(count, vocab_size=3, length=length, laws=LAWS[laws])
    assert p > ALPHA
    assert accepted > count / 4


def no_residual(row, token, law, *, v):
    return weigh.pick(row, v), False


def by_the_target_alone(row, token, law, *, u):
    return u < row[token]


def drawn_from_another_law(law: DraftLaw, word: int) -> Expansion:
    """The likeliest token, told as if it had been drawn."""
    return replace(drawn(law, word), tokens=np.array([law.weights.argmax()], np.int32))


@pytest.mark.parametrize(
    ("module", "name", "wrong"),
    [
        (weigh, "recover", no_residual),
        (weigh, "accepts", by_the_target_alone),
        (chooser, "drawn", drawn_from_another_law),
    ],
)
def test_the_same_test_finds_wrong_rules_guilty(module, name: str, wrong: Callable, monkeypatch):
    monkeypatch.setattr(module, name, wrong)
    p, _ = judge(1_000, vocab_size=3, length=3, laws=LAWS["dense"])
    assert p < ALPHA


def test_with_drafting_off_the_text_is_that_of_the_coupled_rule():
    table = Table(5, seed=3)
    settings = replace(BLIND, budget=0)
    told = {
        rule: Pair(
            target_session(settings, vocab_size=5),
            ModelBackend(**{**backend_options(table), "rule": rule}),
            NoisyDrafter(table, laws=LAWS["dense"]),
            Schedule(),
            settings,
        ).run({f"r{seed}": sampling(6, seed=seed) for seed in range(8)})
        for rule in ("rejection", "coupled")
    }
    assert told["rejection"] == told["coupled"]
    assert build_rule("rejection", temperature=1.0).lossless


def test_uniforms_of_different_uses_and_attempts_differ():
    key = request_key(1, 0)
    numbers = {
        uniform(key, domain=domain, index=index, epoch=epoch)
        for domain in (1, 2, 3)
        for index in range(3)
        for epoch in (0, 1, 2**64 - 1)
    }
    assert len(numbers) == 27
    assert all(0.0 <= number < 1.0 for number in numbers)
