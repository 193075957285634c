"""What the training loop asks of whatever is trained. Knows neither heads nor students."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from dist_spec.distill.batches import Batch


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What chains of a batch did.

    Attributes:
        loss: scalar, weighted over steps.
        agreed: (steps, b, m) bool: the learner's first choice was the teacher's.
        cross_entropy: (steps,) mean over valid rows.
    """

    loss: torch.Tensor
    agreed: torch.Tensor
    cross_entropy: torch.Tensor


class Learner(Protocol):
    """A drafter with its loss; a torch module.

    Attributes:
        num_steps: steps of each chain that are judged.
    """

    num_steps: int

    @property
    def trained(self) -> nn.Module:
        """What is kept of it: its parameters that want a gradient are trained."""
        ...

    def with_weights(self, weights: Mapping[str, torch.Tensor]) -> Any:
        """A copy (a Learner) with these parameters of `trained`, for evaluation: every chain takes every step."""
        ...

    def __call__(self, batch: Batch) -> Outcome: ...
