"""The log probabilities of a verdict as the arrays of a commit, cut to the tokens that were kept. It knows no logits."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from dist_spec.core.messages import NO_FLOOR
from dist_spec.core.types import FloatArray, IntArray, Verdict


class Reported(TypedDict):
    """Fields of `Commit`."""

    logprobs: FloatArray
    top_ids: IntArray
    top_logprobs: FloatArray


def reported(verdict: Verdict, num_kept: int) -> Reported:
    """Empty arrays where the request asked for nothing. Where fewer tokens were possible than asked for, rows are filled up
    with entries of NO_FLOOR, which no token can have."""
    tops = verdict.top_logprobs[:num_kept]
    shape = len(tops), max((len(top) for top in tops), default=0)
    top_ids = np.zeros(shape, dtype=np.int32)
    top_logprobs = np.full(shape, NO_FLOOR, dtype=np.float32)
    for place, top in enumerate(tops):
        for rank, (token, logprob) in enumerate(top):
            top_ids[place, rank], top_logprobs[place, rank] = token, logprob
    logprobs = np.array(verdict.logprobs[:num_kept], dtype=np.float32)
    return Reported(logprobs=logprobs, top_ids=top_ids, top_logprobs=top_logprobs)
