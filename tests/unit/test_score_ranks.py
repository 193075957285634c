"""Ranks of the truth among guesses: chains and trees against counting by hand, and scripted drafters of a known law."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_spec.bench.score.forced import follow
from dist_spec.bench.score.ranks import (
    STRETCH,
    PathRates,
    Trail,
    after_a_miss,
    chain_length,
    rank_shares,
    starts,
    survival,
    tree_lengths,
    walked_length,
)
from dist_spec.bench.score.texts import Text
from dist_spec.core.types import Sampling
from dist_spec.drafters.ngram import NgramDrafter
from dist_spec.drafters.scripted import RankLaw, ScriptedDrafter


def trail(*ranks: int, known: int | None = None) -> Trail:
    return Trail(ranks=ranks, known=len(ranks) if known is None else known)


TEXT = [trail(1, 1, 2), trail(1, 2, 1), trail(2, 1, 0), trail(0, known=3), trail(1, 1), trail(1)]
"""Three positions ahead at most; the last two are close to the end of their text."""


def test_chains_by_hand() -> None:
    assert survival(TEXT, 3) == pytest.approx([4 / 6, 2 / 5, 0 / 4])
    assert chain_length(TEXT, 1) == pytest.approx(1 + 4 / 6)
    assert chain_length(TEXT, 3) == pytest.approx(1 + 4 / 6 + 2 / 5)


def test_verifications_start_where_the_last_one_ended() -> None:
    assert starts(TEXT, 1) == [0, 2, 3, 4]
    assert starts(TEXT, 2) == [0, 3, 4]
    assert walked_length([TEXT], 1) == 6 / 4
    assert walked_length([TEXT, TEXT[:1]], 2) == 7 / 4
    assert walked_length([], 2) == 0.0


def test_after_a_miss_by_hand() -> None:
    found = after_a_miss([trail(1), trail(2), trail(3), trail(0), trail(5), Trail(ranks=(), known=0)])
    assert (found.positions, found.first) == (5, 1 / 5)
    assert found.next_guesses == pytest.approx((1 / 4, 2 / 4, 2 / 4))


def test_shares_by_depth_and_rank_by_hand() -> None:
    shares = rank_shares(TEXT, depth=3, width=2)
    assert shares[0] == pytest.approx([4 / 6, 1 / 6])
    assert shares[1] == pytest.approx([3 / 4, 1 / 4])
    assert shares[2] == pytest.approx([1 / 3, 1 / 3])


def all_trees(paths: list[tuple[int, ...]], size: int) -> list[set[tuple[int, ...]]]:
    """Every set of `size` paths that holds all beginnings of its members."""
    sets = [set(some) for some in itertools.combinations(paths, size)]
    return [some for some in sets if all(len(path) == 1 or path[:-1] in some for path in some)]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_best_static_tree_is_the_best_of_all(size: int) -> None:
    generator = np.random.default_rng(3)
    trails = [trail(*(int(rank) for rank in generator.choice([1, 1, 2, 3], 3))) for _ in range(40)]
    rates = PathRates(trails)
    paths = sorted({one.path[:length] for one in trails for length in (1, 2, 3)})
    best = max(1 + sum(map(rates.rate, tree)) for tree in all_trees(paths, size))
    tree = rates.best_tree(size)
    assert len(tree.paths) == size
    assert rates.length(tree) == pytest.approx(best)
    accepted = [max(length for length in range(4) if length == 0 or one.path[:length] in tree.paths) for one in trails]
    assert rates.length(tree) == pytest.approx(1 + np.mean(accepted))
    assert sum(tree.expanded()) == len({path[:-1] for path in tree.paths})


RANKS = st.lists(st.integers(0, 4), min_size=1, max_size=5).map(
    lambda ranks: trail(*ranks[: ranks.index(0) + 1] if 0 in ranks else ranks)
)


@given(st.lists(st.lists(RANKS, min_size=1, max_size=8), min_size=1, max_size=5))
def test_longer_chains_and_larger_trees_never_accept_less(texts: list[list[Trail]]) -> None:
    everything = [one for text in texts for one in text]
    lengths = [chain_length(everything, depth) for depth in range(1, 6)]
    assert lengths == sorted(lengths)
    walked = [walked_length(texts, depth) for depth in range(1, 6)]
    assert walked == sorted(walked)
    trees = tree_lengths(texts, (1, 2, 4, 8))
    assert [length for _, length in trees] == sorted(length for _, length in trees)
    assert all(1.0 <= length <= 6.0 for _, length in trees)


def test_a_tree_is_judged_where_it_was_not_chosen() -> None:
    one, other = [trail(1)] * STRETCH, [trail(2)] * STRETCH
    [(tree, length)] = tree_lengths([one + other, one + other], (1,))
    assert len(tree.paths) == 1
    assert length == 1.0  # what is right in one stretch never is in the next
    [(_, alone)] = tree_lengths([one], (1,))
    assert alone == 2.0


def scripted(law: RankLaw, tokens: list[int]) -> ScriptedDrafter:
    return ScriptedDrafter(lambda key, history: tokens, law=law, vocab_size=50, seed=7)


def text_of(length: int) -> Text:
    tokens = np.random.default_rng(5).integers(0, 50, length).tolist()
    return Text(domain="", prompt=tuple(tokens[:4]), output=tuple(tokens[4:]), sampling=Sampling())


def test_a_scripted_drafter_scores_its_law_rank_by_rank() -> None:
    text, law = text_of(64), RankLaw(a=0.6, b=0.5)
    [spots] = follow(scripted(law, text.tokens), [text], depth=5, width=4)
    assert len(spots) == len(text.output)
    for at, spot in enumerate(spots):
        expected: list[int] = []
        while len(expected) < spot.trail.known and 0 not in expected:
            _, rank, _ = law.draw(7, 4 + at + len(expected))
            expected.append(rank if rank <= 4 else 0)
        assert (spot.trail.ranks, spot.trail.silent) == (tuple(expected), False)
        assert spot.trail.known == min(5, len(text.output) - at)


def test_a_scripted_drafter_scores_its_a_and_b() -> None:
    text, law = text_of(6004), RankLaw(a=0.7, b=0.5)
    [spots] = follow(scripted(law, text.tokens), [text], depth=4, width=8)
    trails = [spot.trail for spot in spots]
    assert survival(trails, 4) == pytest.approx([0.7**depth for depth in range(1, 5)], abs=0.03)
    seen = after_a_miss(trails)
    assert seen.next_guesses == pytest.approx((0.5, 0.75, 0.875), abs=0.04)
    assert walked_length([trails], 4) == pytest.approx(1 + sum(0.7**depth for depth in range(1, 5)), abs=0.07)


def test_side_by_side_is_as_one_by_one() -> None:
    texts, law = [text_of(40), text_of(25), text_of(31)], RankLaw(a=0.6, b=0.4)

    def drafter() -> ScriptedDrafter:
        return ScriptedDrafter(lambda key, history: texts[key[1]].tokens, law=law, vocab_size=50)

    together = follow(drafter(), texts, depth=3, width=4)
    for number, text in enumerate(texts):
        own = ScriptedDrafter(lambda key, history, text=text: text.tokens, law=law, vocab_size=50)  # type: ignore[misc]
        assert follow(own, [text], depth=3, width=4) == [together[number]]


def test_lookup_is_followed_below_its_own_chains() -> None:
    """A text that repeats itself: after the first period all guesses are right, at every depth."""
    tokens = [1, 2, 3, 4, 5] * 5
    text = Text(domain="", prompt=tuple(tokens[:5]), output=tuple(tokens[5:]), sampling=Sampling())
    [spots] = follow(NgramDrafter(num_draft_tokens=4), [text], depth=4, width=3)
    assert [spot.trail.run for spot in spots[1:]] == [min(4, len(text.output) - at) for at in range(1, 20)]
    assert spots[3].guesses[0] == text.output[3]
