"""The rule of temperature 0: the target's token is the argmax of its logits. It uses no noise and knows no drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_spec.core.types import FloatArray, IntArray, Verdict
from dist_spec.core.verification.base import NoiseRow
from dist_spec.core.verification.walk import best_token, gap, walk

if TYPE_CHECKING:
    import torch


class GreedyRule:
    """Accept while the draft equals the argmax (ties: the smallest id).

    Args:
        with_margin: also report the smallest gap between best and second-best logit (two more passes per row).
    """

    name = "greedy"
    lossless = True
    needs_noise = False

    def __init__(self, *, with_margin: bool = False) -> None:
        self._with_margin = with_margin

    def verify(
        self, *, tokens: IntArray, parents: IntArray, logits: torch.Tensor, noise_row: NoiseRow | None = None
    ) -> Verdict:
        """See `VerificationRule.verify`; `noise_row` is not used."""
        return walk(self._pick, tokens=tokens, parents=parents, logits=logits, with_margin=self._with_margin)

    def _pick(self, row: FloatArray, depth: int) -> tuple[int, float]:
        token = best_token(row, depth)
        return token, gap(row, token) if self._with_margin else 0.0
