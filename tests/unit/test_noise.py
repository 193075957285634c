"""Noise: known answers, bit equality of its two implementations, its distribution, and the ring of rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dist_spec.core.noise import (
    ACCEPT,
    AUDIT,
    DRAFT,
    RESIDUAL,
    TARGET,
    NoiseRing,
    gumbel_at,
    gumbel_row,
    philox_block,
    request_key,
)

WORD = 2**64 - 1
KEY = request_key(12345, 0)
LITERAL_KEYS = [(0x980BBC643CB6EB05, 0xED6B20DFE0887C9D), (0x575A506341E3C47F, 0x506CF3DB0C3806FD)]
LITERAL_ROW_0 = [1.6730411183503804, 0.7449843770075356, -0.0976380054162012, 3.2274694241759256, 2.5794277715335356]
LITERAL_ROW_1000 = [3.5590591577581767, 0.6428991905406614, 1.0916106149770846]


def philox4x64(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox4x64-10 in Python's own integers: an implementation that shares nothing with the package."""
    a, b, c, d = counter
    left, right = key
    for _ in range(10):
        first, second = a * 0xD2E7470EE14C6C93, c * 0xCA5A826395121157
        a, b, c, d = second >> 64 ^ b ^ left, second & WORD, first >> 64 ^ d ^ right, first & WORD
        left, right = (left + 0x9E3779B97F4A7C15) & WORD, (right + 0xBB67AE8584CAA73B) & WORD
    return a, b, c, d


