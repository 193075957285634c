"""The rejection rule at its edges: rows that are no distribution, nothing left over, what it refuses, what it reports."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dist_spec.core.law import DraftLaw
from dist_spec.core.noise import ACCEPT
from dist_spec.core.sampling.history import History
from dist_spec.core.sampling.pipeline import Pipeline
from dist_spec.core.types import Sampling
from dist_spec.core.verification import weigh
from dist_spec.core.verification.build import build_rule
from dist_spec.core.verification.rejection import RejectionRule, Rejections
from dist_spec.core.verification.weigh import Draws, pick
from dist_spec.errors import ModelError, ProtocolError, RequestError

NO_IDS = np.empty(0, np.int32)


def dense(probs) -> DraftLaw:
    return DraftLaw(ids=NO_IDS, weights=np.array(probs, dtype=np.float64), total=1.0)


def test_a_forbidden_token_is_never_accepted_even_by_zero():
    row = np.array([0.0, 1.0])
    assert not weigh.accepts(row, 0, dense([0.5, 0.5]), u=0.0)
    assert not weigh.accepts(row, 0, None, u=0.0)
    assert weigh.accepts(row, 1, dense([0.5, 0.5]), u=1.0 - 2.0**-53)
    assert not weigh.accepts(row, -1, None, u=0.0)


def test_nothing_left_over_falls_back_to_what_the_target_allows_and_is_counted():
    """Rounding can reject although no token has more mass under the target than under the draft."""
    row = np.array([0.0, 0.75, 0.25 - 2.0**-54])
    law = dense([0.0, 0.75, 0.25])
    counts = Rejections()
    rule = RejectionRule(temperature=1.0, counts=counts)
    rule._probs = lambda *_: row
    verdict = rule.verify(
        tokens=np.array([2], np.int32),
        parents=np.array([-1], np.int32),
        logits=torch.zeros(2, 3),
        noise_row=lambda depth: np.zeros(3),
        draws=Draws(laws=[law], uniforms=lambda domain, depth: 1.0 - 2.0**-53 if domain == ACCEPT else 0.0),
    )
    assert verdict.tokens == (1,)  # neither id 0, which an argmax of zeros gives, nor anything the target forbids
    assert (counts.num_rejected, counts.num_fallbacks) == (1, 1)


def test_the_end_of_the_cumulative_row_is_a_possible_token():
    row = np.array([0.5, 0.5 - 2.0**-53, 0.0])
    assert pick(row, 1.0 - 2.0**-53) == 1
    assert pick(np.zeros(3), 0.5) == -1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_no_distribution_ends_the_request_alone(bad):
    logits = torch.zeros(2, 3)
    logits[0, 1] = bad
    with pytest.raises(RequestError, match="best score"):
        _verify(logits, [2])


def _verify(logits: torch.Tensor, tokens: list[int], *, laws=(), parents=None, pipeline=None, u: float = 0.0):
    return RejectionRule(temperature=1.0).verify(
        tokens=np.array(tokens, np.int32),
        parents=np.arange(-1, len(tokens) - 1, dtype=np.int32) if parents is None else np.array(parents, np.int32),
        logits=logits,
        noise_row=lambda depth: np.zeros(logits.shape[1]),
        pipeline=pipeline,
        draws=Draws(laws=laws, uniforms=lambda domain, depth: u),
    )


def test_trees_missing_noise_and_missing_laws_are_refused():
    with pytest.raises(ProtocolError, match="chains"):
        _verify(torch.zeros(3, 4), [1, 2], parents=[-1, -1])
    with pytest.raises(ProtocolError, match="laws"):
        _verify(torch.zeros(3, 4), [1, 2], laws=(None,))
    with pytest.raises(ModelError, match="rows"):
        _verify(torch.zeros(2, 4), [1, 2])
    with pytest.raises(ModelError, match="laws"):
        RejectionRule(temperature=1.0).verify(
            tokens=np.array([1], np.int32),
            parents=np.array([-1], np.int32),
            logits=torch.zeros(2, 4),
            noise_row=lambda depth: np.zeros(4),
        )


def test_temperature_zero_is_greedy():
    rule = build_rule("rejection", temperature=0.0)
    assert rule.name == "greedy"
    assert not rule.needs_draws


def test_reported_log_probabilities_are_the_targets_for_accepted_recovered_and_bonus_tokens():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]]))
    sampling = Sampling(temperature=1.0, logprobs=1)
    pipeline = Pipeline(sampling, history=History([0], prompt_length=1))
    accepted = _verify(logits, [1], pipeline=pipeline)
    assert accepted.tokens == (1, 1)
    np.testing.assert_allclose(np.exp(accepted.logprobs), [0.3, 0.6], atol=1e-6)
    rejected = _verify(logits, [1], pipeline=pipeline, u=0.9)
    assert rejected.tokens == (2,)
    np.testing.assert_allclose(np.exp(rejected.logprobs), [0.2], atol=1e-6)  # not that of the residual, which is .29
    assert rejected.top_logprobs[0][0][0] == 0
