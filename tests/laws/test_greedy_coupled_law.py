"""Greedy and coupled verification emit the target's own text and law, whatever was drafted: exact enumeration over finite
noise, G-tests and text equality with the real noise, and mutations that must turn each of them red."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from dist_spec.core.noise import gumbel_row, request_key
from dist_spec.core.types import NO_PARENT
from dist_spec.core.verification.build import build_rule
from dist_spec.core.verification.coupled import CoupledRule

Noise = Callable[[int], np.ndarray]  # generated-token index -> one row
Tree = tuple[list[int], list[int]]  # tokens, parents
Drafter = Callable[["Model", tuple[int, ...], np.random.Generator], Tree]
TEMPERATURE = 0.7


class Model:
    """A table from prefix to logits, filled with random numbers."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self.vocab_size = vocab_size
        self._random = np.random.default_rng(seed)
        self._rows: dict[tuple[int, ...], torch.Tensor] = {}

    def row(self, prefix: tuple[int, ...]) -> torch.Tensor:
        if prefix not in self._rows:
            self._rows[prefix] = torch.tensor(self._random.normal(0.0, 1.5, self.vocab_size), dtype=torch.float32)
        return self._rows[prefix]

    def probabilities(self, prefix: tuple[int, ...]) -> np.ndarray:
        return torch.softmax(self.row(prefix).double() / TEMPERATURE, dim=0).numpy()

    def tree_rows(self, prefix: tuple[int, ...], tree: Tree) -> torch.Tensor:
        """Row 0 after the prefix, row 1 + i after node i, conditioned on exactly that node's path."""
        prefixes = [prefix]
        for token, parent in zip(*tree, strict=True):
            prefixes.append((*prefixes[parent + 1], token))
        return torch.stack([self.row(each) for each in prefixes])


def draft_nothing(model, prefix, random):
    return [], []


def draft_chain(model, prefix, random):
    """The likeliest tokens, as a good drafter would."""
    tokens: list[int] = []
    for _ in range(3):
        tokens.append(int(model.row((*prefix, *tokens)).argmax()))
    return tokens, [NO_PARENT, 0, 1]


def draft_worst(model, prefix, random):
    """The unlikeliest token and a chain below it."""
    return [int(model.row(prefix).argmin()), 0, 0], [NO_PARENT, 0, 1]


def draft_any(model, prefix, random):
    """A random tree with random tokens, repeated siblings included."""
    size = int(random.integers(0, 7))
    tokens = random.integers(0, model.vocab_size, size).tolist()
    return tokens, [int(random.integers(-1, node)) if node else NO_PARENT for node in range(size)]


def draft_all(model, prefix, random):
    """Every path of two tokens: the first is always right."""
    vocab = range(model.vocab_size)
    first = list(vocab)
    second = [token for _ in vocab for token in vocab]
    return first + second, [NO_PARENT] * len(first) + [node for node in vocab for _ in vocab]


DRAFTERS: dict[str, Drafter] = {
    "nothing": draft_nothing,
    "chain": draft_chain,
    "worst": draft_worst,
    "any": draft_any,
    "all": draft_all,
}
every_drafter = pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS.keys())


def generate(rule, model: Model, length: int, *, drafter: Drafter, noise: Noise, seed: int = 0) -> tuple[int, ...]:
    """The decoding loop: draft, verify, commit."""
    random = np.random.default_rng(seed) if drafter is draft_any else None
    text: tuple[int, ...] = ()
    while len(text) < length:
        done = len(text)
        tree = drafter(model, text, random)
        verdict = rule.verify(
            tokens=np.array(tree[0], dtype=np.int32),
            parents=np.array(tree[1], dtype=np.int32),
            logits=model.tree_rows(text, tree),
            noise_row=lambda depth, done=done: noise(done + depth),
        )
        text += verdict.tokens
    return text[:length]


# ------------------------------------------------------------------------------------------------ exact enumeration


