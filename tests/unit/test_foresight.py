"""What a drafter foresees, against counting from first principles on a tiny vocabulary; and the rounded copy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dist_spec.bench.foresight import NEXT, coupled, rejection
from dist_spec.bench.rounded import _rounded
from dist_spec.drafters.draw import sparse_law

TEMPERATURE = 0.8


def pair(seed: int, vocab_size: int = 7) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    target = random.normal(0, 2, vocab_size)
    return target, target + random.normal(0, 1, vocab_size)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores / TEMPERATURE)
    return weights / weights.sum()


@pytest.mark.parametrize("law_size", [None, 4])
def test_rejection_is_what_drawing_and_replacing_gives(law_size):
    for seed in range(5):
        target, draft = pair(seed)
        p, q = softmax(target), softmax(draft)
        if law_size is not None:
            law = sparse_law(np.arange(7), np.log(q), size=law_size, log_mass=0.0)
            q = np.zeros(7)
            q[law.ids] = law.weights / law.total
        rest = np.maximum(p - q, 0) / np.maximum(p - q, 0).sum()
        missed, hits = 0.0, [0.0] * NEXT
        for token in range(7):
            lost = max(q[token] - p[token], 0.0)
            missed += lost
            ranked = [one for one in np.argsort(-draft) if one != token]
            for number in range(NEXT):
                hits[number] += lost * rest[ranked[: number + 1]].sum()
        found = rejection([(target, draft)], temperature=TEMPERATURE, law_size=law_size)
        assert found.first == pytest.approx(1 - missed)
        assert found.after_a_miss == pytest.approx([one / missed for one in hits])
        assert found.ids_per_law == (7 if law_size is None else 4)


def test_coupled_agrees_with_its_closed_form():
    """Pr(match) = sum over x of 1 / sum over y of max(p_y / p_x, q_y / q_x)."""
    target, draft = pair(3)
    p, q = softmax(target), softmax(draft)
    match = sum(1 / np.maximum(p / p[x], q / q[x]).sum() for x in range(7))
    found = coupled([(target, draft)], temperature=TEMPERATURE, draws=4000)
    assert found.first == pytest.approx(match, abs=0.03)
    assert all(np.diff([0.0, *found.after_a_miss]) >= 0)


def test_rounding_keeps_the_largest_of_a_group_and_few_levels():
    weight = torch.randn(3, 70, generator=torch.Generator().manual_seed(0))
    rounded = _rounded(weight, bits=4, group=32)
    assert rounded.shape == weight.shape
    group = rounded[0, :32]
    assert len(group.unique()) <= 15
    assert torch.allclose(group.abs().max(), weight[0, :32].abs().max())
    assert (rounded - weight).abs().max() <= weight.abs().max() / 14 + 1e-6
    assert torch.equal(_rounded(torch.zeros(2, 8), bits=4, group=32), torch.zeros(2, 8))
