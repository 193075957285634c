"""What it means that two runs gave the same text, defined once for tests, reports and the start-up check. It compares
token ids and margins and knows nothing of how either run was made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Equality:
    """Outcome of `compare`.

    Attributes:
        equal: the rule holds: the tokens are identical, or (not strict) their first difference is numeric.
        first_difference: index of the first differing generated token; None when identical. One text being a beginning
            of the other differs where the shorter one ends.
        numeric: the texts differ, and rounding explains it. Reports count these apart.
        margin: the plain run's margin at the first difference (nats); NaN when identical or unknown.
        allowed_margin: the largest margin that rounding explains (nats); 0 when strict.
    """

    equal: bool
    first_difference: int | None
    numeric: bool
    margin: float
    allowed_margin: float

    @property
    def identical(self) -> bool:
        return self.first_difference is None


def compare(
    reference_tokens: Sequence[int],
    tokens: Sequence[int],
    *,
    strict: bool,
    margins: Sequence[float] | None = None,
    max_logit_difference: float = 0.0,
    temperature: float = 0.0,
) -> Equality:
    """Compare a run with the plain run of the same request.

    Args:
        reference_tokens: generated tokens of the plain run.
        tokens: generated tokens of the other run.
        strict: demand identity (batch-invariant mode).
        margins: of the plain run, per generated token: (perturbed) best minus second-best score, at the request's
            temperature. A missing or NaN margin excuses nothing.
        max_logit_difference: largest difference of one logit between one-token and many-token forwards (measured at
            start). Two logits may move towards each other, so margins up to twice that can flip.
        temperature: above 0 the scores are logits / temperature, and so is their error.
    """
    first = _first_difference(reference_tokens, tokens)
    allowed = 0.0 if strict else 2.0 * max_logit_difference / (temperature if temperature > 0.0 else 1.0)
    if first is None:
        return Equality(equal=True, first_difference=None, numeric=False, margin=math.nan, allowed_margin=allowed)
    margin = margins[first] if margins is not None and first < len(margins) else math.nan
    tokens_differ = first < min(len(reference_tokens), len(tokens))  # a missing tail is never a matter of rounding
    numeric = not strict and tokens_differ and margin <= allowed
    return Equality(equal=numeric, first_difference=first, numeric=numeric, margin=margin, allowed_margin=allowed)


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))
