"""Where one request's rows of a draft head lie, and which of them rest on the target's own features. It knows no tensors.

There is a row per token (the first one of a text has none): that of token j reads the state of position j - 1 and predicts
token j + 1. Rows of committed tokens form the *trunk*, a window that moves along with the text; those of drafted tokens lie
before it, as in `draft_cache`:

    base               base + tree_slots                     base + tree_slots + 2 * window
     | free | tree nodes | trunk: token origin, origin + 1, ...      |
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dist_spec.core.types import HalfArray
from dist_spec.drafters.base import ExpandRow

BoolArray = npt.NDArray[np.bool_]


@dataclass(kw_only=True)
class HeadRegion:
    """Slots of one request.

    Attributes:
        window: how many tokens of the past a row sees.
        origin: token whose row lies first in the trunk.
        seen: history length at the last look.
        placed: per trunk row, whether its K/V are there; `true`: they rest on the target's features.
        answered: per slot (tree first), whether the row's output is there.
        features: the target's, by position, not used yet.
        free: tree slots (relative to `base`) to take, the last one first.
    """

    base: int
    tree_slots: int
    window: int
    origin: int = 0
    seen: int = 0
    placed: BoolArray = field(init=False)
    true: BoolArray = field(init=False)
    answered: BoolArray = field(init=False)
    features: dict[int, HalfArray] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.placed = np.zeros(2 * self.window, np.bool_)
        self.true = np.zeros(2 * self.window, np.bool_)
        self.answered = np.zeros(self.tree_slots + 2 * self.window, np.bool_)

    @staticmethod
    def size(*, tree_slots: int, window: int) -> int:
        return tree_slots + 2 * window

    def begin(self, row: ExpandRow) -> None:
        """Take the region over for `row`'s request: whatever slots its tree names belong to another life."""
        self._clear()
        self.seen = len(row.history)
        self.origin = max(0, self.seen - self.window)
        for node in row.tree.nodes():
            row.tree.slot[node] = -1
        self.free = list(range(self.tree_slots))

    def trunk(self, token: int) -> int:
        """Slot, relative to `base`, of the row of a committed token."""
        return self.tree_slots + token - self.origin

    def answers(self, token: int) -> bool:
        """Whether the output of a committed token's row is there."""
        return token >= self.origin and bool(self.answered[self.trunk(token)])

    def make_room(self, length: int) -> tuple[int, int, int] | None:
        """See to it that the trunk holds `length` tokens: (from, to, rows) of the move that this takes, relative slots."""
        if length - self.origin <= 2 * self.window:
            return None
        origin = length - self.window
        shift = origin - self.origin
        kept = max(0, 2 * self.window - shift)
        for column in (self.placed, self.true, self.answered[self.tree_slots :]):
            column[:kept] = column[shift : shift + kept].copy()
            column[kept:] = False
        self.origin = origin
        return self.tree_slots + shift, self.tree_slots, kept

    def adopt_commits(self, row: ExpandRow) -> tuple[list[int], list[int]]:
        """Moves (from, to; relative slots) that put newly committed nodes' rows into the trunk."""
        source: list[int] = []
        target: list[int] = []
        for token in range(max(self.seen, self.origin), len(row.history)):
            slot = row.history_slots[token]
            if slot < 0:
                continue
            source.append(slot)
            target.append(self.trunk(token))
            # A node may have been given a slot in vain: its row waited for one above it that never ran.
            self.placed[token - self.origin] = self.answered[self.trunk(token)] = self.answered[slot]
        return source, target

    def after_commits(self, row: ExpandRow) -> None:
        """Once the moves are done: the root is a trunk row now, slots of vanished nodes are free, and features that lie too
        far back are of no use."""
        row.tree.slot[row.tree.root] = -1
        if len(row.history) == self.seen:
            return
        self.seen = len(row.history)
        self.recycle(row)
        oldest = self.seen - self.window
        for position in [one for one in self.features if one < oldest]:
            del self.features[position]

    def recycle(self, row: ExpandRow) -> None:
        """Recompute the free slots from the tree: whatever no node below the root uses."""
        tree = row.tree
        used = {tree.slot[node] for node in tree.nodes() if node != tree.root}
        self.free = [s for s in range(self.tree_slots) if s not in used]

    def take(self, row: ExpandRow, node: int) -> bool:
        """Give `node` a slot; False if the tree has too many nodes with one."""
        if not self.free:
            self.recycle(row)
        if not self.free:
            return False
        slot = row.tree.slot[node] = self.free.pop()
        self.answered[slot] = False
        return True

    def to_refresh(self, length: int) -> list[int]:
        """Committed tokens whose rows can rest on the target's features and do not yet, in order."""
        return sorted(
            position + 1
            for position in self.features
            if self.origin <= position + 1 < length and not self.true[position + 1 - self.origin]
        )

    def put(self, token: int, *, true: bool) -> None:
        """The K/V of a committed token's row are there."""
        self.placed[token - self.origin] = True
        self.true[token - self.origin] = true
