"""Which rows of a draft head must be run so that every leaf's logits come out, and on what each of them rests. It knows no
tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dist_spec.core.types import HalfArray
from dist_spec.drafters.base import ExpandRow
from dist_spec.drafters.head_cache import HeadRegion
from dist_spec.models.step import Segment

_CATCH_UP = 4
"""Committed tokens without features that are read one after the other, each on the output of the one before it; behind a
longer gap the head waits for features."""


@dataclass(kw_only=True, slots=True)
class Item:
    """One row.

    Attributes:
        token: the id that it reads; `index`: its place in the text; `slot`: where it lies (relative).
        features: the target's, at position `index` - 1; None: its state is the output of the row at slot `source`.
        path: for a drafted token the slots of its ancestors and itself, root side first; empty: a committed one.
    """

    token: int
    index: int
    slot: int
    features: HalfArray | None = None
    source: int = -1
    path: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        return self.index - 1


@dataclass(kw_only=True, slots=True)
class HeadFeed:
    """What one request contributes.

    Attributes:
        silent: committed rows of which only K/V are wanted; all rest on features.
        asked: rows whose outputs are wanted, each behind what it rests on.
        leaf_slots: per leaf the slot of its row, -1 where it cannot have one.
    """

    row: ExpandRow
    region: HeadRegion
    silent: list[Item]
    asked: list[Item]
    leaf_slots: list[int]
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.row.history)

    def take_ready(self) -> tuple[list[Item], list[Item], list[Item]]:
        """(silent, asked that rest on features, asked that rest on outputs): all that can run now, marked as placed."""
        answered = self.region.answered
        silent, self.silent = self.silent, []
        true = [item for item in self.asked if item.features is not None]
        own = [item for item in self.asked if item.features is None and answered[item.source]]
        ready = {id(item) for item in (*true, *own)}
        self.asked = [item for item in self.asked if id(item) not in ready]
        for item in (*silent, *true, *own):
            if not item.path:
                self.region.put(item.index, true=item.features is not None)
        return silent, true, own

    def segment(self, items: Sequence[Item], *, first: int) -> Segment:
        """What these rows, numbered from `first` on, see: the trunk within the window, and each its own ancestors."""
        region, base = self.region, self.region.base
        low = min((min(item.path) for item in items if item.path), default=region.tree_slots)
        ahead, reach = region.tree_slots - low, self.size - region.origin
        places = np.arange(region.origin, self.size)
        index = np.array([item.index for item in items])[:, None]
        mask = np.zeros((len(items), ahead + reach), dtype=np.bool_)
        mask[:, ahead:] = region.placed[:reach] & (places <= index) & (places > index - region.window)
        for number, item in enumerate(items):
            if item.path:
                mask[number, np.array(item.path) - low] = True
        zeros = np.zeros(len(items), np.int64)
        return Segment(
            first=first,
            count=len(items),
            key_start=base + low,
            key_slots=np.arange(base + low, base + region.tree_slots + reach, dtype=np.int64),
            write_slots=zeros,
            query_positions=zeros,
            key_positions=zeros[:1],
            mask=None if mask.all() else mask,
        )


def plan_feed(row: ExpandRow, region: HeadRegion) -> HeadFeed:
    """Choose the rows; takes slots for nodes that have none."""
    tree, size = row.tree, len(row.history)
    trunk = [_trunk_item(row, region, token) for token in region.to_refresh(size)]
    asked = {item.index: item for item in trunk if item.index == size - 1}
    if asked:  # what hangs directly on it waits for the better output
        region.answered[region.trunk(size - 1)] = False
    if not asked and not region.answers(size - 1):
        asked = {item.index: item for item in _gap(row, region, {item.index: item for item in trunk})}
    feed = HeadFeed(
        row=row,
        region=region,
        silent=[item for item in trunk if item.index not in asked],
        asked=[asked[index] for index in sorted(asked)],
        leaf_slots=[],
    )
    known: set[int] = set()
    for leaf in row.leaves:
        feed.leaf_slots.append(region.trunk(size - 1) if leaf == tree.root else _ask_path(feed, leaf, known))
    return feed


def _trunk_item(row: ExpandRow, region: HeadRegion, token: int) -> Item:
    """The row of a committed token whose features are there; they are used up."""
    features = region.features.pop(token - 1)
    return Item(token=row.history[token], index=token, slot=region.trunk(token), features=features)


def _gap(row: ExpandRow, region: HeadRegion, known: dict[int, Item]) -> list[Item]:
    """Rows that lead to the last token's output where its features did not come; none where that is too far."""
    items: list[Item] = []
    for token in range(len(row.history) - 1, max(region.origin, len(row.history) - 1 - _CATCH_UP, 0), -1):
        if token in known:
            return [known[token], *reversed(items)]
        items.append(
            Item(token=row.history[token], index=token, slot=region.trunk(token), source=region.trunk(token - 1))
        )
        if region.answers(token - 1):
            return items[::-1]
    return []


def _ask_path(feed: HeadFeed, leaf: int, known: set[int]) -> int:
    """Add `leaf` and those above it whose rows were never run; the leaf's slot, or -1 if slots ran out."""
    row, region, tree = feed.row, feed.region, feed.row.tree
    nodes: list[int] = []
    node = leaf
    while node != tree.root:
        nodes.append(node)
        node = tree.parent[node]
    above, path = region.trunk(feed.size - 1), []
    for depth, node in enumerate(reversed(nodes)):
        if tree.slot[node] < 0 and not region.take(row, node):
            return -1
        slot = tree.slot[node]
        path.append(slot)
        if node not in known and not region.answered[slot]:
            known.add(node)
            feed.asked.append(
                Item(token=tree.token[node], index=feed.size + depth, slot=slot, source=above, path=tuple(path))
            )
        above = slot
    return above