LEVELS = (-0.9, 0.2, 1.6)  # a finite noise: each token's noise takes each level equally often


def enumerated_law(rule, model: Model, length: int, *, drafter: Drafter, shift: int = 0, reuse: bool = False):
    """Text -> number of noise assignments that lead to it, over all of them."""
    rows = [np.array(row) for row in itertools.product(LEVELS, repeat=model.vocab_size)]
    counts: Counter[tuple[int, ...]] = Counter()
    for chosen in itertools.product(rows, repeat=length):

        def noise(index: int, chosen=chosen) -> np.ndarray:
            at = 0 if reuse else index + shift
            return chosen[min(at, length - 1)]  # indices past the end only feed tokens that are cut off

        counts[generate(rule, model, length, drafter=drafter, noise=noise)] += 1
    return counts


def factorised_law(model: Model, length: int):
    """The same law from first principles: a product of one-position laws, no rule and no tree involved."""
    rows = [np.array(row) for row in itertools.product(LEVELS, repeat=model.vocab_size)]
    law: Counter[tuple[int, ...]] = Counter({(): 1})
    for _ in range(length):
        longer: Counter[tuple[int, ...]] = Counter()
        for prefix, ways in law.items():
            scaled = model.row(prefix).double().numpy() / TEMPERATURE
            for token, count in Counter(int((scaled + row).argmax()) for row in rows).items():
                longer[(*prefix, token)] += ways * count
        law = longer
    return law


@every_drafter
@pytest.mark.parametrize(("vocab_size", "length"), [(2, 2), (2, 3), (3, 2)])
def test_coupled_law_is_exact(drafter, vocab_size, length):
    model = Model(vocab_size, seed=vocab_size + length)
    rule = build_rule("coupled", temperature=TEMPERATURE)
    assert enumerated_law(rule, model, length, drafter=drafter) == factorised_law(model, length)


@pytest.mark.parametrize("mutation", [{"reuse": True}, {"shift": 1}])
def test_enumeration_sees_noise_of_the_wrong_position(mutation):
    model = Model(2, seed=5)
    rule = build_rule("coupled", temperature=TEMPERATURE)
    assert enumerated_law(rule, model, 3, drafter=draft_chain, **mutation) != factorised_law(model, 3)


@pytest.mark.parametrize("vocab_size", [2, 3])
def test_greedy_text_is_the_same_for_every_tree_of_three_nodes(vocab_size):
    rule = build_rule("greedy", temperature=0.0)
    model = Model(vocab_size, seed=3)
    plain = generate(rule, model, 5, drafter=draft_nothing, noise=_no_noise)
    longest = 0
    for tokens in itertools.product(range(vocab_size), repeat=3):
        for parents in itertools.product((-1,), (-1, 0), (-1, 0, 1)):
            tree = (list(tokens), list(parents))
            assert generate(rule, model, 5, drafter=lambda *_, tree=tree: tree, noise=_no_noise) == plain
            logits = model.tree_rows((), tree)
            arrays = [np.array(part, dtype=np.int32) for part in tree]
            verdict = rule.verify(tokens=arrays[0], parents=arrays[1], logits=logits, noise_row=None)
            assert verdict.tokens == plain[: len(verdict.tokens)]
            longest = max(longest, len(verdict.path))
    assert longest == 3  # the trees that were right were accepted


def _no_noise(index: int) -> np.ndarray:
    raise AssertionError("greedy asked for noise")


# -------------------------------------------------------------------------------------------------- the real noise


def real_noise(seed: int, vocab_size: int, *, shift: int = 0) -> Noise:
    key = request_key(seed, 0)
    return lambda index: gumbel_row(key, index + shift, vocab_size)


