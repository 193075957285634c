"""Prefixes: a name for every length, the same however the tokens came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dist_spec.core.prefix import EMPTY_DIGEST, Prefix, extend_digest

TOKENS = st.lists(st.integers(0, 300_000), max_size=30)


@given(TOKENS, TOKENS)
def test_growing_in_pieces_or_at_once_gives_the_same_names(first: list[int], second: list[int]) -> None:
    pieces = Prefix(first)
    pieces.extend(second)
    assert pieces.tokens == [*first, *second]
    assert pieces.digests == Prefix([*first, *second]).digests
    assert len(pieces) == len(pieces.digests) - 1


@given(TOKENS)
def test_every_earlier_moment_is_recognised_and_nothing_else(tokens: list[int]) -> None:
    prefix = Prefix(tokens)
    for length in range(len(tokens) + 1):
        digest = Prefix(tokens[:length]).digest
        assert prefix.matches(length, digest)
        assert not prefix.matches(length, digest ^ 1)
        assert not prefix.matches(length + len(tokens) + 1, digest)
    assert not prefix.matches(-1, prefix.digests[-1])


@given(TOKENS, TOKENS)
def test_different_texts_have_different_names(first: list[int], second: list[int]) -> None:
    assert (Prefix(first).digest == Prefix(second).digest) == (first == second)


def test_digests_are_64_bit_and_fixed() -> None:
    """Both ends compute them: a change is a change of protocol."""
    assert EMPTY_DIGEST == 0x6C62272E07BB0142
    assert extend_digest(EMPTY_DIGEST, 0) == 0xC4EE7A7CB66DB50B
    assert Prefix([1, 2, 3]).digest == 0x5AD843F64D7C0D6A
    assert 0 <= Prefix(range(1000)).digest < 2**64
