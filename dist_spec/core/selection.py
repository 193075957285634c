"""Which draft-tree nodes are verified: the best ones by path score over all rows. Looks at scores and depths only."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from dist_spec.core.tree import DraftTree


def select_trees(trees: Sequence[DraftTree], *, depth_caps: Sequence[int], budget: int) -> list[list[int]]:
    """The `budget` nodes of highest path score over all trees, none deeper than its tree's cap.

    Best-first search from the roots; children are sorted, so a popped node offers its first child and its next sibling
    and the cost is O(budget log budget) however large the trees are. Returns node ids per tree, parents first.
    """
    chosen: list[list[int]] = [[] for _ in trees]
    heap: list[tuple[float, int, int, int, int]] = []
    serial = 0
    for row, (tree, cap) in enumerate(zip(trees, depth_caps, strict=True)):
        if cap > 0 and tree.children[tree.root]:
            first = tree.children[tree.root][0]
            heap.append((-tree.score(first), serial, row, tree.root, 0))
            serial += 1
    heapq.heapify(heap)
    while heap and budget > 0:
        _, _, row, above, rank = heapq.heappop(heap)
        tree = trees[row]
        siblings = tree.children[above]
        node = siblings[rank]
        chosen[row].append(node)
        budget -= 1
        if rank + 1 < len(siblings):
            heapq.heappush(heap, (-tree.score(siblings[rank + 1]), serial, row, above, rank + 1))
            serial += 1
        below = tree.children[node]
        if below and tree.depth(node) < depth_caps[row]:
            heapq.heappush(heap, (-tree.score(below[0]), serial, row, node, 0))
            serial += 1
    return [depth_first(tree, nodes) for tree, nodes in zip(trees, chosen, strict=True)]


def select_chains(trees: Sequence[DraftTree], *, depth_caps: Sequence[int], budget: int) -> list[list[int]]:
    """The best chain of every tree; the budget goes to the nodes of highest path score over all chains."""
    chains = [tree.best_chain(max(cap, 0)) for tree, cap in zip(trees, depth_caps, strict=True)]
    ranked = sorted(
        (-trees[row].score(node), depth, row) for row, chain in enumerate(chains) for depth, node in enumerate(chain)
    )
    taken = [0] * len(chains)
    for _, _, row in ranked[:budget]:
        taken[row] += 1
    return [chain[:count] for chain, count in zip(chains, taken, strict=True)]


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
