"""What every drafter's claimed scores must be: log probabilities of which at most one per place can come true."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dist_spec.bench.random_drafter import RandomDrafter
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Expansion, Sampling
from dist_spec.drafters.base import Drafter, ExpandRow, Featured
from dist_spec.drafters.head import HeadDrafter
from dist_spec.drafters.intersection import IntersectionDrafter
from dist_spec.drafters.model import ModelDrafter
from dist_spec.drafters.ngram import NgramDrafter
from dist_spec.drafters.scripted import RankLaw, ScriptedDrafter
from dist_spec.drafters.suffix import SuffixDrafter
from dist_spec.drafters.text_match import TextDrafter
from tests.unit.head_cases import features_of, tiny_head
from tests.unit.model_cases import tiny
from tests.unit.vocabulary_cases import between, reader, shuffled, writer

VOCAB = 100
WIDTH = 8
ALPHABET = (
    90,
    96,
)  # few tokens, so that endings come back over and over, followed by different ones; text to all tokenizers
SLACK = 1e-3  # float32, and what of the law lies outside the candidates


def suffix() -> Drafter:
    return SuffixDrafter(num_draft_tokens=6)


def suffix_with_corpus() -> Drafter:
    texts = [np.random.default_rng(seed).integers(*ALPHABET, 400).tolist() for seed in range(3)]
    return SuffixDrafter(num_draft_tokens=6, corpus=texts)


def ngram() -> Drafter:
    return NgramDrafter(max_chains=WIDTH, num_draft_tokens=6)


def scripted() -> Drafter:
    return ScriptedDrafter(lambda key, history: [*history, *range(50)], law=RankLaw(a=0.6, b=0.5), vocab_size=VOCAB)


def model() -> Drafter:
    return ModelDrafter(tiny("llama"), max_context=256, tree_slots=64)


def head() -> Drafter:
    return HeadDrafter(tiny_head())


def intersection() -> Drafter:
    return IntersectionDrafter(reader(shuffled("llama")), both=between(writer("llama"), shuffled("llama")))


def text() -> Drafter:
    return TextDrafter(reader(shuffled("llama")), both=between(writer("llama"), shuffled("llama")))


def random_guesses() -> Drafter:
    return RandomDrafter(vocab_size=VOCAB)


KINDS: list[Callable[[], Drafter]] = [
    suffix,
    suffix_with_corpus,
    ngram,
    scripted,
    model,
    head,
    intersection,
    text,
    random_guesses,
]


def sums_by_parent(guess: Expansion) -> np.ndarray:
    parents = np.asarray(guess.parents)
    return np.bincount(parents + 1, weights=np.exp(guess.scores.astype(np.float64)), minlength=1)


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_probabilities_of_siblings_add_up_to_1_at_most(make: Callable[[], Drafter], temperature: float) -> None:
    drafter = make()
    most = branches = 0.0
    for seed in range(12):
        history = np.random.default_rng(seed).integers(*ALPHABET, 120).tolist()
        row = ExpandRow(
            key=(f"r{seed}", 0),
            history=history,
            history_slots=[-1] * len(history),
            prompt_length=60,
            generated_offset=0,
            sampling=Sampling(max_tokens=64, temperature=temperature),
            tree=DraftTree(len(history), history[-1]),
            leaves=[0],
            width=WIDTH,
        )
        if isinstance(drafter, Featured):
            drafter.features(row.key, 0, features_of(history))
        [[guess]] = drafter.expand([row])
        assert (guess.scores <= 0).all()
        sums = sums_by_parent(guess)
        most = max(most, float(sums.max(initial=0.0)))
        branches += float((np.bincount(np.asarray(guess.parents) + 1, minlength=1) > 1).sum())
        drafter.close(row.key)
    assert branches > 0  # else nothing was looked at
    assert most <= 1.0 + SLACK
