"""Runs a draft head over leaves of draft trees and gives the logits that follow them. It knows no sampling, no rule and no
messages.

A row's state is fused from the target's features where those are known, else it is the output of the row before it. The
first step after a commit puts the target's features in the place of the head's own all along the trunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TypeAlias

import numpy as np
import torch

from dist_spec.core.types import HalfArray
from dist_spec.drafters.base import ExpandRow, RequestKey
from dist_spec.drafters.draft_cache import TREE_SLOTS
from dist_spec.drafters.head_cache import HeadRegion
from dist_spec.drafters.head_plan import HeadFeed, Item, plan_feed
from dist_spec.drafters.head_stack import HeadStack
from dist_spec.drafters.lending import Lending
from dist_spec.models.head import Head
from dist_spec.models.kv_cache import PagedKVCache
from dist_spec.models.packed import ATTENTION
from dist_spec.models.step import Segment, Step

_Outputs: TypeAlias = tuple[list[int], torch.Tensor]
"""(slots in the pool, what the rows there put out)"""


class HeadReader:
    """A head, and the rows of the requests it reads.

    Args:
        head: in eval mode, on its device.
        max_requests: requests whose rows are kept; the one unused for longest gives way.
        window: tokens of the past that a row sees.
        tree_slots: nodes per request whose rows are kept.
        pack: see `HeadStack`.
        attention: "loop" or "padded"; None chooses by device.
    """

    def __init__(
        self,
        head: Head,
        *,
        max_requests: int = 4,
        window: int = 256,
        tree_slots: int = TREE_SLOTS,
        pack: bool = True,
        attention: str | None = None,
    ) -> None:
        config = head.config
        self.window = window
        with torch.inference_mode():
            self._stack = HeadStack(head, pack=pack)
        self._device, dtype = self._stack.device, self._stack.dtype
        self._vocab_size, self._draft_vocab = config.vocab_size, config.draft_vocab_size
        self._feature_size = config.feature_size
        size = HeadRegion.size(tree_slots=tree_slots, window=window)
        shape = SimpleNamespace(num_hidden_layers=1, num_key_value_heads=config.num_kv_heads, head_dim=config.head_dim)
        self._cache = PagedKVCache(shape, num_slots=size * max_requests, dtype=dtype, device=self._device)
        self._outputs = torch.zeros((size * max_requests, config.hidden_size), dtype=dtype, device=self._device)
        self._attend = ATTENTION[attention or ("padded" if self._device.type == "cuda" else "loop")]
        self._regions = Lending(
            HeadRegion(base=size * i, tree_slots=tree_slots, window=window) for i in range(max_requests)
        )
        self._early: dict[RequestKey, dict[int, HalfArray]] = {}

    def features(self, key: RequestKey, first_position: int, rows: HalfArray) -> None:
        """See `drafters.base.Featured`."""
        if rows.shape[1] != self._feature_size:
            return  # of another target
        region = self._regions.get(key)
        held = self._early.setdefault(key, {}) if region is None else region.features
        held.update(enumerate(rows, first_position))
        if len(held) > 4 * self.window:  # nobody asks for guesses, or features come in a wild order
            for position in sorted(held)[: -self.window]:
                del held[position]

    def read(self, rows: Sequence[ExpandRow]) -> list[tuple[list[int], torch.Tensor]]:
        """Per row, the leaves for which there is something to go by and their logits (n, draft_vocab) float32."""
        in_use = {row.key for row in rows}
        with torch.inference_mode():
            feeds = [self._feed(row, in_use) for row in rows]
            planned = [feed for feed in feeds if feed is not None]
            latest: _Outputs | None = None
            while (outputs := self._round(planned)) is not None:
                latest = outputs
            return self._answers(rows, feeds, latest)

    def close(self, key: RequestKey) -> None:
        """Forget a request."""
        self._early.pop(key, None)
        region = self._regions.take_back(key)
        if region is not None:
            region.features = {}

    def _feed(self, row: ExpandRow, in_use: set[RequestKey]) -> HeadFeed | None:
        """What must be run for a request; None where it cannot be served."""
        if max(row.history[-self.window :], default=self._vocab_size) >= self._vocab_size:
            return None  # an id that the head cannot read, or no text at all
        region = self._region(row, in_use)
        if region is None:
            return None
        move = region.make_room(len(row.history))
        if move is not None:
            start, target, count = (one + region.base * (i < 2) for i, one in enumerate(move))
            self._move(list(range(start, start + count)), list(range(target, target + count)))
        source, places = region.adopt_commits(row)
        self._move([region.base + one for one in source], [region.base + one for one in places])
        region.after_commits(row)
        return plan_feed(row, region)

    def _move(self, source: list[int], target: list[int]) -> None:
        if source:
            moves = torch.tensor([source, target], dtype=torch.long).to(self._device)
            self._cache.move(moves[0], moves[1])
            self._outputs.index_copy_(0, moves[1], self._outputs.index_select(0, moves[0]))

    def _region(self, row: ExpandRow, in_use: set[RequestKey]) -> HeadRegion | None:
        lent = self._regions.lend(row.key, in_use=in_use)
        if lent is None:
            return None
        region, is_new = lent
        if is_new:
            region.features = self._early.pop(row.key, {})
        if is_new or len(row.history) < region.seen:  # the latter is never promised, yet cheap to survive
            region.begin(row)
        return region

    def _round(self, feeds: Sequence[HeadFeed]) -> _Outputs | None:
        """One forward over everything whose state is known by now; None if there is nothing."""
        ready = [(feed, *feed.take_ready()) for feed in feeds]
        rows = [(feed, item) for feed, silent, _, _ in ready for item in silent]
        segments: list[Segment] = []
        asked = 0
        for kind in (2, 3):  # those that rest on features come first, so that states are two blocks
            for feed, *kinds in ready:
                items = kinds[kind - 1]
                if items:
                    segments.append(feed.segment(items, first=asked))
                    rows += [(feed, item) for item in items]
                    asked += len(items)
        if not rows:
            return None
        slots = [feed.region.base + item.slot for feed, item in rows]
        columns = [[item.token for _, item in rows], [item.position for _, item in rows], slots]
        index = torch.tensor(columns, dtype=torch.long).to(self._device)
        tokens, positions, places = index[0], index[1], index[2]
        step = Step(
            ids=tokens[len(rows) - asked :],
            positions=positions[len(rows) - asked :],
            num_tokens=len(rows),
            segments=segments,
            write_index=places,
            write_start=slots[0] if len(slots) == 1 else None,
            logit_rows=(),
            cache=self._cache,
            attend=self._attend,
        )
        hidden = self._stack.run(self._states(rows), tokens, positions, last_position=max(columns[1]), step=step)
        if asked:
            self._outputs.index_copy_(0, places[len(rows) - asked :], hidden)
            for feed, item in rows[len(rows) - asked :]:
                feed.region.answered[item.slot] = True
        return slots[len(rows) - asked :], hidden

    def _states(self, rows: Sequence[tuple[HeadFeed, Item]]) -> torch.Tensor:
        """(rows, hidden): fused features, then outputs of earlier rows."""
        features = [item.features for _, item in rows if item.features is not None]
        sources = [feed.region.base + item.source for feed, item in rows if item.features is None]
        parts: list[torch.Tensor] = []
        if features:
            parts.append(self._stack.fuse(self._stacked(features)))
        if sources:
            parts.append(self._outputs[torch.tensor(sources, dtype=torch.long).to(self._device)])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _stacked(self, features: Sequence[HalfArray]) -> torch.Tensor:
        """(n, size) on our device; some may have come there by themselves."""
        if all(isinstance(one, np.ndarray) for one in features):
            return torch.from_numpy(np.stack(features)).to(self._device)
        return torch.stack([torch.as_tensor(one).to(self._device, non_blocking=True) for one in features])

    def _answers(
        self, rows: Sequence[ExpandRow], feeds: Sequence[HeadFeed | None], latest: _Outputs | None
    ) -> list[tuple[list[int], torch.Tensor]]:
        """Logits of the leaves whose rows have an output, all in one product."""
        leaves: list[list[int]] = []
        slots: list[int] = []
        for row, feed in zip(rows, feeds, strict=True):
            found = [] if feed is None else _answered(row, feed)
            leaves.append([leaf for leaf, _ in found])
            slots += [slot for _, slot in found]
        if not slots:
            return [([], torch.empty((0, self._draft_vocab))) for _ in rows]
        if latest is not None and latest[0] == slots:  # mostly: what was run last is what was asked for
            outputs = latest[1]
        else:
            outputs = self._outputs[torch.tensor(slots, dtype=torch.long).to(self._device)]
        logits = self._stack.logits(outputs)
        return list(zip(leaves, logits.split([len(one) for one in leaves]), strict=True))


def _answered(row: ExpandRow, feed: HeadFeed) -> list[tuple[int, int]]:
    """(leaf, slot in the pool) of the leaves whose rows have an output."""
    region = feed.region
    pairs = zip(row.leaves, feed.leaf_slots, strict=True)
    return [(leaf, region.base + slot) for leaf, slot in pairs if slot >= 0 and region.answered[slot]]
