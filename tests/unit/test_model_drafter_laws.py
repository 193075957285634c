"""The model drafter under a rule that weighs: one guess per leaf, drawn from a law that travels, by noise of its prefix."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from dist_spec.core.law import LAW_MASS, LAW_TOTAL
from dist_spec.core.noise import DRAFT, request_key, word
from dist_spec.core.prefix import Prefix
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Expansion, Sampling
from dist_spec.drafters.base import ExpandRow
from dist_spec.drafters.draw import LawSettings
from dist_spec.drafters.model import ModelDrafter
from tests.unit.model_cases import ids, stock_logits, tiny

SAMPLING = Sampling(temperature=0.8, seed=11)


def row(
    history: list[int], *, sampling: Sampling = SAMPLING, tree: DraftTree | None = None, leaf: int = 0
) -> ExpandRow:
    return ExpandRow(
        key=("a", sampling.seed),
        history=history,
        history_slots=[-1] * len(history),
        prompt_length=5,
        generated_offset=0,
        sampling=sampling,
        tree=tree or DraftTree(len(history), history[-1]),
        leaves=[leaf],
        width=1,
        digest=Prefix(history).digest,
    )


def drafter(laws: LawSettings) -> ModelDrafter:
    return ModelDrafter(tiny("llama"), max_context=64, tree_slots=32, laws=laws)


def guess(laws: LawSettings, *rows: ExpandRow) -> Expansion:
    return drafter(laws).expand(rows)[0][0]


def probs(text: list[int], temperature: float = 0.8) -> np.ndarray:
    logits = stock_logits(tiny("llama"), text)[-1].double().numpy() / temperature
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


@pytest.mark.parametrize("laws", [LawSettings(size=16), LawSettings(size=300), LawSettings(dense=True)])
def test_the_law_is_the_models_own_and_the_token_is_its_draw(laws):
    history = ids(8)
    one = guess(laws, row(history))
    [law] = one.laws
    true = probs(history)
    word_of_it = word(request_key(11, 0), domain=DRAFT, index=3, epoch=Prefix(history).digest)
    assert one.tokens.tolist() == [law.draw(word_of_it)]
    assert one.scores.tolist() == [0.0]
    law.check(token=int(one.tokens[0]), vocab_size=259)
    told = np.array([law.probability(token) for token in range(259)])
    if laws.dense:
        np.testing.assert_allclose(told, true, atol=1e-5)
        return
    named = np.argsort(-true)[: len(law.ids)]
    assert sorted(named) == law.ids.tolist()
    assert len(law.ids) == 16 or true[named].sum() >= LAW_MASS > true[named[:-1]].sum()
    np.testing.assert_allclose(told[named], true[named] / true[named].sum(), atol=2 / LAW_TOTAL + 1e-4)


def test_the_same_prefix_repeats_its_draw_and_another_one_has_fresh_noise():
    laws = LawSettings(size=64)
    history = ids(8)
    assert guess(laws, row(history)).tokens[0] == guess(laws, row(history)).tokens[0]
    tree = DraftTree(len(history) - 1, history[-2])
    [node] = tree.graft(0, np.array([history[-1]], np.int32), np.array([-1], np.int32), np.zeros(1, np.float32))
    drafted = guess(laws, row(history[:-1], tree=tree, leaf=node))  # the last token is a guess now, the prefix the same
    assert drafted.tokens[0] == guess(laws, row(history)).tokens[0]
    other = [*history[:-1], history[-1] ^ 1]
    digests = {row(one).digest_before(0) for one in (history, other)}
    assert len(digests) == 2


def test_draws_follow_the_law_over_seeds():
    laws, history = LawSettings(size=4), ids(8)
    one = drafter(laws)
    found: Counter[int] = Counter()
    for seed in range(400):
        [[drawn]] = one.expand([row(history, sampling=replace(SAMPLING, seed=seed))])
        found[int(drawn.tokens[0])] += 1
        one.close(("a", seed))
    law = drawn.laws[0]
    assert set(found) <= set(law.ids.tolist())
    for token in law.ids.tolist():
        expected = law.probability(token)
        assert abs(found[token] / 400 - expected) < 5 * np.sqrt(expected * (1 - expected) / 400) + 1e-3


def test_a_truncated_request_gets_a_truncated_law():
    history = ids(8)
    best = np.argsort(-probs(history))[:3]
    for laws in (LawSettings(size=64), LawSettings(dense=True)):
        [law] = guess(laws, row(history, sampling=replace(SAMPLING, top_k=3))).laws
        told = np.array([law.probability(token) for token in range(259)])
        assert sorted(np.flatnonzero(told)) == sorted(best)


def test_at_temperature_zero_the_guess_is_the_only_possibility():
    history = ids(8)
    one = guess(LawSettings(), row(history, sampling=Sampling()))
    assert one.tokens.tolist() == [int(probs(history).argmax())]
    assert not any(one.laws)
