"""Brings a cache to a number of tokens. It knows neither heads nor training, and shows nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dist_spec.distill.batches import Corpus
from dist_spec.distill.cache import Cache
from dist_spec.distill.collect import Prompts, make_shard
from dist_spec.distill.teacher import Teacher
from dist_spec.models.loading import LoadedModel

DEFAULT_TOKENS = 1_500_000
HELD_OUT_SHARDS = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """How much data.

    Attributes:
        tokens: generated tokens of the training split.
        held_out_shards: shards of the other split.
        worker, workers: this process makes every `workers`-th shard, from `worker` on; the others are made elsewhere.
    """

    tokens: int = DEFAULT_TOKENS
    held_out_shards: int = HELD_OUT_SHARDS
    worker: int = 0
    workers: int = 1


Tell = Callable[[int], None]
"""Is told how many tokens of the training split there are now."""


def fill(
    cache: Cache, prompts: Prompts, *, wanted: Wanted, teacher: Callable[[], Teacher], tell: Tell = lambda _: None
) -> int:
    """Make what is missing; whole shards that are there are never made again, so an interrupted filling goes on.

    Args:
        teacher: gives the teacher; called only if something is missing.
    Returns:
        Tokens of the training split; of several workers the others' are estimated to be as many as one's own.
    """
    made: list[Teacher] = []

    def shard(split: str, number: int, before: int) -> int:
        if cache.has(split, number):
            return cache.read(split, number).num_generated
        if not made:
            made.append(teacher())
        count = [before]

        def tick(new: int) -> None:
            count[0] += new
            tell(count[0])

        return make_shard(made[0], cache, prompts, split, number, tick=tick if split == "train" else None)

    for number in range(wanted.held_out_shards):
        if number % wanted.workers == wanted.worker:
            shard("held_out", number, 0)
    total, number = 0, 0
    while total < wanted.tokens:
        mine = number % wanted.workers == wanted.worker
        if mine:
            total += shard("train", number, total) * (1 if wanted.workers == 1 else wanted.workers)
        number += 1
        tell(min(total, wanted.tokens))
    return total


def corpora(cache: Cache) -> tuple[Corpus, Corpus, Callable[[], None]]:
    """The training and the held-out corpus of a cache, and what adds shards that appeared since."""
    train, held_out = Corpus(cache.recipe), Corpus(cache.recipe)

    def refresh() -> None:
        for split, corpus in (("train", train), ("held_out", held_out)):
            for number in cache.numbers(split):
                if number not in corpus.shards:
                    corpus.add(number, cache.read(split, number))

    refresh()
    return train, held_out, refresh


def default_folder(root: Path, loaded: LoadedModel) -> Path:
    """Where a target's teacher data lies unless told otherwise."""
    return root / f"distill-{''.join(c if c.isalnum() or c in '.-_' else '-' for c in loaded.name)}"
