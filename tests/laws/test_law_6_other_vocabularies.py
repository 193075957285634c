"""Law 6 for a drafter with another vocabulary: the law that travels is that of the target's ids, several of the drafter's
tokens with the same bytes counted together. Exact enumeration; telling the law of one of them alone shifts the text's law.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dist_spec.core.law import LAW_TOTAL, DraftLaw
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Sampling
from dist_spec.drafters.base import ExpandRow
from dist_spec.drafters.chooser import Chooser
from dist_spec.drafters.draw import LawSettings
from dist_spec.drafters.intersection import restricted
from dist_spec.drafters.vocabularies import Columns
from tests.laws.chain_cases import Chance, Decisions, Drafter, generate
from tests.laws.enumeration import Table, error, law_of, texts
from tests.laws.session_chains import PROMPT, Schedule, enumerated_pair, sampling

EXACT = 1e-12
TEMPERATURE = 0.7
TO_TARGET = (2, 0, -1, 1, 0, 2)
"""The target's id of each of six drafter ids: two of its three come from two of them, one drafter token is none of it."""
TO_DRAFTER = (1, 3, 0)
COLUMNS = Columns(
    target_ids=np.array([0, 1, 2]),
    drafter_ids=np.array([1, 3, 0]),
    more=((np.array([4, 5]), np.array([0, 2])),),
)
LAWS = {"sparse": LawSettings(size=8), "dense": LawSettings(dense=True)}


class Translated(Drafter):
    """A table over the drafter's ids, through the code that restricts, sums and draws."""

    def __init__(
        self,
        model: Table,
        decisions: Decisions,
        *,
        laws: LawSettings,
        columns: Columns = COLUMNS,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(model, decisions, size=0)
        self._columns, self._temperature = columns, temperature
        self._chooser = Chooser(vocab_size=3, laws=laws, ids=columns.target_ids)

    def law(self, prefix: tuple[int, ...]) -> DraftLaw:
        if prefix not in self._laws:
            logits = torch.from_numpy(self.model.logits([TO_DRAFTER[token] for token in prefix])[None])
            row = ExpandRow(
                key=("r", 0),
                history=list(prefix),
                history_slots=[-1] * len(prefix),
                prompt_length=0,
                generated_offset=0,
                sampling=Sampling(temperature=self._temperature),
                tree=DraftTree(len(prefix)),
                leaves=[0],
                width=1,
            )
            [guess] = self._chooser.guess(row, [0], restricted(logits, self._columns, temperature=self._temperature))
            [law] = guess.laws
            assert law is not None
            self._laws[prefix] = law
        return self._laws[prefix]


class OneAlone(Translated):
    """The mutant: draws from the sum, tells what one of the drafter's tokens has (renormalised)."""

    def next(self, chance, prefix):
        token, _ = super().next(chance, prefix)
        only = Translated(self.model, self.decisions, laws=LAWS["dense"], columns=replace(COLUMNS, more=())).law(prefix)
        return token, only


def by_hand(model: Table, prefix: tuple[int, ...], temperature: float) -> np.ndarray:
    """Pushforward of the drafter's law at this temperature, given that the token is one of the target's."""
    weights = np.exp(model.logits([TO_DRAFTER[token] for token in prefix]).astype(np.float64) / temperature)
    sums = np.zeros(3)
    for ours, theirs in enumerate(TO_TARGET):
        if theirs >= 0:
            sums[theirs] += weights[ours]
    return sums / sums.sum()


@pytest.mark.parametrize("laws", LAWS)
@pytest.mark.parametrize("temperature", [1.0, TEMPERATURE])
def test_the_told_law_is_the_sum_over_tokens_with_the_same_bytes(laws, temperature):
    model = Table(6, seed=3)
    for prefix in [(), (0,), (2, 1)]:
        law = Translated(model, Decisions(Table(3, seed=1)), laws=LAWS[laws], temperature=temperature).law(prefix)
        told = [law.probability(token) for token in range(3)]
        np.testing.assert_allclose(
            told, by_hand(model, prefix, temperature), atol=1e-6 if laws == "dense" else 2 / LAW_TOTAL
        )
        alone = replace(COLUMNS, more=())
        other = Translated(
            model, Decisions(Table(3, seed=1)), laws=LAWS[laws], columns=alone, temperature=temperature
        ).law(prefix)
        assert abs(other.probability(0) - law.probability(0)) + abs(other.probability(2) - law.probability(2)) > 0.01


@pytest.mark.parametrize("laws", LAWS)
def test_the_emitted_law_is_the_targets(laws):
    target, model = Table(3, seed=5), Table(6, seed=6)
    decisions = Decisions(target)
    draft = Translated(model, decisions, laws=LAWS[laws]).chain(2)
    law = law_of(lambda chance: generate(chance, target=target, draft=draft, length=3, decisions=decisions))
    assert error(law, texts(target, 3)) < EXACT


def test_telling_the_law_of_one_of_several_tokens_shifts_it():
    target, model = Table(3, seed=5), Table(6, seed=6)
    decisions = Decisions(target)
    draft = OneAlone(model, decisions, laws=LAWS["dense"]).chain(2)
    law = law_of(lambda chance: generate(chance, target=target, draft=draft, length=3, decisions=decisions))
    assert error(law, texts(target, 3)) > 0.01


def test_through_both_ends_of_the_protocol():
    target, model = Table(3, seed=15), Table(6, seed=16)
    decisions = Decisions(target)
    drafter = Translated(model, decisions, laws=LAWS["sparse"])

    def run(chance: Chance) -> tuple[int, ...]:
        pair = enumerated_pair(chance, target=target, drafter=drafter, decisions=decisions, schedule=Schedule())
        return pair.run({"r": sampling(2)})["r"]

    assert error(law_of(run), texts(target, 2, PROMPT)) < EXACT
