"""Draft laws as they travel: rounding, drawing, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from dist_spec.core.law import LAW_MASS, LAW_TOTAL, LEAST_IDS, DraftLaw, are_lawful, law_ids
from dist_spec.drafters.draw import dense_law, drawn, sparse_law
from dist_spec.errors import ProtocolError

NO_IDS = np.empty(0, np.int32)


def test_counts_are_integers_that_sum_and_name_nothing_impossible():
    random = np.random.default_rng(3)
    for size in (1, 2, 5, 64):
        probs = random.dirichlet(np.full(size, 0.05))
        ids = random.permutation(1000)[:size]
        law = DraftLaw.sparse(ids, probs)
        assert law.weights.sum() == LAW_TOTAL
        assert law.weights.min() >= 1
        assert (np.diff(law.ids) > 0).all()
        assert np.abs(law.weights / LAW_TOTAL - probs[np.argsort(ids)]).max() <= size / LAW_TOTAL
        assert sum(law.probability(int(one)) for one in law.ids) == 1.0
        law.check(token=int(law.ids[0]), vocab_size=1000)


def test_every_unit_of_a_sparse_law_is_drawn_by_one_sixteen_bit_number():
    law = DraftLaw.sparse([7, 3, 9], [0.5, 0.3, 0.2])
    drawn = [law.draw(unit << 48) for unit in range(LAW_TOTAL)]
    assert {token: drawn.count(token) for token in (3, 7, 9)} == dict(
        zip(law.ids.tolist(), law.weights.tolist(), strict=True)
    )
    assert law.draw((1 << 64) - 1) == 9


@pytest.mark.parametrize(
    ("law", "token", "fault"),
    [
        (DraftLaw(ids=np.array([1, 1], np.int32), weights=np.array([1, LAW_TOTAL - 1]), total=LAW_TOTAL), 1, "twice"),
        (DraftLaw(ids=np.array([1, 2], np.int32), weights=np.array([0, LAW_TOTAL]), total=LAW_TOTAL), 1, "sum"),
        (DraftLaw(ids=np.array([1, 2], np.int32), weights=np.array([5, 7]), total=12.0), 1, "sum"),
        (DraftLaw(ids=np.array([1, 99], np.int32), weights=np.array([1, LAW_TOTAL - 1]), total=LAW_TOTAL), 1, "beyond"),
        (DraftLaw(ids=np.array([1], np.int32), weights=np.array([1, LAW_TOTAL - 1]), total=LAW_TOTAL), 1, "counts"),
        (DraftLaw.sparse([1, 2], [0.5, 0.5]), 3, "probability 0"),
        (DraftLaw.dense([0.5, 0.0, 0.5]), 1, "probability 0"),
        (DraftLaw.dense(np.ones(12)), 1, "vocabulary"),
        (DraftLaw(ids=NO_IDS, weights=np.array([np.nan, 1.0], np.float32), total=1.0), 1, "finite"),
        (DraftLaw(ids=NO_IDS, weights=np.ones(3, np.float32), total=2.0), 1, "total"),
    ],
)
def test_a_law_that_is_none_is_refused(law, token, fault):
    with pytest.raises(ProtocolError, match=fault):
        law.check(token=token, vocab_size=10)


def test_all_tokens_of_a_proposal_are_taken_or_none():
    law = DraftLaw.sparse([1, 2], [0.5, 0.5])
    tokens = np.array([1, 5], np.int32)
    assert are_lawful(tokens, (law, None), vocab_size=10)
    assert are_lawful(tokens, (), vocab_size=10)
    assert not are_lawful(tokens, (law, law), vocab_size=10)
    assert not are_lawful(tokens, (law,), vocab_size=10)


def test_a_sparse_law_names_as_many_ids_as_carry_the_mass_and_none_that_cannot_come():
    probs = np.sort(np.random.default_rng(0).dirichlet(np.ones(200)))[::-1]
    count = law_ids(probs, size=1000)
    assert probs[: count - 1].sum() < LAW_MASS <= probs[:count].sum()
    assert law_ids(probs, size=16) == 16
    assert law_ids(np.array([0.999, 0.0005, 0.0003, 0.0001, 0.0001]), size=64) == LEAST_IDS
    assert law_ids(np.array([0.999, 0.001, 0.0, 0.0, 0.0]), size=64) == 2
    assert law_ids(np.array([0.9, 0.05]), size=64, mass=2.0) == 2


def test_the_law_is_the_softmax_of_the_scores_and_ties_go_to_the_smaller_id():
    ids = np.array([9, 4, 2, 7])
    law = sparse_law(ids, np.log([0.25, 0.25, 0.25, 0.25]), size=2)
    assert law.ids.tolist() == [2, 4]
    impossible = sparse_law(ids, np.array([0.0, -np.inf, -np.inf, -np.inf]), size=4)
    assert impossible.ids.tolist() == [9]
    row = dense_law(np.log([0.5, 0.25, 0.25]) + 3.0)
    assert [row.probability(token) for token in range(4)] == pytest.approx([0.5, 0.25, 0.25, 0.0])
    assert [row.draw(int(u * 2**64)) for u in (0.0, 0.49, 0.51, 0.99)] == [0, 0, 1, 2]


def test_a_guess_carries_its_law_and_no_score():
    law = DraftLaw.sparse([3, 8], [0.5, 0.5])
    guess = drawn(law, 1 << 63)
    assert guess.tokens.tolist() == [8]
    assert guess.scores.tolist() == [0.0]
    assert guess.laws == (law,)
