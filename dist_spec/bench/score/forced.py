"""Follows a drafter along known texts, teacher-forced: at every position it drafts below the true text, and is asked again
below each true token for as long as that was among its guesses. It knows no target, network or time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dist_spec.bench.score.ranks import Trail
from dist_spec.bench.score.texts import Text
from dist_spec.core.law import DraftLaw
from dist_spec.core.prefix import Prefix
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Expansion
from dist_spec.drafters.base import Drafter, ExpandRow, Featured, RequestKey

Features = npt.NDArray[np.float16]

Step = Callable[[int], None]
"""Told how many positions were done since the last call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spot:
    """One position: the trail, and the ids that the drafter guessed first, best first."""

    trail: Trail
    guesses: tuple[int, ...]


@dataclass(kw_only=True, slots=True)
class _Reader:
    """One text as far as the drafter knows it. Every position begins with an empty tree: what was drafted before the truth
    was known (with a head's own features, with a shorter text to look things up in) does not count."""

    key: RequestKey
    text: Text
    features: Features | None
    prefix: Prefix
    slots: list[int]
    told: int = 0
    spots: list[Spot] = field(default_factory=list)

    @property
    def at(self) -> int:
        """Generated tokens that it knows."""
        return len(self.prefix) - len(self.text.prompt)

    @property
    def left(self) -> int:
        return len(self.text.output) - self.at

    def tree(self) -> DraftTree:
        return DraftTree(len(self.prefix), self.prefix.tokens[-1])

    def row(self, tree: DraftTree, leaf: int, *, width: int) -> ExpandRow:
        return ExpandRow(
            key=self.key,
            history=self.prefix.tokens,
            history_slots=self.slots,
            prompt_length=len(self.text.prompt),
            generated_offset=0,
            sampling=self.text.sampling,
            tree=tree,
            leaves=[leaf],
            width=width,
            digest=self.prefix.digest,
        )

    def go_on(self) -> None:
        self.prefix.extend([self.text.output[self.at]])
        self.slots.append(-1)


@dataclass(kw_only=True, slots=True)
class _Walk:
    """One position being followed."""

    reader: _Reader
    tree: DraftTree
    node: int
    known: int
    ranks: list[int] = field(default_factory=list)
    guesses: tuple[int, ...] = ()

    def take(self, expansion: Expansion) -> bool:
        """Guesses below the true path; whether to ask again one deeper."""
        tree, node, level = self.tree, self.node, len(self.ranks)
        tree.graft(node, expansion.tokens, expansion.parents, expansion.scores)
        ids = [tree.token[child] for child in tree.children[node]]
        if level == 0:
            self.guesses = tuple(ids)
        truth = self.reader.text.output[self.reader.at + level]
        below = tree.child(node, truth)
        self.ranks.append(ids.index(truth) + 1 if below is not None else 0)
        if below is None or len(self.ranks) == self.known:
            return False
        self.node = below
        return True

    def spot(self) -> Spot:
        trail = Trail(ranks=tuple(self.ranks), known=self.known, silent=not self.guesses)
        return Spot(trail=trail, guesses=self.guesses)


def follow(
    drafter: Drafter,
    texts: Sequence[Text],
    *,
    depth: int,
    width: int,
    features: Sequence[Features | None] | None = None,
    life: int = 0,
    step: Step = lambda count: None,
) -> list[list[Spot]]:
    """The drafter's guesses at every position of every text; texts are drafted for side by side, as in a batch.

    Args:
        depth: tokens ahead at most.
        width: guesses asked for below each token.
        features: per text, the target's (row i after reading token i), for drafters that take them.
        life: tells these requests from others of the same drafter.
    """
    readers = _readers(texts, features, life=life)
    active = [reader for reader in readers if reader.left > 0]
    while active:
        _tell(drafter, active)
        for walk in _position(drafter, active, depth=depth, width=width):
            walk.reader.spots.append(walk.spot())
        step(len(active))
        active = _advance(drafter, active)
    return [reader.spots for reader in readers]


def laws(
    drafter: Drafter,
    texts: Sequence[Text],
    *,
    features: Sequence[Features | None] | None = None,
    life: int = 0,
    step: Step = lambda count: None,
) -> Iterator[list[tuple[int, int, DraftLaw | None]]]:
    """Position by position, for every text that has one: (text, generated index, the law of its first guess).

    Args:
        drafter: one that draws from laws; a law is None where it says none.
    """
    readers = _readers(texts, features, life=life)
    active = [reader for reader in readers if reader.left > 0]
    while active:
        _tell(drafter, active)
        trees = [reader.tree() for reader in active]
        rows = [reader.row(tree, tree.root, width=1) for reader, tree in zip(active, trees, strict=True)]
        found = [expansions[0].laws for expansions in drafter.expand(rows)]
        yield [
            (reader.key[1], reader.at, law[0] if len(law) else None) for reader, law in zip(active, found, strict=True)
        ]
        step(len(active))
        active = _advance(drafter, active)


def _readers(texts: Sequence[Text], features: Sequence[Features | None] | None, *, life: int) -> list[_Reader]:
    given = features if features is not None else [None] * len(texts)
    return [
        _Reader(
            key=(f"score-{life}-{number}", number),
            text=text,
            features=own,
            prefix=Prefix(text.prompt),
            slots=[-1] * len(text.prompt),
        )
        for number, (text, own) in enumerate(zip(texts, given, strict=True))
    ]


def _position(drafter: Drafter, active: Sequence[_Reader], *, depth: int, width: int) -> list[_Walk]:
    """One position of every text, as deep as the truth goes."""
    walks = []
    for reader in active:
        tree = reader.tree()
        walks.append(_Walk(reader=reader, tree=tree, node=tree.root, known=min(depth, reader.left)))
    open_walks = walks
    while open_walks:
        rows = [walk.reader.row(walk.tree, walk.node, width=width) for walk in open_walks]
        answers = drafter.expand(rows)
        open_walks = [walk for walk, one in zip(open_walks, answers, strict=True) if walk.take(one[0])]
    return walks


def _tell(drafter: Drafter, active: Sequence[_Reader]) -> None:
    """Features of what the target has read by now: all but the last known token, which it reads in the next verification."""
    if not isinstance(drafter, Featured):
        return
    for reader in active:
        known = len(reader.prefix) - 1
        if reader.features is not None and reader.told < known:
            drafter.features(reader.key, reader.told, reader.features[reader.told : known])
            reader.told = known


def _advance(drafter: Drafter, active: Sequence[_Reader]) -> list[_Reader]:
    for reader in active:
        reader.go_on()
        if reader.left == 0:
            drafter.close(reader.key)
    return [reader for reader in active if reader.left > 0]
