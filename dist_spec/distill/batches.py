"""Training batches out of shards, in an order that a seed decides. It knows the layout of shards and no model.

A batch holds whole sequences, and on each of them *chains*: places where the head starts to draft. Row i of the head reads
(features of position i, token i + 1) and is judged by the teacher's law after token i + 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from dist_spec.distill.cache import Recipe, Shard


@dataclass(kw_only=True, slots=True)
class Batch:
    """b sequences padded on the right to `rows` rows, m chains on each, k ids per law.

    Attributes:
        features: (b, rows, feature_size) float16.
        opening: (b,) int64, t_0.
        tokens: (b, rows) int64; row i holds t_{i+1}.
        starts: (b, m) int64, the row at which each chain starts.
        law_ids, law_probs: (steps, b, m, k) the teacher's law that step j of each chain is judged by.
        valid: (steps, b, m) bool: that law exists (the text did not end before).
        greedy: (b,) bool: the text was made at temperature 0.
        domains: per sequence, its domain's name.
    """

    features: torch.Tensor
    opening: torch.Tensor
    tokens: torch.Tensor
    starts: torch.Tensor
    law_ids: torch.Tensor
    law_probs: torch.Tensor
    valid: torch.Tensor
    greedy: torch.Tensor
    domains: tuple[str, ...]

    @property
    def num_positions(self) -> int:
        """Rows at which a chain starts: the unit in which training is counted."""
        return int(self.valid[0].sum())

    def to(self, device: torch.device) -> Batch:
        moved = {name: getattr(self, name).to(device) for name in self.__dataclass_fields__ if name != "domains"}
        return Batch(**moved, domains=self.domains)


@dataclass(frozen=True, slots=True)
class Place:
    """One sequence of one shard."""

    shard: int
    index: int


class Corpus:
    """Shards of one recipe, looked at in any order (their tensors are mapped from files)."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.shards: dict[int, Shard] = {}

    def add(self, number: int, shard: Shard) -> None:
        self.shards[number] = shard

    def places(self) -> list[Place]:
        """All sequences with at least one row to learn from."""
        return [
            Place(number, index)
            for number, shard in sorted(self.shards.items())
            for index in range(shard.num_sequences)
            if _rows(shard, index)[1] > _rows(shard, index)[0]
        ]

    @property
    def num_generated(self) -> int:
        return sum(shard.num_generated for shard in self.shards.values())

    def batch(
        self, places: Sequence[Place], *, num_chains: int, num_steps: int, generator: torch.Generator | None
    ) -> Batch:
        """See `Batch`.

        Args:
            num_chains: chains per sequence; a shorter text has fewer (the rest is marked as not valid).
            generator: chooses where chains start; None: as evenly as possible.
        """
        spans = [self._span(place) for place in places]
        rows = max(end - first for first, end in spans) - 1
        size = self.shards[places[0].shard].features.shape[1]
        top_k = self.shards[places[0].shard].top_ids.shape[1]
        number = len(places)
        features = torch.zeros((number, rows, size), dtype=torch.float16)
        tokens = torch.zeros((number, rows), dtype=torch.int64)
        starts = torch.zeros((number, num_chains), dtype=torch.int64)
        valid = torch.zeros((num_steps, number, num_chains), dtype=torch.bool)
        law_ids = torch.zeros((num_steps, number, num_chains, top_k), dtype=torch.int32)
        law_probs = torch.zeros((num_steps, number, num_chains, top_k), dtype=torch.float16)
        for row, (place, (first, end)) in enumerate(zip(places, spans, strict=True)):
            shard, count = self.shards[place.shard], end - first - 1
            features[row, :count] = shard.features[first : end - 1]
            tokens[row, :count] = shard.tokens[first + 1 : end]
            low, high = _rows(shard, place.index)
            chosen = _starts(low, high, num_chains, generator)
            starts[row, : len(chosen)] = chosen
            for step in range(num_steps):
                judged = chosen + step + 1
                there = judged < end - first
                judged = judged.clamp(max=end - first - 1) + first
                valid[step, row, : len(chosen)] = there
                law_ids[step, row, : len(chosen)] = shard.top_ids[judged]
                law_probs[step, row, : len(chosen)] = shard.top_probs[judged]
        return Batch(
            features=features,
            opening=torch.stack(
                [self.shards[p.shard].tokens[f] for p, (f, _) in zip(places, spans, strict=True)]
            ).long(),
            tokens=tokens,
            starts=starts,
            law_ids=law_ids,
            law_probs=law_probs,
            valid=valid,
            greedy=torch.tensor([self._is_greedy(place) for place in places]),
            domains=tuple(self._domain(place) for place in places),
        )

    def _span(self, place: Place) -> tuple[int, int]:
        offsets = self.shards[place.shard].offsets
        return int(offsets[place.index]), int(offsets[place.index + 1])

    def _is_greedy(self, place: Place) -> bool:
        return self._recipe.temperature(place.shard * self._recipe.per_shard + place.index) == 0

    def _domain(self, place: Place) -> str:
        shard = self.shards[place.shard]
        return shard.domain_names[int(shard.domains[place.index])]


def _rows(shard: Shard, index: int) -> tuple[int, int]:
    """Rows low .. high - 1 whose law is known: the law after the prompt's last token is the first one."""
    length = int(shard.offsets[index + 1] - shard.offsets[index])
    return max(0, int(shard.prompt_lengths[index]) - 2), length - 1


def _starts(low: int, high: int, count: int, generator: torch.Generator | None) -> torch.Tensor:
    if generator is None:
        step = max(1, -(-(high - low) // count))
        return torch.arange(low, high, step)
    return (torch.randperm(high - low, generator=generator)[:count] + low).sort().values


class Order:
    """In which order sequences are taken: pass after pass, each in an order of its own, drawn from (seed, pass).

    A pass takes the shards that exist when it begins, so that training may begin before the last shard is there. What it
    needs to go on after an interruption is `state`: the pass, its shards, and the batches taken of it.
    """

    def __init__(self, corpus: Corpus, *, batch_size: int, seed: int) -> None:
        self._corpus, self._batch_size, self._seed = corpus, batch_size, seed
        self.number = -1
        self.taken = 0
        self.shards: list[int] = []
        self._batches: list[list[Place]] = []

    @property
    def state(self) -> dict[str, object]:
        return {"number": self.number, "taken": self.taken, "shards": self.shards}

    def resume(self, state: dict[str, object]) -> None:
        """Go on where another order stood; its shards must be in the corpus."""
        self._begin(int(str(state["number"])), [int(n) for n in state["shards"]])  # type: ignore[attr-defined]
        self.taken = int(str(state["taken"]))

    def __iter__(self) -> Iterator[tuple[list[Place], torch.Generator]]:
        while True:
            if self.taken >= len(self._batches):
                self._begin(self.number + 1, sorted(self._corpus.shards))
            places = self._batches[self.taken]
            generator = torch.Generator().manual_seed(self._mix(self.number, self.taken + 1))
            self.taken += 1
            yield places, generator

    def _begin(self, number: int, shards: list[int]) -> None:
        self.number, self.taken, self.shards = number, 0, shards
        known = set(shards)
        places = [place for place in self._corpus.places() if place.shard in known]
        generator = torch.Generator().manual_seed(self._mix(number, 0))
        order = torch.randperm(len(places), generator=generator).tolist()
        size = self._batch_size
        self._batches = [
            [places[i] for i in order[first : first + size]] for first in range(0, max(len(order) - size, 0) + 1, size)
        ]

    def _mix(self, number: int, batch: int) -> int:
        return (self._seed * 1_000_003 + number) * 1_000_003 + batch
