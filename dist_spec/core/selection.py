"""Which draft-tree nodes may be verified: the best ones by path score over all rows, in order. Looks at scores and depths
only; how many of them are worth it is another question (`control/budget.py`)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import TypeAlias

from dist_spec.core.tree import DraftTree

Ranked: TypeAlias = list[tuple[float, int, int]]
"""(log probability of the path, row, node), best first; any beginning is closed under ancestors."""

_CERTAIN = 1e-9


def rank_trees(trees: Sequence[DraftTree], *, depth_caps: Sequence[int], budget: int) -> Ranked:
    """The `budget` nodes of highest path score over all trees, none deeper than its tree's cap.

    Best-first search from the roots; children are sorted, so a popped node offers its first child and its next sibling
    and the cost is O(budget log budget) however large the trees are.
    """
    ranked: Ranked = []
    heap: list[tuple[float, int, int, int, int]] = []
    serial = 0
    for row, (tree, cap) in enumerate(zip(trees, depth_caps, strict=True)):
        if cap > 0 and tree.children[tree.root]:
            first = tree.children[tree.root][0]
            heap.append((tree.path[tree.root] - tree.path[first], serial, row, tree.root, 0))
            serial += 1
    heapq.heapify(heap)
    while heap and budget > 0:
        cost, _, row, above, rank = heapq.heappop(heap)
        tree = trees[row]
        siblings, path = tree.children[above], tree.path
        top, node = path[tree.root], siblings[rank]
        ranked.append((-cost, row, node))
        budget -= 1
        if rank + 1 < len(siblings):
            heapq.heappush(heap, (top - path[siblings[rank + 1]], serial, row, above, rank + 1))
            serial += 1
        below = tree.children[node]
        if below and tree.depth(node) < depth_caps[row]:
            heapq.heappush(heap, (top - path[below[0]], serial, row, node, 0))
            serial += 1
    return ranked


def rank_chains(trees: Sequence[DraftTree], *, depth_caps: Sequence[int], budget: int) -> Ranked:
    """The best chain of every tree; the nodes of highest path score over all chains."""
    chains = [tree.best_chain(max(cap, 0)) for tree, cap in zip(trees, depth_caps, strict=True)]
    ranked = sorted(
        (-trees[row].score(node), depth, row, node)
        for row, chain in enumerate(chains)
        for depth, node in enumerate(chain)
    )
    return [(-cost, row, node) for cost, _, row, node in ranked[:budget]]


def rank_blind(
    trees: Sequence[DraftTree], *, depth_caps: Sequence[int], budget: int, survival: Sequence[float]
) -> Ranked:
    """The only chain of every tree, by depth alone (law 5): what was drafted, and its score, is not looked at.

    Args:
        survival: probability that a chain is accepted up to the depth 1, 2, ..., at least `budget` of them.
    """
    chains = [tree.best_chain(min(max(cap, 0), budget)) for tree, cap in zip(trees, depth_caps, strict=True)]
    order = sorted((depth, row, node) for row, chain in enumerate(chains) for depth, node in enumerate(chain))
    return [(math.log(max(survival[depth], _CERTAIN)), row, node) for depth, row, node in order[:budget]]


def grouped(trees: Sequence[DraftTree], ranked: Ranked) -> list[list[int]]:
    """Node ids per tree, in depth-first pre-order."""
    chosen: list[list[int]] = [[] for _ in trees]
    for _, row, node in ranked:
        chosen[row].append(node)
    return [depth_first(tree, nodes) for tree, nodes in zip(trees, chosen, strict=True)]


def select_trees(trees: Sequence[DraftTree], *, depth_caps: Sequence[int], budget: int) -> list[list[int]]:
    """The nodes of `rank_trees` per tree, parents first."""
    return grouped(trees, rank_trees(trees, depth_caps=depth_caps, budget=budget))


def depth_first(tree: DraftTree, nodes: Sequence[int]) -> list[int]:
    """The same nodes (closed under ancestors) in depth-first pre-order, best branch first.

    Attention in batch-invariant mode copies a node's path behind the prefix; neighbours in this order share most of it.
    """
    if len(nodes) < 3:
        return sorted(nodes)
    wanted = set(nodes)
    order: list[int] = []
    stack = [tree.root]
    while stack:
        node = stack.pop()
        if node != tree.root:
            order.append(node)
        stack.extend(child for child in reversed(tree.children[node]) if child in wanted)
    return order