def g_test(texts: Counter, model: Model, length: int) -> float:
    """p-value of the counted texts under the target's autoregressive law."""
    cells = list(itertools.product(range(model.vocab_size), repeat=length))
    law = [np.prod([model.probabilities(text[:at])[text[at]] for at in range(length)]) for text in cells]
    expected = np.array(law) * sum(texts.values())
    observed = np.array([texts[text] for text in cells], dtype=float)
    rare = expected < 5.0
    if rare.any():
        expected = np.append(expected[~rare], expected[rare].sum())
        observed = np.append(observed[~rare], observed[rare].sum())
    return float(stats.power_divergence(observed, expected, lambda_="log-likelihood").pvalue)


def sampled_texts(rule, model: Model, length: int, *, drafter: Drafter, count: int, noise=real_noise) -> Counter:
    return Counter(
        generate(rule, model, length, drafter=drafter, noise=noise(seed, model.vocab_size), seed=seed)
        for seed in range(count)
    )


@every_drafter
@pytest.mark.parametrize(("vocab_size", "length"), [(3, 3), (5, 2)])
@pytest.mark.parametrize("count", [3_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_coupled_samples_have_the_target_law(drafter, vocab_size, length, count):
    model = Model(vocab_size, seed=11)
    rule = build_rule("coupled", temperature=TEMPERATURE)
    texts = sampled_texts(rule, model, length, drafter=drafter, count=count)
    assert g_test(texts, model, length) > 1e-6


class WrongRow:
    """Mutation: every position is judged by the first row."""

    def verify(self, *, tokens, parents, logits, noise_row):
        first = logits[:1].expand(len(logits), -1)
        return CoupledRule(temperature=TEMPERATURE).verify(
            tokens=tokens, parents=parents, logits=first, noise_row=noise_row
        )


class Trusting:
    """Mutation: the first drafted token is committed unseen."""

    def verify(self, *, tokens, parents, logits, noise_row):
        verdict = CoupledRule(temperature=TEMPERATURE).verify(
            tokens=tokens, parents=parents, logits=logits, noise_row=noise_row
        )
        return verdict if verdict.path else replace(verdict, tokens=(int(tokens[0]),))


def reused_noise(seed: int, vocab_size: int) -> Noise:
    """Mutation: all positions share one row."""
    return lambda index: gumbel_row(request_key(seed, 0), 0, vocab_size)


MUTATIONS = {
    "noise reused between positions": (build_rule("coupled", temperature=TEMPERATURE), reused_noise),
    "wrong row": (WrongRow(), real_noise),
    "draft trusted": (Trusting(), real_noise),
    "temperature forgotten": (build_rule("coupled", temperature=1.0), real_noise),
}


@pytest.mark.parametrize(("rule", "noise"), MUTATIONS.values(), ids=MUTATIONS.keys())
def test_g_test_sees_mutations(rule, noise):
    model = Model(3, seed=11)
    texts = sampled_texts(rule, model, 3, drafter=draft_chain, count=3_000, noise=noise)
    assert g_test(texts, model, 3) < 1e-6


@pytest.mark.parametrize("drafter", [draft_chain, draft_worst, draft_any, draft_all])
def test_coupled_text_equals_plain_text(drafter):
    model = Model(5, seed=2)
    rule = build_rule("coupled", temperature=TEMPERATURE)
    for seed in range(500):
        noise = real_noise(seed, 5)
        plain = generate(rule, model, 4, drafter=draft_nothing, noise=noise)
        assert generate(rule, model, 4, drafter=drafter, noise=noise, seed=seed) == plain


def test_text_equality_sees_a_shifted_index():
    """A shift by one keeps the law and breaks the text: only this test can see it."""
    model = Model(5, seed=2)
    rule = build_rule("coupled", temperature=TEMPERATURE)
    differing = sum(
        generate(rule, model, 4, drafter=draft_chain, noise=real_noise(seed, 5, shift=1))
        != generate(rule, model, 4, drafter=draft_nothing, noise=real_noise(seed, 5))
        for seed in range(50)
    )
    assert differing > 25
