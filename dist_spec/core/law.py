"""The law that a drafted token was drawn from, as it travels (law 6). It knows no models, trees or messages.

A drafter rounds its probabilities first and draws from the rounded numbers; the verifier uses the same numbers. Drawing
from one law and weighing with a rounded copy of it would shift the target's law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dist_spec.errors import ProtocolError

LAW_TOTAL = 1 << 16
"""Sum of the counts of a sparse law."""

LAW_MASS = 0.98
"""A sparse law names the most likely ids until they carry this much, if its size allows."""

LEAST_IDS = 4
"""Ids in a sparse law at least, where so many are possible."""

_NO_IDS: npt.NDArray[np.int32] = np.empty(0, np.int32)


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

    @staticmethod
    def sparse(ids: npt.ArrayLike, probs: npt.ArrayLike, *, total: int = LAW_TOTAL) -> DraftLaw:
        """The rounded law of chosen ids: `quantise`, in the order of the ids.

        Args:
            ids: (m,) different token ids, any order.
            probs: (m,) their probabilities, not all 0; need not sum to 1.
        """
        names = np.asarray(ids, dtype=np.int32)
        order = np.argsort(names)
        names = names[order]
        counts = quantise(names, np.asarray(probs, dtype=np.float64)[order], total=total)
        return DraftLaw(ids=names, weights=counts, total=float(total))

    @staticmethod
    def dense(probs: npt.ArrayLike) -> DraftLaw:
        """The law of a whole row (V,), rounded to float32 and summed in float64 from the first id to the last, so that
        every machine gets the same sum."""
        weights = np.ascontiguousarray(probs, dtype=np.float32)
        return DraftLaw(ids=_NO_IDS, weights=weights, total=float(np.cumsum(weights, dtype=np.float64)[-1]))

    @property
    def is_dense(self) -> bool:
        return not len(self.ids)

    def probability(self, token: int) -> float:
        """Probability of `token`; 0 for ids that the law does not name."""
        if self.is_dense:
            return float(self.weights[token]) / self.total if 0 <= token < len(self.weights) else 0.0
        at = np.flatnonzero(self.ids == token)
        return float(self.weights[at[0]]) / self.total if len(at) else 0.0

    def draw(self, word: int) -> int:
        """The token that 64 uniform bits pick by cumulative weights: exactly by the law if sparse (the upper bits are a
        uniform integer below `LAW_TOTAL`), to 53 bits if dense."""
        sums = np.cumsum(self.weights, dtype=np.float64 if self.is_dense else np.int64)
        if self.is_dense:
            at = np.searchsorted(sums, (word >> 11) * 2.0**-53 * sums[-1], side="right")
            return int(min(at, np.flatnonzero(self.weights)[-1]))
        return int(self.ids[np.searchsorted(sums, word * int(sums[-1]) >> 64, side="right")])

    def minus(self, row: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """max(row - law, 0) as a new (V,) float64 row; ids beyond the row do not matter."""
        rest = row.copy()
        if self.is_dense:
            size = min(len(rest), len(self.weights))
            rest[:size] -= self.weights[:size].astype(np.float64) / self.total
            return np.maximum(rest, 0.0, out=rest)
        inside = self.ids < len(rest)
        ids = self.ids[inside]
        rest[ids] = np.maximum(rest[ids] - self.weights[inside] / self.total, 0.0)
        return rest

    def check(self, *, token: int, vocab_size: int) -> None:
        """Raises ProtocolError unless this is a law over the vocabulary from which `token` can have been drawn."""
        if self.is_dense:
            fault = _dense_fault(self.weights, self.total, vocab_size)
        else:
            fault = _sparse_fault(self.ids, self.weights, self.total, vocab_size)
        if not fault and self.probability(token) <= 0.0:
            fault = f"token {token} has probability 0 under the law it is said to be drawn from"
        if fault:
            raise ProtocolError(f"draft law: {fault}", fix="drafter and leader must run the same release")


def are_lawful(tokens: npt.NDArray[np.int32], laws: Sequence[DraftLaw | None], *, vocab_size: int) -> bool:
    """Whether every token can have been drawn from the law that came with it (empty: they came without). All or nothing,
    so that no single token is dropped for what it is."""
    if not laws:
        return True
    try:
        for token, law in zip(tokens.tolist(), laws, strict=True):
            if law is not None:
                law.check(token=token, vocab_size=vocab_size)
    except (ProtocolError, ValueError):
        return False
    return True


def quantise(
    ids: npt.NDArray[np.int32], probs: npt.NDArray[np.float64], *, total: int = LAW_TOTAL
) -> npt.NDArray[np.int64]:
    """Integer counts >= 1 that sum to `total`, as close to the probabilities as largest remainders bring them.

    Ties go to the smaller id; where a count would be 0 it takes one unit of the largest.

    Args:
        ids: (m,), all different; m <= total.
        probs: (m,) >= 0, finite, not all 0.
    """
    wanted = probs / probs.sum() * total
    counts = np.floor(wanted).astype(np.int64)
    missing = total - int(counts.sum())
    order = np.lexsort((ids, counts - wanted))
    counts[order[:missing]] += 1
    for empty in np.flatnonzero(counts == 0):
        counts[np.argmax(counts)] -= 1
        counts[empty] = 1
    return counts


def law_ids(probs: npt.NDArray[np.float64], *, size: int, mass: float = 1.0) -> int:
    """How many of the most likely ids a sparse law names: the fewest that reach `LAW_MASS`, at least `LEAST_IDS` and at
    most `size`, and none that cannot come. A function of the row alone, never of what is drawn (law 5).

    Args:
        probs: (m,) probabilities of the most likely ids, best first.
        mass: what all ids of the vocabulary sum to, on the same scale.
    """
    possible = int(np.count_nonzero(probs))
    enough = int(np.searchsorted(np.cumsum(probs), LAW_MASS * mass)) + 1
    return min(max(enough, LEAST_IDS), size, possible)


def _sparse_fault(ids: npt.NDArray[np.int32], weights: npt.NDArray[Any], total: float, vocab_size: int) -> str:
    if len(ids) != len(weights):
        return f"{len(ids)} ids but {len(weights)} counts"
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        return f"it names ids beyond the vocabulary of {vocab_size}"
    if len(np.unique(ids)) != len(ids):
        return "it names an id twice"
    if int(weights.min()) < 1 or int(weights.sum()) != LAW_TOTAL or total != LAW_TOTAL:
        return f"its counts must be at least 1 and sum to {LAW_TOTAL}, they sum to {int(weights.sum())}"
    return ""


def _dense_fault(weights: npt.NDArray[Any], total: float, vocab_size: int) -> str:
    if not 0 < len(weights) <= vocab_size:
        return f"it has {len(weights)} probabilities for a vocabulary of {vocab_size}"
    if not (np.isfinite(weights).all() and weights.min() >= 0):
        return "its probabilities must be finite and not negative"
    if not (0.0 < total < np.inf and abs(float(weights.sum(dtype=np.float64)) - total) <= 1e-9 * total):
        return "its probabilities do not sum to the total"
    return ""
