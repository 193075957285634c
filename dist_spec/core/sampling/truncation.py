"""Which tokens top-k, top-p and min-p leave, by selection and never by sorting the vocabulary. It knows nothing of texts
or requests: the answer is a function of the scores alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

_SMALL = 512
"""A pool of this size is sorted; a larger one is halved around a pivot."""

_HEAD = 1e-4
"""Weights above this share of the largest usually hold the mass that top-p asks for."""

_FLOOR = -700.0
"""Differences below are of no weight in float64."""

_RUN = 64
"""Scores per run when the largest few are looked for."""

_MANY = 1024
"""More survivors than this are not listed: picking out scattered entries costs more than working on the whole row."""


def truncate(scores: Scores, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Ids | None:
    """Ids that may be sampled, ascending, at least one; None when they are many: then all others are -inf in `scores`.

    Args:
        scores: (V,) float64, logits over temperature; -inf is impossible; the largest is finite. May be written to.
        top_k: keep the k largest (0: all; ties: the smaller id).
        top_p: of those, the smallest set of largest whose probability (among those) reaches it.
        min_p: of those, the ones at least this share as likely as the most likely one.
    """
    ids = largest(scores, top_k) if 0 < top_k < len(scores) else None
    if top_p >= 1.0 and min_p <= 0.0:
        return ids
    kept = scores if ids is None else scores[ids]
    weights = weights_of(kept)
    cut, num_equal = _nucleus(weights, top_p) if top_p < 1.0 else (0.0, 0)
    if min_p > cut:
        cut, num_equal = min_p, len(weights)
    if cut <= 0.0:  # the sum fell short by rounding: what is impossible stays out
        cut, num_equal = float(np.nextafter(0.0, 1.0)), len(weights)
    if ids is not None or np.count_nonzero(weights >= cut) <= _MANY:
        inside = _above(weights, cut, num_equal=num_equal)
        return inside if ids is None else ids[inside]
    _forbid(scores, weights < cut)
    scores[np.flatnonzero(weights == cut)[num_equal:]] = -np.inf
    return None


def _forbid(scores: Scores, where: npt.NDArray[np.bool_]) -> None:
    """-inf where told; arithmetic on whole rows is several times faster here than a masked assignment."""
    with np.errstate(over="ignore"):
        offset = where * -1e308
        offset *= 10.0
    scores += offset


def largest(scores: Scores, count: int) -> Ids:
    """Ids of the `count` largest scores, ascending (ties: the smaller id); impossible ones (-inf) are left out."""
    pool = _upper(scores, count)
    values = scores if pool is None else scores[pool]
    if count < len(values):
        cut = float(np.partition(values, len(values) - count)[len(values) - count])
        if cut > -np.inf:
            inside = _above(values, cut, num_equal=count - int(np.count_nonzero(values > cut)))
            return inside if pool is None else pool[inside]
    inside = np.flatnonzero(values > -np.inf)
    return inside if pool is None else pool[inside]


def weights_of(scores: Scores) -> Scores:
    """exp(score - the largest), exactly 0 where the score is -inf. (exp itself is ten times slower on infinities.)"""
    weights = np.subtract(scores, scores.max())
    if weights.min() >= _FLOOR:
        return np.exp(weights, out=weights)
    np.maximum(weights, _FLOOR, out=weights)
    np.exp(weights, out=weights)
    weights *= scores > -np.inf
    return weights


def _upper(scores: Scores, count: int) -> Ids | None:
    """Ids that hold the `count` largest for sure, usually not many more; None: all.

    The count-th largest of the maxima of short (interleaved) runs lies below as many scores. (Selecting from the whole
    row is as fast, but slow where many scores are equal, as those of forbidden tokens are.)
    """
    num_runs = len(scores) // _RUN
    if count > num_runs // 4:
        return None
    highest = scores[: num_runs * _RUN].reshape(_RUN, num_runs).max(axis=0)
    floor = np.sort(highest)[-count]
    return np.flatnonzero(scores >= floor) if floor > -np.inf else None


def _above(values: Scores, cut: float, *, num_equal: int) -> Ids:
    """Ids of the values above `cut` and of the first `num_equal` that equal it, ascending."""
    at_least = np.flatnonzero(values >= cut)
    equal = np.flatnonzero(values[at_least] == cut)
    return at_least if len(equal) <= num_equal else np.delete(at_least, equal[num_equal:])


def _nucleus(weights: Scores, share: float) -> tuple[float, int]:
    """(cut, n): the weights above the cut and n of those equal to it are the smallest set that holds `share` of all."""
    target = share * float(weights.sum())
    pool = weights
    if np.count_nonzero(weights >= _HEAD) <= 2 * _MANY:
        head = weights[weights >= _HEAD]
        pool = head if float(head.sum()) >= target else weights
    cut, count = _reach(pool, target)
    return cut, count - int(np.count_nonzero(weights > cut))


def _reach(pool: Scores, target: float) -> tuple[float, int]:
    """(value, n): the n largest weights just reach `target`, and the smallest of them is `value`.

    A weighted quickselect: linear in the size of the pool, whatever the distribution looks like.
    """
    mass, count, middle = 0.0, 0, len(pool) - len(pool) // 8
    while len(pool) > _SMALL:
        pool = np.partition(pool, middle)
        upper = pool[middle:]
        upper_mass = float(upper.sum())
        if mass + upper_mass >= target:
            pool = upper
        else:
            mass, count, pool = mass + upper_mass, count + len(upper), pool[:middle]
        middle = len(pool) // 2
    ordered = np.sort(pool)[::-1]
    last = min(int(np.searchsorted(mass + np.cumsum(ordered), target)), len(ordered) - 1)
    return float(ordered[last]), count + last + 1
