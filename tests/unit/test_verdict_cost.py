"""The cost table of choosing tokens measures every case on rows that are all visited."""

from __future__ import annotations

import pytest

from dist_spec.bench.verdict_cost import CASES, measure


@pytest.mark.parametrize("with_margin", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_case_is_measured(name, with_margin):
    cost = measure(CASES[name], num_rows=3, vocab_size=600, rounds=2, with_margin=with_margin)
    assert cost.verdict_ms > 0.0
    assert (cost.noise_ms > 0.0) is (CASES[name].temperature > 0.0)
    assert 1 <= cost.support <= 600
    assert cost.support <= (CASES[name].top_k or 600)
