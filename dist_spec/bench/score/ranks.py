"""At which rank the target's tokens stood among a drafter's guesses, and what follows for chains and trees of any size. Pure
arithmetic: it knows no drafter, no model and no time.

At every position of a known text the drafter is followed along the truth: the rank of the next token among its guesses,
then, below that token, the rank of the one after it, and so on until the truth is not among its guesses. A chain of N is
accepted as far as the ranks are all 1; a static tree (a set of rank paths) as far as the ranks spell a path of it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Path: TypeAlias = tuple[int, ...]
"""Ranks from the root down, counted from 1."""

NEXT = 3
"""Guesses after a miss that are looked at."""

STRETCH = 16
"""Positions in a row that are for choosing trees, or for judging them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trail:
    """One position.

    Attributes:
        ranks: of the true tokens, from the next one on; 0 (always the last) where the truth was not guessed.
        known: how many tokens of truth there were to compare with, at most as many as were asked for.
        silent: the drafter had no guess at all.
    """

    ranks: Path
    known: int
    silent: bool = False

    @property
    def path(self) -> Path:
        """The ranks without the miss at their end."""
        return self.ranks[:-1] if self.ranks and self.ranks[-1] == 0 else self.ranks

    @property
    def run(self) -> int:
        """How far the chain of first guesses is right."""
        length = 0
        for rank in self.ranks:
            if rank != 1:
                break
            length += 1
        return length


def survival(trails: Sequence[Trail], depth: int) -> list[float]:
    """(depth,) share of positions at which the first 1, 2, ... guesses of the chain are all right; positions too close to
    the end of their text to tell are left out of that depth."""
    shares: list[float] = []
    for reached in range(1, depth + 1):
        able = [trail for trail in trails if trail.known >= reached]
        right = sum(trail.run >= reached for trail in able)
        shares.append(right / len(able) if able else 0.0)
    return shares


def chain_length(trails: Sequence[Trail], depth: int) -> float:
    """Expected tokens per verification of a chain of `depth`, over all positions alike."""
    return 1.0 + sum(survival(trails, depth))


def starts(text: Sequence[Trail], depth: int) -> list[int]:
    """The positions of one text at which verifications of a chain of `depth` begin, each where the one before it ended."""
    found: list[int] = []
    at = 0
    while at < len(text):
        found.append(at)
        at += min(text[at].run, depth) + 1
    return found


def walked_length(texts: Sequence[Sequence[Trail]], depth: int) -> float:
    """Tokens per verification when chains of `depth` are verified one after the other through every text: what a live
    deployment does that always has a chain ready."""
    steps = sum(len(starts(text, depth)) for text in texts)
    return sum(map(len, texts)) / steps if steps else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class AfterMiss:
    """Over positions: how often the first guess was right, and, where it was not, how often one of the next 1, 2, 3 was."""

    positions: int
    first: float
    next_guesses: tuple[float, ...]


def after_a_miss(trails: Sequence[Trail]) -> AfterMiss:
    """Counted along the texts."""
    able = [trail for trail in trails if trail.known]
    missed = [trail.ranks[0] for trail in able if trail.ranks[0] != 1]
    shares = [sum(2 <= rank <= number + 1 for rank in missed) for number in range(1, NEXT + 1)]
    return AfterMiss(
        positions=len(able),
        first=(len(able) - len(missed)) / len(able) if able else 0.0,
        next_guesses=tuple(hits / len(missed) if missed else 0.0 for hits in shares),
    )


def rank_shares(trails: Sequence[Trail], *, depth: int, width: int) -> list[list[float]]:
    """(depth, width) share of positions at which the truth at this depth stands at rank 1, 2, ..., given that all before it
    was among the guesses."""
    rows: list[list[float]] = []
    for level in range(depth):
        counts = Counter(trail.ranks[level] for trail in trails if len(trail.ranks) > level)
        total = sum(counts.values())
        rows.append([counts[rank] / total if total else 0.0 for rank in range(1, width + 1)])
    return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """A static tree, root left out.

    Attributes:
        paths: closed under prefixes, in the order in which they were worth most.
    """

    paths: tuple[Path, ...]

    @property
    def depth(self) -> int:
        return max(map(len, self.paths), default=0)

    def expanded(self) -> list[int]:
        """(depth,) nodes of every level, from the root's on, that have children: what a drafter expands in one step."""
        above = {path[:-1] for path in self.paths}
        return [sum(len(path) == level for path in above) for level in range(self.depth)]


class PathRates:
    """How often the truth begins with each rank path, over some positions.

    Args:
        trails: the positions; those too close to the end of their text count only as far as they reach.
    """

    def __init__(self, trails: Sequence[Trail]) -> None:
        self._able: Counter[int] = Counter()
        self._hits: Counter[Path] = Counter()
        self._below: dict[Path, set[int]] = {}
        for trail in trails:
            self._able.update(range(1, trail.known + 1))
            for level, rank in enumerate(trail.path):
                self._hits[trail.path[: level + 1]] += 1
                self._below.setdefault(trail.path[:level], set()).add(rank)

    def rate(self, path: Path) -> float:
        """Probability that a verification accepts down to the node at the end of `path`."""
        able = self._able[len(path)]
        return self._hits[path] / able if able else 0.0

    def best_tree(self, size: int) -> Tree:
        """The static tree of at most `size` nodes with the most expected tokens: the likeliest paths. Every smaller one is
        a beginning of it."""
        paths: list[Path] = []
        heap: list[tuple[float, Path]] = []

        def offer(path: Path) -> None:
            for rank in sorted(self._below.get(path, ())):
                below = (*path, rank)
                heapq.heappush(heap, (-self.rate(below), below))

        offer(())
        while heap and len(paths) < size:
            _, path = heapq.heappop(heap)
            paths.append(path)
            offer(path)
        return Tree(paths=tuple(paths))

    def length(self, tree: Tree) -> float:
        """Expected tokens per verification of the tree."""
        return 1.0 + sum(map(self.rate, tree.paths))


def tree_lengths(texts: Sequence[Sequence[Trail]], sizes: Sequence[int]) -> list[tuple[Tree, float]]:
    """The best static tree of every size, and its expected tokens per verification over all positions.

    A tree looks too good at the very positions that it was chosen on: those chosen on every second stretch of
    `STRETCH` positions are judged on the others, both ways round.
    """
    everything = [trail for text in texts for trail in text]
    halves: list[list[Trail]] = [[], []]
    for first in range(0, len(everything), STRETCH):
        halves[first // STRETCH % 2] += everything[first : first + STRETCH]
    largest = max(sizes, default=0)
    chosen = PathRates(everything).best_tree(largest)
    rates = [PathRates(half) for half in halves]
    judged = [(rates[0], chosen, 1.0)]  # too little to take apart
    if halves[1]:
        trees = [one.best_tree(largest) for one in rates]
        judged = [(rates[i], trees[1 - i], len(halves[i]) / len(everything)) for i in (0, 1)]
    found: list[tuple[Tree, float]] = []
    for size in sizes:
        length = sum(weight * rates.length(Tree(paths=tree.paths[:size])) for rates, tree, weight in judged)
        found.append((Tree(paths=chosen.paths[:size]), length))
    return found
