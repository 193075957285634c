"""Where one request's draft K/V lie: a fixed region of slots, tree nodes in front, committed tokens behind them.

    base                      base + tree_slots                      base + tree_slots + max_context
     | ... free ... | tree nodes | committed token 0, 1, 2, ...            |

Tree slots are taken from the prefix outwards, so that what a leaf sees is one short run of slots that ends with the
committed text. Committed nodes are copied behind the prefix, nothing else is ever moved or computed again. It knows no
model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dist_spec.core.tree import DraftTree
from dist_spec.drafters.base import ExpandRow

TREE_SLOTS = 512
"""Nodes per request whose K/V are kept, unless told otherwise."""


@dataclass(kw_only=True)
class Region:
    """Slots of one request.

    Attributes:
        fed: committed tokens whose K/V are in place.
        seen: history length at the last look.
        free: tree slots (relative to `base`) to take, the last one first.
    """

    base: int
    tree_slots: int
    max_context: int
    fed: int = 0
    seen: int = 0
    free: list[int] = field(default_factory=list)

    @staticmethod
    def size(*, tree_slots: int, max_context: int) -> int:
        return tree_slots + max_context

    @property
    def prefix_start(self) -> int:
        return self.base + self.tree_slots

    def begin(self, row: ExpandRow) -> None:
        """Take the region over for `row`'s request: whatever slots its tree names belong to another life."""
        self.fed, self.seen = 0, len(row.history)
        for node in row.tree.nodes():
            row.tree.slot[node] = -1
        self.free = list(range(self.tree_slots))

    def adopt_commits(self, row: ExpandRow) -> tuple[list[int], list[int]]:
        """Moves (from, to; pool slots) that put newly committed nodes behind the prefix; counts them as fed.

        A history begins with a prompt, which was never a node: a region taken over afresh adopts nothing.
        """
        source: list[int] = []
        target: list[int] = []
        if len(row.history) < self.fed:  # never promised, yet cheap to survive
            self.begin(row)
        while self.fed < len(row.history) and row.history_slots[self.fed] >= 0:
            source.append(self.base + row.history_slots[self.fed])
            target.append(self.prefix_start + self.fed)
            self.fed += 1
        return source, target

    def after_commits(self, row: ExpandRow) -> None:
        """Once the moves are done: the root lives in the prefix now, and slots of vanished nodes are free."""
        row.tree.slot[row.tree.root] = -1
        if len(row.history) != self.seen:
            self.seen = len(row.history)
            self.recycle(row.tree)

    def recycle(self, tree: DraftTree) -> None:
        """Recompute the free slots from the tree: whatever no node below the root uses."""
        slot = tree.slot
        used = {slot[node] for node in tree.nodes() if node != tree.root}
        self.free = [s for s in range(self.tree_slots) if s not in used]

    def take(self, tree: DraftTree, node: int) -> bool:
        """Give `node` a slot; False if the tree has too many nodes with one."""
        if not self.free:
            self.recycle(tree)
        if not self.free:
            return False
        tree.slot[node] = self.free.pop()
        return True

    def prefix_slots(self, first: int, last: int) -> np.ndarray:
        """Pool slots of committed tokens first .. last - 1."""
        return np.arange(self.prefix_start + first, self.prefix_start + last, dtype=np.int64)


@dataclass(kw_only=True, slots=True)
class Feed:
    """What one request contributes to a forward: committed tokens from `first` on, then tree nodes, parents first.

    Attributes:
        paths: for each node the tree slots of its ancestors and itself, root side first.
        leaf_rows: for each leaf its row within this feed, or -1 (no guesses for it in this step).
    """

    region: Region
    first: int
    tokens: list[int]
    num_committed: int
    paths: list[list[int]]
    leaf_rows: list[int]


def plan_feed(row: ExpandRow, region: Region) -> Feed:
    """Choose what must be fed so that every leaf's logits come out; takes slots for nodes that have none.

    The last committed token is fed again where the root is a leaf and its K/V came from the tree.
    """
    tree, history = row.tree, row.history
    first = min(region.fed, len(history) - 1) if tree.root in row.leaves else region.fed
    committed = history[first:]
    tokens = list(committed)
    paths: list[list[int]] = []
    at: dict[int, int] = {}
    leaf_rows: list[int] = []
    for leaf in row.leaves:
        if len(history) + tree.depth(leaf) > region.max_context:
            leaf_rows.append(-1)
        elif leaf == tree.root:
            leaf_rows.append(len(committed) - 1)
        else:
            leaf_rows.append(_feed_path(tree, leaf, region, tokens, paths, at))
    return Feed(
        region=region, first=first, tokens=tokens, num_committed=len(committed), paths=paths, leaf_rows=leaf_rows
    )


def _feed_path(
    tree: DraftTree, leaf: int, region: Region, tokens: list[int], paths: list[list[int]], at: dict[int, int]
) -> int:
    """Add `leaf` and those above it that were never fed; the leaf's row, or -1 if slots ran out."""
    nodes: list[int] = []
    node = leaf
    while node != tree.root:
        nodes.append(node)
        node = tree.parent[node]
    slots: list[int] = []
    for node in reversed(nodes):
        fresh = tree.slot[node] < 0
        if fresh and not region.take(tree, node):
            return -1
        slots.append(tree.slot[node])
        if node not in at and (fresh or node == leaf):
            at[node] = len(tokens)
            tokens.append(tree.token[node])
            paths.append(list(slots))
    return at[leaf]
