"""What every growth policy looks like, and the search they share. A policy looks at scores and depths only; it knows
nothing of models, messages or time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from dist_spec.core.draft import Draft
from dist_spec.core.tree import DraftTree

_SEARCH = 8
"""Leaves looked at for each one wanted, where most belong to others."""


class Growth(Protocol):
    """Decides what a drafter works on.

    Attributes:
        name: the setting's value.
        num_leaves: leaves it can use in one step.
        num_children: guesses wanted below each.
    """

    name: str
    num_leaves: int
    num_children: int

    def leaves(self, draft: Draft, limit: int) -> list[int]:
        """Node ids to expand next, best first, at most `limit`; empty: nothing useful to do now."""
        ...

    def ready(self, draft: Draft) -> bool:
        """Whether a draft that was asked for may be delivered as it stands."""
        ...


def best_leaves(
    tree: DraftTree, *, limit: int, max_depth: int, takes: Callable[[int], bool] | None = None
) -> list[int]:
    """Unexpanded nodes of highest path score above `max_depth`, the root included.

    Pure path score: biases toward depth or breadth and absolute score cuts were measured and lose (design section 11).

    Args:
        takes: which of them are wanted beside the best one (None: all).
    """
    if not tree.expanded[tree.root]:
        return [tree.root]
    found: list[int] = []
    heap: list[tuple[float, int, int]] = []
    left = limit if takes is None else _SEARCH * limit

    def offer(above: int, rank: int) -> None:
        siblings = tree.children[above]
        if rank < len(siblings):
            heapq.heappush(heap, (-tree.path[siblings[rank]], siblings[rank], rank))

    offer(tree.root, 0)
    while heap and len(found) < limit and left > 0:
        _, node, rank = heapq.heappop(heap)
        offer(tree.parent[node], rank + 1)
        if tree.depth(node) >= max_depth:
            continue
        if tree.expanded[node]:
            offer(node, 0)
            continue
        left -= 1
        if not found or takes is None or takes(node):
            found.append(node)
    return found


def chain_tip(tree: DraftTree, node: int, *, max_depth: int) -> int | None:
    """The node where the best chain from `node` stops being expanded; None when it is `max_depth` below the root or
    ends in a node without guesses."""
    while tree.depth(node) < max_depth:
        if not tree.expanded[node]:
            return node
        if not tree.children[node]:
            return None
        node = tree.children[node][0]
    return None
