"""Drafters rank as the target does: on a candidate set that holds the whole vocabulary the approximation is exact."""

from __future__ import annotations

import numpy as np
import pytest

from dist_spec.core.sampling.draft import DraftProcessors
from dist_spec.core.sampling.history import History
from dist_spec.core.sampling.pipeline import Pipeline
from dist_spec.core.types import Sampling

VOCAB = 19
GIVEN: dict[str, dict] = {
    "repetition": {"repetition_penalty": 1.4},
    "counts": {"frequency_penalty": 0.4, "presence_penalty": 0.7},
    "bias": {"logit_bias": ((3, 2.0), (4, -1.0))},
    "bad words": {"bad_words": ((5,), (6, 7), (7, 8, 9))},
    "min_tokens": {"min_tokens": 9, "stop_token_ids": (1,)},
    "top_k": {"top_k": 6},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
}
GIVEN["all"] = {key: value for one in list(GIVEN.values()) for key, value in one.items()}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", GIVEN)
def test_scores_are_those_of_the_target(name, temperature):
    sampling = Sampling(temperature=temperature, **GIVEN[name])
    processors = DraftProcessors(eos_ids=[2])
    draw = np.random.default_rng(1)
    tokens = draw.integers(0, VOCAB, 9).tolist()
    for _ in range(6):
        paths = [draw.integers(0, VOCAB, depth).tolist() for depth in (0, 1, 3, 4)]
        rows = (2.0 * draw.standard_normal((4, VOCAB))).astype(np.float32)
        ids = np.argsort(-rows, axis=1)
        logits = np.take_along_axis(rows, ids, axis=1).astype(np.float64)
        scores = processors.scores(
            ("r", 0), sampling=sampling, tokens=tokens, prompt_length=4, paths=paths, ids=ids, logits=logits
        )
        target = Pipeline(sampling, history=History(tokens, prompt_length=4), end_ids=(*sampling.stop_token_ids, 2))
        for row, path, order, found in zip(rows, paths, ids, scores, strict=True):
            support = target.support(row, path)
            expected = np.full(VOCAB, -np.inf)
            expected[slice(None) if support.ids is None else support.ids] = support.scores
            np.testing.assert_allclose(found, expected[order], rtol=1e-12)
        tokens.extend(draw.integers(0, VOCAB, 2).tolist())  # the history is followed


def test_a_name_used_anew_is_counted_anew():
    sampling = Sampling(temperature=1.0, frequency_penalty=1.0)
    processors = DraftProcessors(capacity=1)
    ids, logits = np.arange(4)[None], np.zeros((1, 4))
    arguments = {"sampling": sampling, "prompt_length": 0, "paths": [[]], "ids": ids, "logits": logits}
    assert processors.scores(("r", 0), tokens=[1, 1], **arguments).tolist() == [[0.0, -2.0, 0.0, 0.0]]
    assert processors.scores(("r", 0), tokens=[2], **arguments).tolist() == [[0.0, 0.0, -1.0, 0.0]]
    assert processors.scores(("s", 0), tokens=[3], **arguments).tolist() == [[0.0, 0.0, 0.0, -1.0]]
    processors.close(("s", 0))
    processors.close(("s", 0))
