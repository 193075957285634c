"""The rule of rejection sampling on a chain: weigh every drafted token with the law it was drawn from. It knows neither
who drafted nor how uniforms are made.

Plain and bonus tokens are the coupled rule's own choice, so that with drafting off the text is that of `coupled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dist_spec.core.sampling.pipeline import Pipeline, TokenReport
from dist_spec.core.types import FloatArray, IntArray, Verdict
from dist_spec.core.verification.base import NoiseRow
from dist_spec.core.verification.coupled import CoupledRule
from dist_spec.core.verification.walk import best_token, host_rows
from dist_spec.core.verification.weigh import Draws, Probs, weigh_chain
from dist_spec.errors import ModelError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


@dataclass(kw_only=True, slots=True)
class Rejections:
    """Counters over all requests: rejections, and how often rounding left nothing over after one (more than one in 1e5
    would mean that something is wrong)."""

    num_rejected: int = 0
    num_fallbacks: int = 0


class RejectionRule:
    """Accept with min(1, p / q) in float64, else draw from max(p - q, 0); all accepted: the coupled choice.

    Args:
        temperature: above 0 (at 0 the greedy rule does the same).
        with_margin: report the margin of plain steps; verdicts that weighed something have none.
        counts: counters shared by the rules of a run.
    """

    name = "rejection"
    lossless = True
    needs_noise = True
    needs_draws = True

    def __init__(self, *, temperature: float, with_margin: bool = False, counts: Rejections | None = None) -> None:
        self.temperature = temperature
        self.counts = Rejections() if counts is None else counts
        self._coupled = CoupledRule(temperature=temperature, with_margin=with_margin)

    def verify(
        self,
        *,
        tokens: IntArray,
        parents: IntArray,
        logits: torch.Tensor,
        noise_row: NoiseRow | None,
        pipeline: Pipeline | None = None,
        draws: Draws | None = None,
    ) -> Verdict:
        """See `VerificationRule.verify`; `noise_row` is needed, and `draws` where anything was drafted.

        Raises:
            ProtocolError: the nodes are not a chain, or there is not one law for each.
        """
        drafted = tokens.tolist()
        if noise_row is None or (drafted and draws is None):
            raise ModelError("the rejection rule was called without noise, or without the laws of its draft")
        if logits.ndim != 2 or logits.shape[0] != len(drafted) + 1:
            raise ModelError(f"expected logits of {len(drafted) + 1} rows, got {tuple(logits.shape)}")
        if parents.tolist() != list(range(-1, len(drafted) - 1)):
            raise ProtocolError("the rejection rule weighs chains: every node hangs below the one before it")
        row_at = host_rows(logits)
        accepted, recovered = self._weigh(drafted, row_at, pipeline, draws)
        path = drafted[:accepted]
        token, margin = recovered, float("nan")
        if token is None:
            choice = self._coupled.choose(row_at(accepted), path, noise=noise_row(accepted), pipeline=pipeline)
            token = choice.token
            if not drafted and self._coupled.with_margin:
                margin = choice.margin
        reports = _reports(pipeline, row_at, [*path, token])
        return Verdict(
            path=tuple(range(accepted)),
            token=token,
            tokens=(*path, token),
            margin=margin,
            logprobs=tuple(one.logprob for one in reports),
            top_logprobs=tuple(one.top for one in reports),
        )

    def _weigh(
        self,
        drafted: Sequence[int],
        row_at: Callable[[int], FloatArray],
        pipeline: Pipeline | None,
        draws: Draws | None,
    ) -> tuple[int, int | None]:
        """How many drafted tokens stand, and what replaces the next."""
        if draws is None or not drafted:
            return 0, None
        if draws.laws and len(draws.laws) != len(drafted):
            raise ProtocolError(f"{len(drafted)} drafted tokens but {len(draws.laws)} laws")
        weighed = weigh_chain(
            drafted,
            laws=draws.laws,
            probs=lambda depth: self._probs(row_at(depth), drafted[:depth], pipeline),
            uniforms=draws.uniforms,
        )
        self.counts.num_rejected += weighed.recovered is not None
        self.counts.num_fallbacks += weighed.fell_back
        return weighed.num_accepted, weighed.recovered

    def _probs(self, row: FloatArray, path: Sequence[int], pipeline: Pipeline | None) -> Probs:
        if pipeline is not None and not pipeline.is_plain:
            return pipeline.probs(row, path)
        weights = np.divide(row, self.temperature, dtype=np.float64)
        weights -= weights[best_token(weights, len(path))]  # refuses rows that are not finite
        np.exp(weights, out=weights)
        weights /= weights.sum()
        return weights


def _reports(
    pipeline: Pipeline | None, row_at: Callable[[int], FloatArray], tokens: Sequence[int]
) -> list[TokenReport]:
    """Log probabilities under the target's own distribution for accepted, recovered and bonus tokens alike."""
    if pipeline is None or pipeline.sampling.logprobs < 0:
        return []
    found = (
        pipeline.report(pipeline.support(row_at(depth), tokens[:depth]), token) for depth, token in enumerate(tokens)
    )
    return [report for report in found if report is not None]
