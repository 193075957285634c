"""The rule of sampling: the target draws its own token with noise that belongs to the position, and accepts while the
draft equals it. It knows no drafter: its text is that of plain decoding with the same noise, whatever was drafted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dist_spec.core.sampling.pipeline import Pipeline
from dist_spec.core.types import FloatArray, IntArray, Verdict
from dist_spec.core.verification.base import NoiseRow
from dist_spec.core.verification.walk import Choice, best_token, gap, walk
from dist_spec.core.verification.weigh import Draws
from dist_spec.errors import ModelError, RequestError

if TYPE_CHECKING:
    import torch

MIN_TEMPERATURE = 1e-6
"""Below it the scaled logits drown the noise in float64; 0 (greedy) is what is meant."""


class CoupledRule:
    """Accept while the draft equals argmax(logits / temperature + noise), in float64 (ties: the smallest id), over the
    tokens and with the logits that the request's processors leave.

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
    needs_draws = False

    def __init__(self, *, temperature: float, with_margin: bool = False) -> None:
        if not temperature >= MIN_TEMPERATURE:
            raise RequestError(
                f"temperature {temperature} is too small to sample with (least: {MIN_TEMPERATURE})",
                fix="use temperature 0 for greedy decoding",
            )
        self.temperature = temperature
        self.with_margin = with_margin
        self._scores: npt.NDArray[np.float64] = np.empty(0, dtype=np.float64)

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
        """See `VerificationRule.verify`; `noise_row` is needed, `draws` is not used."""
        if noise_row is None:
            raise ModelError("the coupled rule was called without noise")

        def pick(row: FloatArray, path: Sequence[int]) -> Choice:
            return self.choose(row, path, noise=noise_row(len(path)), pipeline=pipeline)

        return walk(pick, tokens=tokens, parents=parents, logits=logits, with_margin=self.with_margin)

    def choose(
        self,
        row: FloatArray,
        path: Sequence[int],
        *,
        noise: npt.NDArray[np.float64],
        pipeline: Pipeline | None = None,
    ) -> Choice:
        """The target's own token at one position.

        Args:
            row, noise: (V,) logits and noise of the position.
            path: drafted tokens between the last pending one and this position.
        """
        if pipeline is not None and not pipeline.is_plain:
            return self._processed(row, path, noise=noise, pipeline=pipeline)
        scores = self._perturb(row, noise)
        token = best_token(scores, len(path))
        return Choice(token, gap(scores, token) if self.with_margin else 0.0)

    def _perturb(self, row: FloatArray, noise: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """logits / temperature + noise in the scratch row."""
        scores = self._row_for(row, noise)
        # The dtype matters: without it numpy divides in float32 and rounds before the noise is added.
        np.divide(row, self.temperature, out=scores, dtype=np.float64)
        np.add(scores, noise, out=scores)
        return scores

    def _processed(
        self, row: FloatArray, path: Sequence[int], *, noise: npt.NDArray[np.float64], pipeline: Pipeline
    ) -> Choice:
        """The same over what the processors leave; the noise of a token does not depend on what that is."""
        scores = self._row_for(row, noise)
        support = pipeline.support(row, path)
        if support.ids is None:
            np.add(support.scores, noise, out=scores)
        else:
            scores = support.scores + noise[support.ids]
        place = best_token(scores, len(path))
        token = support.token(place)
        report = pipeline.report(support, token)
        if not self.with_margin:
            return Choice(token, report=report)
        return Choice(token, pipeline.margin(row, path, support=support, token=token, noise=noise), report)

    def _row_for(self, row: FloatArray, noise: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        if row.shape != noise.shape:
            raise ModelError(f"a noise row has shape {noise.shape}, the logits row {row.shape}")
        if self._scores.shape != row.shape:
            self._scores = np.empty(row.shape, dtype=np.float64)
        return self._scores
