"""The scripted drafter: its measured hit rates are the law's, its scores are honest, its guesses depend on nothing but
(seed, position)."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy import stats

from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Sampling
from dist_spec.drafters.base import ExpandRow
from dist_spec.drafters.scripted import RankLaw, ScriptedDrafter
from dist_spec.errors import ConfigError

VOCAB = 1000
TRUTH = np.random.default_rng(0).integers(0, VOCAB, 12_000).tolist()
KEY = ("r", 0)


def make(law: RankLaw, *, seed: int = 1, truth=TRUTH, vocab_size: int = VOCAB) -> ScriptedDrafter:
    return ScriptedDrafter(lambda key, history: truth, law=law, vocab_size=vocab_size, seed=seed)


def row(length: int, *, tree=None, leaves=None, width=4, truth=TRUTH, key=KEY) -> ExpandRow:
    tree = tree or DraftTree(length, truth[length - 1])
    return ExpandRow(
        key=key,
        history=truth[:length],
        history_slots=[-1] * length,
        prompt_length=5,
        generated_offset=0,
        sampling=Sampling(),
        tree=tree,
        leaves=[tree.root] if leaves is None else leaves,
        width=width,
    )


def root_guesses(drafter: ScriptedDrafter, positions, *, width: int):
    """(position, expansion at the root) for histories that end just before each position."""
    for position in positions:
        yield position, drafter.expand([row(position, width=width)])[0][0]


def ranks(drafter: ScriptedDrafter, *, count: int, width: int) -> np.ndarray:
    """How often the truth stood at each rank; the last entry: nowhere."""
    counts = np.zeros(width + 1)
    for position in range(10, 10 + count):
        expansion = drafter._guess(TRUTH, position, 0, width)
        found = np.flatnonzero(expansion.tokens == TRUTH[position])
        counts[found[0] if len(found) else width] += 1
    return counts


@pytest.mark.parametrize("concentration", [None, 2.0, 8.0])
@pytest.mark.parametrize(("a", "b"), [(0.87, 0.45), (0.5, 0.6)])
def test_hit_rates_are_those_of_the_law(a, b, concentration):
    count = 8000
    measured = ranks(make(RankLaw(a=a, b=b, concentration=concentration)), count=count, width=4)
    law = np.array([a, (1 - a) * b, (1 - a) * b * (1 - b), (1 - a) * b * (1 - b) ** 2, (1 - a) * (1 - b) ** 3])
    assert stats.power_divergence(measured, count * law, lambda_="log-likelihood").pvalue > 1e-6
    other = np.array([a + 0.05, *(law[1:] * (1 - a - 0.05) / (1 - a))])  # the control: a off by .05
    assert stats.power_divergence(measured, count * other, lambda_="log-likelihood").pvalue < 1e-6


def test_scores_are_the_probabilities_of_the_law():
    _, guess = next(root_guesses(make(RankLaw(a=0.8, b=0.5)), [20], width=4))
    np.testing.assert_allclose(np.exp(guess.scores), [0.8, 0.1, 0.05, 0.025], rtol=1e-6)
    assert guess.parents.tolist() == [-1] * 4


def test_confidence_varies_and_is_known():
    """With a concentration, positions scored high are right more often: in bins, hits match the scores."""
    drafter = make(RankLaw(a=0.7, b=0.5, concentration=2.0))
    scores, hits = [], []
    for position, guess in root_guesses(drafter, range(10, 4010), width=1):
        scores.append(float(np.exp(guess.scores[0])))
        hits.append(int(guess.tokens[0]) == TRUTH[position])
    scores, hits = np.array(scores), np.array(hits)
    assert np.std(scores) > 0.2
    for low in (0.0, 0.25, 0.5, 0.75):
        chosen = (scores >= low) & (scores < low + 0.25)
        assert chosen.sum() > 100
        assert hits[chosen].mean() == pytest.approx(scores[chosen].mean(), abs=4 * 0.5 / np.sqrt(chosen.sum()))


@pytest.mark.parametrize("law", [RankLaw(a=1.0, b=1.0), RankLaw(a=0.0, b=1.0), RankLaw(a=0.0, b=0.0)])
def test_extreme_laws(law):
    expected = [0, 0, 0]
    expected[0 if law.a == 1.0 else 1 if law.b == 1.0 else 2] = 200
    assert ranks(make(law), count=200, width=2).tolist() == expected
    assert np.isfinite(law.scores(law.a, width=4)).all()


def test_decoys_are_wrong_distinct_and_in_the_vocabulary():
    for vocab_size in (2, 3, 9, VOCAB):
        truth = [token % vocab_size for token in TRUTH[:400]]
        drafter = make(RankLaw(a=0.5, b=0.5), truth=truth, vocab_size=vocab_size)
        for position in range(10, 300):
            for stream in (0, 3):
                tokens = drafter._guess(truth, position, stream, 8).tokens.tolist()
                assert len(set(tokens)) == len(tokens) == min(8, vocab_size - 1)
                assert all(0 <= token < vocab_size for token in tokens)
                assert stream == 0 or truth[position] not in tokens


def grow(drafter: ScriptedDrafter, *, length: int, steps: int, width: int = 4) -> DraftTree:
    """Expand every node of the tree, level by level."""
    tree = DraftTree(length, TRUTH[length - 1])
    leaves = [tree.root]
    for _ in range(steps):
        grown: list[int] = []
        for leaf, guess in zip(
            leaves, drafter.expand([row(length, tree=tree, leaves=leaves, width=width)])[0], strict=True
        ):
            grown += tree.graft(leaf, guess.tokens, guess.parents, guess.scores)
        leaves = grown
    return tree


def test_truth_is_offered_on_the_true_path_only():
    """With a = 1 exactly one path is true; off it, every guess is a decoy."""
    tree = grow(make(RankLaw(a=1.0, b=0.5)), length=50, steps=4, width=3)
    true = [node for node in tree.nodes() if node != tree.root and tree.slot[node] == 1]
    assert tree.path_tokens(true[-1]) == TRUTH[50:53]  # the last level is not expanded yet, so its slots are unknown
    for node in tree.nodes():
        path = tree.path_tokens(node)
        on_truth = path == TRUTH[50 : 50 + len(path)]
        guesses = [tree.token[child] for child in tree.children[node]]
        if guesses:
            assert (TRUTH[50 + len(path)] in guesses) is on_truth


def test_guesses_do_not_depend_on_the_order_of_calls():
    """A drafter that restarts, or comes in late, makes the guesses the first one made; after a commit too."""
    law = RankLaw(a=0.8, b=0.6, concentration=2.0)
    early, late = make(law), make(law)
    for length in range(20, 60):
        early.expand([row(length)])
    tree = grow(early, length=60, steps=3)
    other = grow(late, length=60, steps=3)
    assert (tree.token, tree.parent, tree.path) == (other.token, other.parent, other.path)
    true = [node for node in tree.nodes() if tree.path_tokens(node) == TRUTH[60:62]]
    assert len(true) == 1  # both tokens were among four guesses, so that a commit keeps part of the tree
    tree.advance(TRUTH[60:62])
    after_commit = early.expand([row(62, tree=tree)])[0][0]
    _, anew = next(root_guesses(make(law), [62], width=4))
    assert after_commit.tokens.tolist() == anew.tokens.tolist()
    assert make(law, seed=2)._guess(TRUTH, 60, 0, 4).tokens.tolist() != early._guess(TRUTH, 60, 0, 4).tokens.tolist()


def test_history_that_left_the_truth_gets_decoys():
    drafter = make(RankLaw(a=1.0, b=0.5))
    request = row(30)
    request.history[25] = (request.history[25] + 1) % VOCAB
    for step in range(5):
        guess = drafter.expand([request])[0][0]
        assert TRUTH[30 + step] not in guess.tokens
        request.history.append(TRUTH[30 + step])
        request.tree = DraftTree(len(request.history), request.history[-1])
        request.leaves = [0]
    drafter.close(KEY)  # the same name again is a new request
    assert drafter.expand([row(30)])[0][0].tokens[0] == TRUTH[30]


def test_past_the_end_of_the_truth_come_decoys():
    drafter = make(RankLaw(a=1.0, b=0.5), truth=TRUTH[:40])
    tree = grow(drafter, length=39, steps=3, width=2)
    assert tree.token[tree.children[tree.root][0]] == TRUTH[39]
    assert max(tree.depth(node) for node in tree.nodes()) == 3


def test_bad_laws_are_refused():
    for settings in ({"a": 1.1, "b": 0.5}, {"a": 0.5, "b": -0.1}, {"a": 0.5, "b": 0.5, "concentration": 0.0}):
        with pytest.raises(ConfigError):
            RankLaw(**settings)
    with pytest.raises(ConfigError):
        RankLaw(a=1.0, b=0.5, concentration=2.0)
    with pytest.raises(ConfigError):
        make(RankLaw(a=0.5, b=0.5), vocab_size=1)


def test_expanding_many_leaves_is_cheap():
    """170 leaves of 8 children: some 60 us when their positions were met before (the bound allows a busy machine)."""
    drafter = make(RankLaw(a=0.87, b=0.5))
    tree = grow(drafter, length=100, steps=3, width=6)
    leaves = tree.nodes()[:170]
    request = row(100, tree=tree, leaves=leaves, width=8)
    drafter.expand([request])
    taken = []
    for _ in range(30):
        start = time.perf_counter()
        drafter.expand([request])
        taken.append(time.perf_counter() - start)
    assert min(taken) < 500e-6
