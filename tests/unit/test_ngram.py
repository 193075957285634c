"""Prompt lookup: what it guesses, how it scores it, and that its scores become hit rates."""

from __future__ import annotations

import time

import numpy as np
import pytest

from dist_spec.core.tree import DraftTree
from dist_spec.core.types import NO_PARENT, Expansion, Sampling
from dist_spec.drafters.base import ExpandRow
from dist_spec.drafters.ngram import NUM_FEATURES, NgramDrafter
from dist_spec.errors import ConfigError


def row(history, *, tree=None, leaves=None, width=4, prompt_length=None, key=("r", 0)) -> ExpandRow:
    tree = tree or DraftTree(len(history), history[-1] if history else -1)
    return ExpandRow(
        key=key,
        history=history,
        history_slots=[-1] * len(history),
        prompt_length=len(history) if prompt_length is None else prompt_length,
        generated_offset=0,
        sampling=Sampling(),
        tree=tree,
        leaves=[tree.root] if leaves is None else leaves,
        width=width,
    )


def expand(drafter, history, **settings) -> Expansion:
    return drafter.expand([row(history, **settings)])[0][0]


def chains(expansion: Expansion) -> list[list[int]]:
    """Paths from the leaf to every last node."""
    parents, tokens = expansion.parents.tolist(), expansion.tokens.tolist()
    paths: list[list[int]] = []
    for node in sorted(set(range(len(tokens))) - set(parents)):
        path = []
        while node != NO_PARENT:
            path.append(tokens[node])
            node = parents[node]
        paths.append(path[::-1])
    return paths


def phrases(count: int, seed: int) -> list[int]:
    """A text in which phrases come back, with noise between them."""
    random = np.random.default_rng(seed)
    known = [random.integers(0, 500, random.integers(5, 15)).tolist() for _ in range(20)]
    text: list[int] = []
    while len(text) < count:
        text += known[random.integers(20)] if random.random() < 0.8 else random.integers(0, 500, 5).tolist()
    return text[:count]


def test_continues_the_last_occurrence():
    guess = expand(NgramDrafter(num_draft_tokens=3), [1, 2, 3, 4, 5, 6, 7, 1, 2, 3])
    assert chains(guess) == [[4, 5, 6]]
    assert guess.parents.tolist() == [NO_PARENT, 0, 1]
    assert (guess.tokens.dtype, guess.parents.dtype, guess.scores.dtype) == (np.int32, np.int32, np.float32)


def test_longest_match_comes_first_then_the_latest():
    """After 2 3 came 4; after another 3 came 9 and, later, 8."""
    history = [2, 3, 4, 0, 7, 3, 9, 0, 6, 3, 8, 0, 2, 3]
    guess = expand(NgramDrafter(num_draft_tokens=1), history)
    assert chains(guess)[0] == [4]
    assert sorted(chains(guess)) == [[4], [8], [9]]
    assert guess.scores.tolist() == sorted(guess.scores.tolist(), reverse=True)  # best sibling first
    assert np.exp(guess.scores).sum() < 1.0  # siblings exclude each other
    assert chains(expand(NgramDrafter(num_draft_tokens=1), history, width=1)) == [[4]]
    assert chains(expand(NgramDrafter(num_draft_tokens=1, max_chains=2), history)) == [[4], [8]]  # 8 is later than 9
    assert chains(expand(NgramDrafter(num_draft_tokens=1, min_ngram=2), history)) == [[4]]


def test_repetition_goes_on_periodically():
    guess = expand(NgramDrafter(num_draft_tokens=7, max_chains=1), [9, 1, 2, 1, 2])
    assert chains(guess) == [[1, 2, 1, 2, 1, 2, 1]]


def test_leaf_in_the_tree_continues_its_own_path():
    """The path below the root counts as text: 6 -> 7 was seen, and only the leaf ends in 6."""
    history = [5, 6, 7, 8, 0]
    tree = DraftTree(len(history), 0)
    leaf = tree.graft(tree.root, np.array([5, 6]), np.array([-1, 0]), np.zeros(2))[-1]
    drafter = NgramDrafter(num_draft_tokens=6, max_chains=1)
    at_root, at_leaf = drafter.expand([row(history, tree=tree, leaves=[tree.root, leaf])])[0]
    assert len(at_root.tokens) == 0
    assert chains(at_leaf) == [[7, 8, 0, 5, 6, 7]]


def test_nothing_known_nothing_guessed():
    drafter = NgramDrafter()
    for history in ([], [1], [1, 2, 3, 4]):
        guess = drafter.expand([row(history, key=(str(history), 0))])[0][0]
        assert len(guess.tokens) == len(guess.parents) == len(guess.scores) == 0


