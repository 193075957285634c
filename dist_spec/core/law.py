"""The law that a drafted token was drawn from, as it travels (law 6). It knows no models, trees or messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

LAW_TOTAL = 1 << 16
"""Sum of the counts of a sparse law."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DraftLaw:
    """Probabilities of a drafted token given everything before it: `weights / total` at `ids`, 0 elsewhere.

    Attributes:
        ids: (m,) int32 token ids, all different; empty for a dense law, whose weights cover ids 0..m-1.
        weights: (m,) int64 counts >= 1 that sum to `LAW_TOTAL` (sparse), or (V,) float32 >= 0 (dense).
        total: sum of the weights, in float64.
    """

    ids: npt.NDArray[np.int32]
    weights: npt.NDArray[Any]
    total: float
