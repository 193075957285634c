"""Runs a small model over leaves of draft trees and gives the logits that follow them. It knows no sampling, no rule and no
vocabulary but the model's own.

All leaves of all requests go through the model in one forward: each sees the committed text and its own ancestors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from dist_spec.drafters.base import ExpandRow, RequestKey
from dist_spec.drafters.draft_cache import TREE_SLOTS, Feed, Region, plan_feed
from dist_spec.drafters.lending import Lending
from dist_spec.models.loading import LoadedModel
from dist_spec.models.packed import PackedModel
from dist_spec.models.step import Segment, Visit


class LeafReader:
    """A model, and the K/V of the requests it reads.

    Args:
        loaded: the small model.
        max_requests: requests whose K/V are kept; the one unused for longest gives way (and is prefilled again later).
        max_context: tokens of history and guesses per request; longer requests are not read.
        tree_slots: nodes per request whose K/V are kept.
        prefill_chunk: most committed tokens in one forward.
        batch_invariant: bit-equal to a target runner in the same mode.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        max_requests: int = 4,
        max_context: int | None = None,
        tree_slots: int = TREE_SLOTS,
        prefill_chunk: int = 256,
        batch_invariant: bool = False,
        attention: str | None = None,
    ) -> None:
        self.max_context = min(loaded.max_positions, max_context or 4096)
        self.vocab_size = loaded.vocab_size
        self._chunk = prefill_chunk
        size = Region.size(tree_slots=tree_slots, max_context=self.max_context)
        self._packed = PackedModel(
            loaded, num_slots=size * max_requests, batch_invariant=batch_invariant, attention=attention
        )
        self._regions = Lending(
            Region(base=size * i, tree_slots=tree_slots, max_context=self.max_context) for i in range(max_requests)
        )

    def read(self, rows: Sequence[ExpandRow]) -> list[tuple[list[int], torch.Tensor]]:
        """Per row, the leaves that could be read and their logits (n, vocab_size) float32.

        A request's first call also prefills its history, in chunks.
        """
        feeds: list[Feed | None] = []
        in_use: set[RequestKey] = {row.key for row in rows}
        for row in rows:
            region = self._region(row, in_use) if 0 < len(row.history) <= self.max_context else None
            if region is not None and max(row.history[region.fed :], default=0) >= self.vocab_size:
                region = None  # the target's padding reaches beyond ours: an id that this model cannot read
            feeds.append(None if region is None else self._caught_up(row, region))
        logits = self._forward([feed for feed in feeds if feed is not None])
        found: list[tuple[list[int], torch.Tensor]] = []
        first = 0
        for row, feed in zip(rows, feeds, strict=True):
            places = [-1] * len(row.leaves) if feed is None else feed.leaf_rows
            leaves = [leaf for leaf, place in zip(row.leaves, places, strict=True) if place >= 0]
            found.append((leaves, logits[first : first + len(leaves)]))
            first += len(leaves)
        return found

    def rewind(self, key: RequestKey, length: int) -> None:
        """Of this request's history only the first `length` tokens are what they were; unknown keys are ignored."""
        if (region := self._regions.get(key)) is not None:
            region.fed = min(region.fed, length)

    def close(self, key: RequestKey) -> None:
        """Forget a request."""
        self._regions.take_back(key)

    def _region(self, row: ExpandRow, in_use: set[RequestKey]) -> Region | None:
        lent = self._regions.lend(row.key, in_use=in_use)
        if lent is None:
            return None
        region, is_new = lent
        if is_new:
            region.begin(row)
        return region

    def _caught_up(self, row: ExpandRow, region: Region) -> Feed:
        """Adopt commits, prefill all but the last chunk of what is missing, and plan the rest."""
        source, target = region.adopt_commits(row)
        if source:
            with torch.inference_mode():
                moves = torch.tensor([source, target], dtype=torch.long).to(self._packed.loaded.device)
                self._packed.cache.move(moves[0], moves[1])
        region.after_commits(row)
        while len(row.history) - region.fed > self._chunk:
            chunk = row.history[region.fed : region.fed + self._chunk]
            self._forward(
                [Feed(region=region, first=region.fed, tokens=chunk, num_committed=len(chunk), paths=[], leaf_rows=[])]
            )
        return plan_feed(row, region)

    def _forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        """One forward over all feeds; logits of their leaves in order, (n, vocab) float32."""
        segments: list[Segment] = []
        wanted: list[int] = []
        first = 0
        for feed in feeds:
            if feed.tokens:
                segments.append(self._segment(feed, first))
                wanted.extend(first + place for place in feed.leaf_rows if place >= 0)
                first += len(feed.tokens)
                feed.region.fed = max(feed.region.fed, feed.first + feed.num_committed)
        if not segments:
            return torch.empty((0, self.vocab_size))
        return self._packed.logits(
            segments,
            tokens=np.array([token for feed in feeds for token in feed.tokens], dtype=np.int64),
            positions=np.concatenate([segment.query_positions for segment in segments]),
            logit_rows=wanted,
        )

    def _segment(self, feed: Feed, first: int) -> Segment:
        region, committed = feed.region, feed.num_committed
        head = feed.first + committed
        depths = np.array([len(path) for path in feed.paths], dtype=np.int64)
        own = np.array([path[-1] for path in feed.paths], dtype=np.int64)
        positions = np.concatenate([np.arange(feed.first, head, dtype=np.int64), head - 1 + depths])
        write = np.concatenate([region.prefix_slots(feed.first, head), region.base + own])
        if self._packed.attention in ("single", "shared"):
            return _walked(feed, first, positions, write)
        low = min((min(path) for path in feed.paths), default=region.tree_slots)
        ahead = region.tree_slots - low
        mask = np.zeros((len(positions), ahead + head), dtype=np.bool_)
        mask[:committed, ahead:] = np.arange(head)[None] <= positions[:committed, None]
        mask[committed:, ahead:] = True
        key_positions = np.concatenate([np.zeros(ahead, dtype=np.int64), np.arange(head, dtype=np.int64)])
        for node, path in enumerate(feed.paths):
            places = np.array(path, dtype=np.int64) - low
            mask[committed + node, places] = True
            key_positions[places] = head + np.arange(len(path))
        return Segment(
            first=first,
            count=len(positions),
            key_start=region.base + low,
            key_slots=np.arange(region.base + low, region.prefix_start + head, dtype=np.int64),
            write_slots=write,
            query_positions=positions,
            key_positions=key_positions,
            mask=None if mask.all() else mask,
        )


def _walked(feed: Feed, first: int, positions: npt.NDArray[np.int64], write: npt.NDArray[np.int64]) -> Segment:
    """The one-at-a-time form: every node's path is laid behind the committed text before the node is asked."""
    region, committed = feed.region, feed.num_committed
    head = feed.first + committed
    visits = [Visit(first + i, feed.first + i + 1) for i in range(committed)]
    for node, path in enumerate(feed.paths):
        slots = torch.tensor(path, dtype=torch.long) + region.base
        visits.append(Visit(first + committed + node, head + len(path), path=slots))
    longest = head + max((len(path) for path in feed.paths), default=0)
    return Segment(
        first=first,
        count=len(positions),
        key_start=region.prefix_start,
        key_slots=region.prefix_slots(0, longest),
        write_slots=write,
        query_positions=positions,
        key_positions=np.arange(longest, dtype=np.int64),
        visits=visits,
    )
