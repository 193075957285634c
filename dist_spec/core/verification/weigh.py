"""The arithmetic of token-level rejection on one chain, on plain probability rows: accept with min(1, p / q), else draw
from what the draft left over. It knows no logits, models or noise generator: rows, laws and uniforms are arguments.

Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318). Mass accepted on a token is min(p, q),
mass left is (p - q)+, and a rejection has exactly the probability of that rest: the sum is p.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dist_spec.core.law import DraftLaw
from dist_spec.core.noise import ACCEPT, RESIDUAL

Probs: TypeAlias = npt.NDArray[np.float64]
"""(V,) float64, finite, >= 0, sums to 1."""

Uniforms: TypeAlias = Callable[[int, int], float]
"""(domain, depth) -> a number in [0, 1): ACCEPT decides, RESIDUAL draws; depth 0 comes first. Independent of each other,
of what the drafter drew with, and never used in another verification."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """How a row's nodes were drawn, and what they are weighed with.

    Attributes:
        laws: per node the law its token was drawn from; empty, or None: it was the only possibility.
        uniforms: see `Uniforms`.
    """

    laws: Sequence[DraftLaw | None]
    uniforms: Uniforms


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighed:
    """Outcome of a chain.

    Attributes:
        num_accepted: tokens accepted from the front.
        recovered: the token in place of the first rejected one; None: all were accepted.
        fell_back: rounding left nothing over, and the target's own row was drawn from instead.
    """

    num_accepted: int
    recovered: int | None
    fell_back: bool = False


def weigh_chain(
    tokens: Sequence[int],
    *,
    laws: Sequence[DraftLaw | None],
    probs: Callable[[int], Probs],
    uniforms: Uniforms,
) -> Weighed:
    """Accept tokens from the front while the uniforms allow.

    Args:
        tokens: the drafted chain; a negative id is an empty slot, always rejected.
        laws: per token the law it was drawn from (empty, or None: it was the only possibility).
        probs: depth -> the target's probabilities there, given the tokens before; asked for visited depths only.
        uniforms: see `Uniforms`.
    """
    for depth, token in enumerate(tokens):
        law = laws[depth] if laws else None
        row = probs(depth)
        if not accepts(row, token, law, u=uniforms(ACCEPT, depth)):
            recovered, fell_back = recover(row, token, law, v=uniforms(RESIDUAL, depth))
            return Weighed(num_accepted=depth, recovered=recovered, fell_back=fell_back)
    return Weighed(num_accepted=len(tokens), recovered=None)


def accepts(row: Probs, token: int, law: DraftLaw | None, *, u: float) -> bool:
    """Whether u < p / q, without dividing. Strict: with u = 0 a token that the target forbids must not pass."""
    if token < 0:
        return False
    return u * (1.0 if law is None else law.probability(token)) < float(row[token])


def recover(row: Probs, token: int, law: DraftLaw | None, *, v: float) -> tuple[int, bool]:
    """The token that `v` picks from max(p - q, 0), and whether nothing of it was left.

    Nothing can be left only by rounding, in a share of rejections as small as that; then the target's row itself is
    drawn from, so that whatever comes is possible under the target.
    """
    if law is None:
        rest = row.copy()
        if token >= 0:
            rest[token] = 0.0
    else:
        rest = law.minus(row)
    picked = pick(rest, v)
    return (pick(row, v), True) if picked < 0 else (picked, False)


def pick(weights: Probs, v: float) -> int:
    """Inverse of the cumulative weights in id order: the first id whose sum exceeds v times the whole; -1: all are 0."""
    sums = np.cumsum(weights)
    if not sums[-1] > 0.0:
        return -1
    # Where v times the whole rounds up to the whole, the last id that is possible, never one beyond it.
    return int(min(np.searchsorted(sums, v * sums[-1], side="right"), np.flatnonzero(weights)[-1]))
