"""The index behind suffix lookup: it finds what a search by hand finds, in bounded memory."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_spec.drafters import suffix_index
from dist_spec.drafters.suffix_index import MAX_MATCH, SEPARATOR, Ending, SuffixIndex


def matched_by_hand(text: list[int], tail: list[int]) -> dict[int, int]:
    """Position -> length of the match that ends before it."""
    found = {}
    for position in range(len(text)):
        limit = min(MAX_MATCH, len(tail), position)
        found[position] = next((n for n in range(limit) if text[position - 1 - n] != tail[-1 - n]), limit)
    return found


def index_of(text: list[int], *, max_tokens: int = 10_000, min_match: int = 1) -> SuffixIndex:
    index = SuffixIndex(max_tokens=max_tokens, expected=1000, min_match=min_match)
    index.extend(text)
    return index


tokens = st.integers(0, 400)


@settings(max_examples=60, deadline=None)
@given(
    phrases=st.lists(st.lists(tokens, min_size=1, max_size=90), min_size=1, max_size=4),
    order=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    cut=st.integers(1, 20),
    max_tokens=st.sampled_from([7, 50, 10_000]),
)
def test_finds_what_a_search_by_hand_finds(
    phrases: list[list[int]], order: list[int], cut: int, max_tokens: int
) -> None:
    index, text = SuffixIndex(max_tokens=max_tokens, expected=1000), []
    for number in order:
        text += phrases[number % len(phrases)]
        index.extend(phrases[number % len(phrases)])
    kept = text[-max_tokens:]
    assert index.tokens() == kept
    assert index.num_tokens == len(kept)
    tail = text[-cut:]
    by_hand = matched_by_hand(kept, tail)
    found = index.occurrences(Ending(tail))
    first = index.size - len(kept)
    for matched, position in found:
        assert by_hand[position - first] == matched
        assert index.following(position, 5) == kept[position - first :][:5]
    if max(by_hand.values()) > 0:
        assert found


def test_single_steps_and_bulk_build_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    pieces = [random.integers(0, 30, size).tolist() for size in (1, 9, 300, 5, 80, 2, 700)]
    built = []
    for bulk in (1, 10**9):
        monkeypatch.setattr(suffix_index, "_BULK", bulk)
        index = SuffixIndex(max_tokens=600, expected=1000)
        for piece in pieces:
            index.extend(piece)
        built.append(index)
    text = [token for piece in pieces for token in piece]
    for end in range(500, 1000, 7):
        answers = [index.occurrences(Ending(text[end - 20 : end])) for index in built]
        assert answers[0] == answers[1] != []


def test_the_longest_match_is_among_few() -> None:
    """However often a short ending occurs, the place where a long one occurred is found."""
    phrase = list(range(100, 120))
    text = [*phrase, 7, 9]
    for filler in range(200):
        text += [119, 300 + filler]
    text += phrase
    best = max(index_of(text).occurrences(Ending(text)))
    assert best == (MAX_MATCH, 20)
    assert index_of(text).following(20, 2) == [7, 9]


def test_texts_are_kept_apart() -> None:
    index = SuffixIndex(max_tokens=100, expected=100)
    index.add_text([1, 2, 3])
    index.add_text([4, 5, 6])
    [(matched, position)] = index.occurrences(Ending([9, 2, 3]))
    assert matched == 2
    assert index.following(position, 8) == []  # the text ended there
    [(matched, position)] = index.occurrences(Ending([3, SEPARATOR + 5]))  # 3 4: never stood together
    assert (matched, index.following(position, 8)) == (1, [5, 6])


def test_a_shortest_match_can_be_asked_for() -> None:
    text = [1, 2, 9, 2]
    assert index_of(text).occurrences(Ending(text)) == [(1, 2)]
    assert index_of(text, min_match=2).occurrences(Ending(text)) == []


def test_the_oldest_is_overwritten_and_memory_bounded() -> None:
    index = SuffixIndex(max_tokens=1000, expected=1000)
    assert index.num_bytes == 0
    random, sizes = np.random.default_rng(2), []
    first = random.integers(0, 50_000, 300).tolist()
    index.add_text(first)
    assert index.occurrences(Ending(first[:20]))
    for _ in range(20):
        index.add_text(random.integers(0, 50_000, 300).tolist())
        sizes.append(index.num_bytes)
    assert index.num_tokens == 1000
    assert not [one for one in index.occurrences(Ending(first[:20])) if one[0] > 1]
    assert sizes[5] == sizes[-1] <= 1024 * 4 * 9
    index.add_text(random.integers(0, 50_000, 5000).tolist())
    assert index.num_tokens == 1000
    index.clear()
    assert (index.num_tokens, index.num_bytes, index.tokens()) == (0, 0, [])


def test_positions_begin_anew_before_they_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_index, "_MAX_POSITION", 500)
    index = SuffixIndex(max_tokens=100, expected=100)
    for start in range(0, 2000, 40):
        index.add_text(list(range(start, start + 40)))
        assert index.size < 500
    assert index.occurrences(Ending([1970, 1971]))


def test_taking_in_a_token_is_cheap() -> None:
    """Below 10 us (the median is compared with a bound that allows for a busy machine)."""
    random = np.random.default_rng(1)
    index = index_of(random.integers(0, 50_000, 2000).tolist())
    taken = []
    for token in random.integers(0, 50_000, 500).tolist():
        start = time.perf_counter()
        index.extend([token])
        taken.append(time.perf_counter() - start)
    assert np.median(taken) < 20e-6
