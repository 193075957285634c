"""Chains for the enumeration: drafters of a tiny vocabulary, and the decoding loop around the rejection rule."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch

from dist_spec.core.law import DraftLaw
from dist_spec.core.noise import ACCEPT, DRAFT, TARGET
from dist_spec.core.verification import weigh
from dist_spec.core.verification.rejection import RejectionRule
from dist_spec.core.verification.weigh import Draws
from dist_spec.drafters.draw import dense_law, sparse_law
from tests.laws.enumeration import Chance, Table, steps

Text = tuple[int, ...]
Chain = list[tuple[int, DraftLaw | None]]
Draft = Callable[[Chance, Text], Chain]
Name = Callable[[int, int, Hashable], Hashable]
"""(domain, index, epoch) -> which uniform number that is; one number for two of them is reuse."""


def fresh(domain: int, index: int, epoch: Hashable) -> Hashable:
    return domain, index, epoch


class Decisions:
    """Where the code under test changes its mind, measured once per situation; and the numbers to put it into each."""

    def __init__(self, target: Table, *, name: Name = fresh) -> None:
        self.target = target
        self.name = name
        self._points: dict[Hashable, list[float]] = {}

    def draw(self, chance: Chance, law: DraftLaw, *, index: int, epoch: Hashable) -> int:
        """A token that the law's own `draw` gives."""
        points = self._measured(("draw", _content(law)), lambda u: law.draw(int(u * 2.0**64)))
        return law.draw(int(chance.cut(self.name(DRAFT, index, epoch), points) * 2.0**64))

    def weigh(
        self, chance: Chance, domain: int, *, prefix: Text, token: int, law: DraftLaw | None, epoch: Hashable
    ) -> float:
        """A number for accepting `token` after `prefix`, or for replacing it."""
        row = self.target.probs(prefix)
        decision: Callable[[float], Any]
        if domain == ACCEPT:
            decision = lambda u: weigh.accepts(row, token, law, u=u)  # noqa: E731
        else:
            decision = lambda v: weigh.recover(row, token, law, v=v)  # noqa: E731
        points = self._measured((domain, prefix, token, _content(law)), decision)
        return chance.cut(self.name(domain, len(prefix), epoch), points)

    def noise_row(self, chance: Chance, prefix: Text, *, whose: Hashable = 0) -> np.ndarray:
        """Noise under which the target chooses each token as often as it should (that the real noise does is shown in
        test_greedy_coupled_law)."""
        row = self.target.probs(prefix)
        points = self._measured((TARGET, prefix), lambda v: weigh.pick(row, v))
        noise = np.zeros(len(row))
        noise[weigh.pick(row, chance.cut(self.name(TARGET, len(prefix), whose), points))] = 1e6
        return noise

    def _measured(self, situation: Hashable, decision: Callable[[float], Any]) -> list[float]:
        if situation not in self._points:
            self._points[situation] = steps(decision)
        return self._points[situation]


def _content(law: DraftLaw | None) -> Hashable:
    return None if law is None else (law.ids.tobytes(), law.weights.tobytes())


class Drafter:
    """A table that drafts: one law per prefix, drawn from as told.

    Args:
        size: ids in a sparse law; 0: dense; -1: the most likely token, as the only possibility.
    """

    def __init__(self, model: Table, decisions: Decisions, *, size: int) -> None:
        self.model = model
        self.decisions = decisions
        self.size = size
        self._laws: dict[Text, DraftLaw] = {}

    def law(self, prefix: Text) -> DraftLaw:
        if prefix not in self._laws:
            scores = self.model.logits(prefix).astype(np.float64)
            ids = np.arange(len(scores))
            self._laws[prefix] = sparse_law(ids, scores, size=self.size) if self.size else dense_law(scores)
        return self._laws[prefix]

    def next(self, chance: Chance, prefix: Text) -> tuple[int, DraftLaw | None]:
        if self.size < 0:
            return int(self.model.logits(prefix).argmax()), None
        law = self.law(prefix)
        return self.decisions.draw(chance, law, index=len(prefix), epoch=prefix), law

    def chain(self, length: int) -> Draft:
        def draft(chance: Chance, prefix: Text) -> Chain:
            drafted: Chain = []
            for _ in range(length):
                drafted.append(self.next(chance, (*prefix, *(token for token, _ in drafted))))
            return drafted

        return draft


def generate(
    chance: Chance,
    *,
    target: Table,
    draft: Draft,
    length: int,
    decisions: Decisions,
    rule: RejectionRule | None = None,
) -> Text:
    """Draft, verify, commit; the first `length` tokens. The epoch is where a verification starts."""
    rule = rule or RejectionRule(temperature=1.0)
    text: Text = ()
    while len(text) < length:
        chain = draft(chance, text)
        drafted = [token for token, _ in chain]
        text = verified(chance, text, chain, target=target, decisions=decisions, rule=rule, drafted=drafted)
    return text[:length]


def verified(
    chance: Chance,
    text: Text,
    chain: Chain,
    *,
    target: Table,
    decisions: Decisions,
    rule: RejectionRule,
    drafted: Sequence[int],
) -> Text:
    """The text after one verification."""

    def at(depth: int) -> Text:
        return (*text, *drafted[:depth])

    def uniforms(domain: int, depth: int) -> float:
        token, law = chain[depth]
        return decisions.weigh(chance, domain, prefix=at(depth), token=token, law=law, epoch=len(text))

    verdict = rule.verify(
        tokens=np.array(drafted, np.int32),
        parents=np.arange(-1, len(drafted) - 1, dtype=np.int32),
        logits=torch.from_numpy(np.stack([target.logits(at(depth)) for depth in range(len(drafted) + 1)])),
        noise_row=lambda depth: decisions.noise_row(chance, at(depth)),
        draws=Draws(laws=[law for _, law in chain], uniforms=uniforms),
    )
    return (*text, *verdict.tokens)