# The known answers published with Random123 for philox4x64-10: zeros, ones, digits of pi.
PUBLISHED = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B),
    ),
    (
        (WORD, WORD, WORD, WORD),
        (WORD, WORD),
        (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
    ),
    (
        (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0x452821E638D01377, 0xBE5466CF34E90C6C),
        (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_published_known_answers(counter, key, expected):
    assert philox4x64(counter, key) == expected
    assert philox_block(counter, key=key) == expected


def test_layout_from_first_principles():
    """Counter words, lane, bits to uniform, uniform to Gumbel: all from the independent implementation."""
    for domain in (TARGET, DRAFT, ACCEPT, RESIDUAL, AUDIT):
        for index in (0, 1, 2**40):
            row = gumbel_row(KEY, index, 23, domain=domain)
            for token in (0, 1, 2, 3, 4, 17, 22):
                bits = philox4x64((token >> 2, index, 0, domain), KEY)[token & 3]
                uniform = ((bits >> 12) + 0.5) * 2.0**-52
                assert row[token] == pytest.approx(-np.log(-np.log(uniform)), rel=1e-14)


def test_key_from_first_principles():
    for seed, sample in ((0, 0), (12345, 7), (WORD, 2**32 - 1)):
        assert request_key(seed, sample) == philox4x64((sample, 0, 0, 0x6B6579), (seed, 0x6469737473706563))[:2]


def test_literals():
    """Values that must never change: a change gives every seed another text."""
    assert KEY == (0x27E21135B2E943A9, 0x3DAB15CC4B132D3)
    assert request_key(0, 0) == LITERAL_KEYS[0]
    assert request_key(2**64 - 1, 2**32 - 1) == LITERAL_KEYS[1]
    np.testing.assert_allclose(gumbel_row(KEY, 0, 5), LITERAL_ROW_0, rtol=1e-14)
    np.testing.assert_allclose(gumbel_at(KEY, 1000, [0, 49_151, 128_255]), LITERAL_ROW_1000, rtol=1e-14)


def test_keys_differ_by_seed_and_sample():
    keys = {request_key(seed, sample) for seed in range(50) for sample in range(50)}
    assert len(keys) == 2500


@pytest.mark.parametrize("vocab_size", [1, 2, 3, 5, 257, 16_384, 16_385, 49_152, 50_257])
def test_row_and_at_have_the_same_bits(vocab_size):
    ids = np.random.default_rng(vocab_size).integers(0, vocab_size, 400)
    for index in (0, 7, 123_456):
        row = gumbel_row(KEY, index, vocab_size)
        assert np.array_equal(row[ids], gumbel_at(KEY, index, ids))
        assert np.isfinite(row).all()


def test_a_row_is_a_prefix_of_a_longer_one():
    """Padded vocabularies of different size share their noise."""
    assert np.array_equal(gumbel_row(KEY, 3, 50_000)[:49_153], gumbel_row(KEY, 3, 49_153))


def test_at_broadcasts_positions():
    ids = np.array([5, 0, 99])
    several = gumbel_at(KEY, np.array([[4], [9]]), ids)
    assert several.shape == (2, 3)
    assert np.array_equal(several, np.stack([gumbel_at(KEY, 4, ids), gumbel_at(KEY, 9, ids)]))
    assert gumbel_at(KEY, 4, np.empty(0, dtype=np.int64)).shape == (0,)


def test_bad_arguments():
    with pytest.raises(ValueError, match="negative"):
        gumbel_at(KEY, 0, [-1])
    with pytest.raises(ValueError, match="contiguous"):
        gumbel_row(KEY, 0, 8, out=np.empty(16)[::2])
    with pytest.raises(ValueError, match="at least one"):
        NoiseRing(8, 0)


def test_rows_are_gumbel():
    row = gumbel_row(KEY, 0, 200_000)
    assert stats.kstest(row, stats.gumbel_r.cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    "other",
    [
        gumbel_row(KEY, 1, 20_000),
        gumbel_row(KEY, 0, 20_000, domain=DRAFT),
        gumbel_row(request_key(12345, 1), 0, 20_000),
        gumbel_row(request_key(12346, 0), 0, 20_000),
        np.roll(gumbel_row(KEY, 0, 20_000), 1),
    ],
    ids=["index", "domain", "sample", "seed", "token"],
)
def test_streams_are_independent(other):
    """The difference of two independent Gumbels is logistic; that of dependent ones is not."""
    row = gumbel_row(KEY, 0, 20_000)
    assert stats.kstest(row - other, stats.logistic.cdf).pvalue > 1e-4
    assert abs(stats.spearmanr(row, other).statistic) < 5 / np.sqrt(len(row))
    assert stats.kstest(row - row, stats.logistic.cdf).pvalue < 1e-9  # the control


def test_argmax_has_the_softmax_law():
    logits = np.log(np.array([0.35, 0.25, 0.2, 0.15, 0.05]))
    draws = 100_000
    noise = gumbel_at(KEY, np.arange(draws)[:, None], np.arange(5))
    counts = np.bincount((logits + noise).argmax(axis=1), minlength=5)
    assert stats.power_divergence(counts, draws * np.exp(logits), lambda_="log-likelihood").pvalue > 1e-6
    wrong = np.bincount((1.05 * logits + noise).argmax(axis=1), minlength=5)  # the control: temperature off by 5%
    assert stats.power_divergence(wrong, draws * np.exp(logits), lambda_="log-likelihood").pvalue < 1e-6


def test_ring_returns_the_rows_it_should_and_counts():
    ring = NoiseRing(101, 3)
    assert ring.prepare(KEY, 0)
    assert not ring.prepare(KEY, 0)
    assert np.array_equal(ring.row(KEY, 0), gumbel_row(KEY, 0, 101))
    assert np.array_equal(ring.row(KEY, 1), gumbel_row(KEY, 1, 101))
    assert (ring.prepared, ring.hits, ring.misses) == (1, 1, 1)
    other = request_key(9, 0)
    assert np.array_equal(ring.row(other, 0), gumbel_row(other, 0, 101))
    assert (ring.hits, ring.misses) == (1, 2)


def test_ring_drops_the_row_used_longest_ago():
    ring = NoiseRing(11, 2)
    ring.prepare(KEY, 0)
    ring.prepare(KEY, 1)
    ring.row(KEY, 0)
    ring.prepare(KEY, 2)  # row 1 gives way
    kept = ring.row(KEY, 0)
    assert (ring.hits, ring.misses) == (2, 0)
    assert np.array_equal(ring.row(KEY, 1), gumbel_row(KEY, 1, 11))
    assert (ring.hits, ring.misses) == (2, 1)
    assert np.array_equal(kept, gumbel_row(KEY, 0, 11))
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 1.0