def test_growing_history_is_the_same_as_a_new_request():
    text = phrases(300, seed=4)
    grown, fresh = NgramDrafter(), NgramDrafter()
    for size in range(1, 300):
        grown_guess = expand(grown, text[:size], prompt_length=0)
        fresh.close(("r", 0))
        fresh_guess = expand(fresh, text[:size], prompt_length=0)
        assert grown_guess.tokens.tolist() == fresh_guess.tokens.tolist()
        assert grown_guess.scores.tolist() == fresh_guess.scores.tolist()


def test_requests_do_not_mix():
    drafter = NgramDrafter(num_draft_tokens=2, max_chains=1)
    drafter.expand([row([1, 2, 3, 1], key=("a", 0))])
    assert chains(drafter.expand([row([1, 7, 8, 1], key=("b", 0))])[0][0]) == [[7, 8]]
    drafter.close(("a", 0))
    drafter.close(("unknown", 3))
    assert len(drafter.expand([row([5, 6], key=("a", 0))])[0][0].tokens) == 0


def test_scores_become_the_measured_hit_rate():
    """On text with returning phrases the mean estimate of first guesses lies near the share that was right; on a
    shuffled text of the same tokens, the control, estimates fall."""
    text = phrases(1500, seed=1)
    mean, right, guessed = follow(text, start=300)
    assert guessed > 600
    assert right > 0.6
    assert mean == pytest.approx(right, abs=0.07)
    shuffled = np.random.default_rng(0).permutation(text).tolist()
    control_mean, control_right, _ = follow(shuffled, start=300)
    assert control_right < 0.1
    assert control_mean < 0.15


def follow(text: list[int], *, start: int) -> tuple[float, float, int]:
    """(mean estimated probability, share right, number) of first guesses along a text."""
    drafter = NgramDrafter()
    estimates, hits = [], []
    for size in range(start, len(text)):
        guess = expand(drafter, text[:size], prompt_length=start)
        if len(guess.tokens):
            estimates.append(float(np.exp(guess.scores[0])))
            hits.append(int(guess.tokens[0]) == text[size])
    return float(np.mean(estimates)), float(np.mean(hits)), len(hits)


def test_estimates_follow_a_change_of_the_text():
    """Forgetting: after the text stops repeating itself, the same match is trusted less."""
    phrase = list(range(10))
    drafter = NgramDrafter(max_chains=1)
    text = phrase * 6
    trusted = float(np.exp(expand(drafter, text, prompt_length=0).scores[0]))
    random = np.random.default_rng(3)
    for _ in range(60):  # known endings that now go on differently every time
        text = [*text, *phrase[:4], int(random.integers(100, 10_000))]
    text = [*text, *phrase[:4]]
    assert trusted > 0.85
    assert float(np.exp(expand(drafter, text, prompt_length=0).scores[0])) < 0.3


def test_guesses_are_described():
    """Score, match length, rank of the chain, step along it; the best nodes of all chains are kept."""
    history = [2, 3, 4, 0, 7, 3, 9, 0, 6, 3, 8, 0, 2, 3]
    guess = expand(NgramDrafter(num_draft_tokens=4), history)
    assert guess.features.shape == (len(guess.tokens), NUM_FEATURES)
    assert guess.features.dtype == np.float32
    assert guess.features[:, 0].tolist() == guess.scores.tolist()
    first = guess.tokens.tolist().index(4)
    assert guess.features[first, 1:].tolist() == [2.0, 0.0, 0.0]
    assert guess.features[first + 1, 1:].tolist() == [3.0, 0.0, 1.0]
    assert sorted(guess.features[guess.parents == NO_PARENT, 2].tolist()) == [0.0, 1.0, 2.0]


def test_improbable_chains_are_cut_short():
    """Three chains of 20 tokens would be 60 nodes; what is kept is the best by path score."""
    phrase = list(range(100, 130))
    history = [*phrase, 7, 5, 1, 2, 3, 4, 5, 7, 5, 9, 8, 7, 6, *phrase, 7, 5]
    guess = expand(NgramDrafter(num_draft_tokens=20), history)
    assert len(guess.tokens) <= 23
    lengths = [len(chain) for chain in chains(guess)]
    assert max(lengths) == lengths[0] > min(lengths)


def test_settings_are_checked():
    for settings in ({"min_ngram": 0}, {"min_ngram": 5}, {"max_ngram": 9}, {"num_draft_tokens": 0}, {"max_chains": 0}):
        with pytest.raises(ConfigError):
            NgramDrafter(**settings)


def test_an_expansion_is_cheap():
    """Under 100 us at 1000 tokens; the bound allows for a busy machine, the minimum is what is compared."""
    text = phrases(1100, seed=2)
    drafter = NgramDrafter()
    expand(drafter, text[:1000])
    taken = []
    for size in range(1001, 1100):
        request = row(text[:size], prompt_length=1000)
        start = time.perf_counter()
        drafter.expand([request])
        taken.append(time.perf_counter() - start)
    assert np.median(taken) < 200e-6
