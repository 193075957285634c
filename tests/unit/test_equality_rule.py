"""The equality rule: what counts as the same text, and what rounding may excuse."""

from __future__ import annotations

import math

import pytest

from dist_spec.core.verification.equality import compare

PLAIN = (5, 6, 7, 8)
MARGINS = (3.0, 0.02, 1.0, 0.5)


@pytest.mark.parametrize("strict", [True, False])
def test_identity_is_equality(strict):
    found = compare(PLAIN, list(PLAIN), strict=strict, margins=MARGINS, max_logit_difference=0.01)
    assert found.equal
    assert found.identical
    assert not found.numeric
    assert found.first_difference is None
    assert compare((), (), strict=strict).equal


def test_strict_excuses_nothing():
    found = compare(PLAIN, (5, 9, 7, 8), strict=True, margins=MARGINS, max_logit_difference=1e9)
    assert not found.equal
    assert not found.numeric
    assert found.first_difference == 1
    assert found.allowed_margin == 0.0


@pytest.mark.parametrize(
    ("difference", "temperature", "equal"),
    [
        (0.01, 0.0, True),  # margin 0.02 is exactly twice
        (0.0099, 0.0, False),
        (0.005, 0.5, True),  # scores are logits / temperature
        (0.0049, 0.5, False),
        (0.01, 2.0, False),
        (0.02, 2.0, True),
    ],
)
def test_rounding_excuses_margins_up_to_twice_the_measured_difference(difference, temperature, equal):
    found = compare(
        PLAIN,
        (5, 9, 1, 2),
        strict=False,
        margins=MARGINS,
        max_logit_difference=difference,
        temperature=temperature,
    )
    assert found.first_difference == 1
    assert found.equal is equal
    assert found.numeric is equal
    assert not found.identical
    assert found.margin == 0.02


def test_only_the_first_difference_counts():
    """After a numeric difference the texts are of different prefixes; before it nothing may differ."""
    assert not compare(PLAIN, (9, 9, 7, 8), strict=False, margins=MARGINS, max_logit_difference=0.01).equal


def test_missing_tail_is_never_numeric():
    for shorter, longer in ((PLAIN[:3], PLAIN), (PLAIN, PLAIN[:3])):
        found = compare(shorter, longer, strict=False, margins=MARGINS, max_logit_difference=1e9)
        assert found.first_difference == 3
        assert not found.equal


@pytest.mark.parametrize("margins", [None, (), (3.0,), (3.0, math.nan, 1.0, 0.5)])
def test_unknown_margin_excuses_nothing(margins):
    found = compare(PLAIN, (5, 9, 7, 8), strict=False, margins=margins, max_logit_difference=1e9)
    assert not found.equal
    assert math.isnan(found.margin)
