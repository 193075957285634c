"""Exact laws by enumeration: run a piece of code once per way in which its uniform numbers can decide, and add up.

A uniform number is an interval: whoever is about to decide by it says where its decisions change (`cut`), the run goes on
once per piece, with the piece's midpoint as the number and its share as the weight. A number that is used twice stays
within the piece chosen first, so reused noise is enumerated as what it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

LAST = 1.0 - 2.0**-53


class Chance:
    """The decisions of one run: the first ones are given, later ones take their first alternative."""

    def __init__(self, given: Sequence[int] = ()) -> None:
        self._given = given
        self._pieces: dict[Hashable, tuple[float, float]] = {}
        self.taken: list[int] = []
        self.alternatives: list[int] = []
        self.weight = 1.0

    def cut(self, name: Hashable, points: Sequence[float]) -> float:
        """The number called `name`, on one side or the other of every point."""
        low, high = self._pieces.get(name, (0.0, 1.0))
        ends = [low, *sorted({point for point in points if low < point < high}), high]
        at = self._take(len(ends) - 1)
        self._pieces[name] = piece = (ends[at], ends[at + 1])
        self.weight *= (piece[1] - piece[0]) / (high - low)
        return (piece[0] + piece[1]) / 2.0

    def _take(self, count: int) -> int:
        place = len(self.taken)
        at = self._given[place] if place < len(self._given) else 0
        self.taken.append(at)
        self.alternatives.append(count)
        return at


def law_of(run: Callable[[Chance], Hashable], *, limit: int = 400_000) -> dict[Any, float]:
    """Outcome -> probability, over all ways in which `run` can go."""
    law: dict[Any, float] = {}
    open_runs: list[list[int]] = [[]]
    for _ in range(limit):
        if not open_runs:
            return law
        given = open_runs.pop()
        chance = Chance(given)
        outcome = run(chance)
        law[outcome] = law.get(outcome, 0.0) + chance.weight
        for place in range(len(given), len(chance.taken)):
            others = range(1, chance.alternatives[place])
            open_runs.extend([*chance.taken[:place], other] for other in others)
    raise AssertionError(f"more than {limit} runs")


def steps(decision: Callable[[float], Any]) -> list[float]:
    """Where a monotonous step function of a number in [0, 1) changes, to 2**-53."""
    found: list[float] = []

    def search(low: float, at_low: Any, high: float, at_high: Any) -> None:
        if at_low == at_high:
            return
        middle = (low + high) / 2.0
        if high - low <= 2.0**-53 or not low < middle < high:
            found.append(high)
            return
        at_middle = decision(middle)
        search(low, at_low, middle, at_middle)
        search(middle, at_middle, high, at_high)

    search(0.0, decision(0.0), LAST, decision(LAST))
    return found


class Table:
    """A model of a tiny vocabulary: a row of probabilities per prefix, as random numbers would have it.

    Args:
        zeros: share of tokens that are impossible.
        row: the same row for every prefix, instead.
    """

    def __init__(self, vocab_size: int, seed: int, *, zeros: float = 0.0, row: Sequence[float] | None = None) -> None:
        self.vocab_size = vocab_size
        self._seed = seed
        self._zeros = zeros
        self._same = None if row is None else np.array(row, dtype=np.float64)
        self._logits: dict[tuple[int, ...], np.ndarray] = {}

    def logits(self, prefix: Sequence[int]) -> np.ndarray:
        """(V,) float32, at temperature 1."""
        key = tuple(prefix)
        if key not in self._logits:
            with np.errstate(divide="ignore"):
                self._logits[key] = np.log(self._draw(key)).astype(np.float32)
        return self._logits[key]

    def probs(self, prefix: Sequence[int]) -> np.ndarray:
        """(V,) float64, of the rounded logits."""
        weights = np.exp(self.logits(prefix).astype(np.float64))
        return weights / weights.sum()

    def _draw(self, prefix: tuple[int, ...]) -> np.ndarray:
        if self._same is not None:
            return self._same
        random = np.random.default_rng([self._seed, len(prefix), *prefix])
        row = random.gamma(0.8, size=self.vocab_size) + 1e-3
        gone = random.random(self.vocab_size) < self._zeros
        gone[int(random.integers(self.vocab_size))] = False
        return np.where(gone, 0.0, row)


def texts(model: Table, length: int, prompt: Sequence[int] = ()) -> dict[tuple[int, ...], float]:
    """The law of plain decoding: a product of rows."""
    law: dict[tuple[int, ...], float] = {}
    for text in itertools.product(range(model.vocab_size), repeat=length):
        weight = 1.0
        for place, token in enumerate(text):
            weight *= float(model.probs([*prompt, *text[:place]])[token])
        if weight > 0.0:
            law[text] = weight
    return law


def error(law: dict[Any, float], true: dict[Any, float]) -> float:
    """Largest difference of one outcome's probability."""
    return max(abs(law.get(text, 0.0) - true.get(text, 0.0)) for text in law.keys() | true.keys())


def distance(law: dict[Any, float], true: dict[Any, float]) -> float:
    """Total variation."""
    return sum(abs(law.get(text, 0.0) - true.get(text, 0.0)) for text in law.keys() | true.keys()) / 2.0
