"""The rule of sampling: the target draws its own token with noise that belongs to the position, and accepts while the
draft equals it. It knows no drafter: its text is that of plain decoding with the same noise, whatever was drafted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dist_spec.core.types import FloatArray, IntArray, Verdict
from dist_spec.core.verification.base import NoiseRow
from dist_spec.core.verification.walk import best_token, gap, walk
from dist_spec.errors import ModelError, RequestError

if TYPE_CHECKING:
    import torch

MIN_TEMPERATURE = 1e-6
"""Below it the scaled logits drown the noise in float64; 0 (greedy) is what is meant."""


class CoupledRule:
    """Accept while the draft equals argmax(logits / temperature + noise), in float64 (ties: the smallest id).

    Args:
        temperature: at least MIN_TEMPERATURE.
        with_margin: also report the smallest gap between best and second-best perturbed score, in nats at this
            temperature.

    Raises:
        RequestError: the temperature is too small.
    """

    name = "coupled"
    lossless = True
    needs_noise = True

    def __init__(self, *, temperature: float, with_margin: bool = False) -> None:
        if not temperature >= MIN_TEMPERATURE:
            raise RequestError(
                f"temperature {temperature} is too small to sample with (least: {MIN_TEMPERATURE})",
                fix="use temperature 0 for greedy decoding",
            )
        self.temperature = temperature
        self._with_margin = with_margin
        self._scores: npt.NDArray[np.float64] = np.empty(0, dtype=np.float64)

    def verify(
        self, *, tokens: IntArray, parents: IntArray, logits: torch.Tensor, noise_row: NoiseRow | None
    ) -> Verdict:
        """See `VerificationRule.verify`; `noise_row` is needed."""
        if noise_row is None:
            raise ModelError("the coupled rule was called without noise")

        def pick(row: FloatArray, depth: int) -> tuple[int, float]:
            scores = self._perturb(row, noise_row(depth))
            token = best_token(scores, depth)
            return token, gap(scores, token) if self._with_margin else 0.0

        return walk(pick, tokens=tokens, parents=parents, logits=logits, with_margin=self._with_margin)

    def _perturb(self, row: FloatArray, noise: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """logits / temperature + noise in the scratch row."""
        if row.shape != noise.shape:
            raise ModelError(f"a noise row has shape {noise.shape}, the logits row {row.shape}")
        if self._scores.shape != row.shape:
            self._scores = np.empty(row.shape, dtype=np.float64)
        # The dtype matters: without it numpy divides in float32 and rounds before the noise is added.
        np.divide(row, self.temperature, out=self._scores, dtype=np.float64)
        np.add(self._scores, noise, out=self._scores)
        return self._scores
