"""One request as a drafter with another tokenizer follows it: the context in its own ids, and a draft tree of them below.
It knows no models and no rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dist_spec.core.tree import DraftTree
from dist_spec.drafters.base import ExpandRow
from dist_spec.drafters.derived_context import DerivedContext
from dist_spec.drafters.vocabularies import Vocabularies

_COMPACT_ABOVE = 256


class Follower:
    """Follows the target's ids of one request.

    Attributes:
        context: committed text in the drafter's ids.
        slots: parallel to `context.ids`, as `ExpandRow.history_slots`.
        tree: nodes are the drafter's ids; its root stands for the last of `context.ids`.
    """

    def __init__(self, both: Vocabularies) -> None:
        self._both = both
        self._begin()

    def _begin(self) -> None:
        self.context = DerivedContext(self._both)
        self.slots = [-1] * len(self.context.ids)
        self._restart()
        self._seen = 0

    def _restart(self) -> None:
        ids = self.context.ids
        self.tree = DraftTree(len(ids), ids[-1] if ids else -1, compact_above=_COMPACT_ABOVE)

    def follow(self, history: Sequence[int]) -> int:
        """Take in what was committed since; returns how many of the drafter's ids are what they were."""
        if len(history) < self._seen:  # never promised, yet cheap to survive
            self._begin()
        if len(history) == self._seen:
            return len(self.context.ids)
        before = len(self.context.ids)
        kept = self.context.extend(history[self._seen :])
        self._seen = len(history)
        fresh = self.context.ids[kept:]
        if kept < before:
            self.slots = [*self.slots[:kept], *[-1] * len(fresh)]
            self._restart()
        elif fresh:
            self.slots += self.tree.advance(fresh)
        return kept

    def step_down(self, node: int, token: int, *, score: float = 0.0) -> int:
        """The child of `node` with this drafter id; made if it is not there, with this log probability."""
        child = self.tree.child(node, token)
        if child is None:
            one = np.array([token], np.int32)
            [child] = self.tree.graft(node, one, np.array([-1], np.int32), np.array([score], np.float32))
        return child

    def row(self, row: ExpandRow, leaves: Sequence[int]) -> ExpandRow:
        """The same request for the drafter's model: `leaves` are nodes of `tree`."""
        return ExpandRow(
            key=row.key,
            history=self.context.ids,
            history_slots=self.slots,
            prompt_length=0,
            generated_offset=0,
            sampling=row.sampling,
            tree=self.tree,
            leaves=list(leaves),
            width=row.width,
        )
