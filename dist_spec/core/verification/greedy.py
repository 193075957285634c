"""The rule of temperature 0: the target's token is the argmax of its logits. It uses no noise and knows no drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dist_spec.core.sampling.pipeline import Pipeline
from dist_spec.core.types import FloatArray, IntArray, Verdict
from dist_spec.core.verification.base import NoiseRow
from dist_spec.core.verification.walk import Choice, best_token, gap, walk
from dist_spec.core.verification.weigh import Draws

if TYPE_CHECKING:
    import torch


class GreedyRule:
    """Accept while the draft equals the argmax (ties: the smallest id), after the request's processors if it has any.

    Args:
        with_margin: also report the smallest gap between best and second-best logit (two more passes per row).
    """

    name = "greedy"
    lossless = True
    needs_noise = False
    needs_draws = False

    def __init__(self, *, with_margin: bool = False) -> None:
        self._with_margin = with_margin

    def verify(
        self,
        *,
        tokens: IntArray,
        parents: IntArray,
        logits: torch.Tensor,
        noise_row: NoiseRow | None = None,
        pipeline: Pipeline | None = None,
        draws: Draws | None = None,
    ) -> Verdict:
        """See `VerificationRule.verify`; `noise_row` and `draws` are not used."""

        def processed(row: FloatArray, path: Sequence[int]) -> Choice:
            assert pipeline is not None
            support = pipeline.support(row, path)
            token = best_token(support.scores, len(path))
            report = pipeline.report(support, token)
            if not self._with_margin:
                return Choice(token, report=report)
            return Choice(token, pipeline.margin(row, path, support=support, token=token), report)

        pick = self._pick if pipeline is None or pipeline.is_plain else processed
        return walk(pick, tokens=tokens, parents=parents, logits=logits, with_margin=self._with_margin)

    def _pick(self, row: FloatArray, path: Sequence[int]) -> Choice:
        token = best_token(row, len(path))
        return Choice(token, gap(row, token) if self._with_margin else 0.0)
