"""The drafter that is a draft head (EAGLE-3): it continues the target's own hidden features. It knows no messages, peers or
time.

All leaves of all requests go through the head in one forward: each sees the committed text and its own ancestors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from dist_spec.core.messages import FeatureWish
from dist_spec.core.types import Expansion, HalfArray
from dist_spec.drafters.base import ExpandRow, RequestKey
from dist_spec.drafters.chooser import Chooser
from dist_spec.drafters.draft_cache import TREE_SLOTS
from dist_spec.drafters.draw import LawSettings
from dist_spec.drafters.head_reader import HeadReader
from dist_spec.models.head import Head

DEFAULT_WINDOW = 256
"""Tokens of the past that a head sees, unless told otherwise."""


class HeadDrafter:
    """See `drafters.base.Drafter` and `drafters.base.Featured`. Without any features it guesses nothing.

    Args:
        head: in eval mode, on its device.
        eos_ids: the target's end-of-sequence ids.
        max_requests: requests whose rows are kept; the one unused for longest gives way.
        window: tokens of the past that a guess rests on.
        tree_slots: nodes per request whose rows are kept.
        pack: keep laid-out copies of the weights where that makes them faster.
        attention: see `HeadReader`.
        laws: draw one guess per leaf from a law that travels with it (rules that weigh); None: the best-ranked guesses.

    Attributes:
        wish: the features that it wants.
    """

    kind = "head"

    def __init__(
        self,
        head: Head,
        *,
        eos_ids: Sequence[int] = (),
        max_requests: int = 4,
        window: int = DEFAULT_WINDOW,
        tree_slots: int = TREE_SLOTS,
        pack: bool = True,
        attention: str | None = None,
        laws: LawSettings | None = None,
    ) -> None:
        config = head.config
        self.wish = FeatureWish(
            layers=config.feature_layers,
            hidden_size=config.target_hidden_size,
            num_layers=config.target_layers,
            window=window,
        )
        self._reader = HeadReader(
            head, max_requests=max_requests, window=window, tree_slots=tree_slots, pack=pack, attention=attention
        )
        self._chooser = Chooser(
            vocab_size=head.config.vocab_size, eos_ids=eos_ids, laws=laws, ids=head.draft_to_target.cpu().numpy()
        )

    def features(self, key: RequestKey, first_position: int, rows: HalfArray) -> None:
        """See `drafters.base.Featured`."""
        self._reader.features(key, first_position, rows)

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        """See `Drafter.expand`."""
        read = self._reader.read(rows)
        return [self._guesses(row, leaves, logits) for row, (leaves, logits) in zip(rows, read, strict=True)]

    def close(self, key: RequestKey) -> None:
        """See `Drafter.close`."""
        self._chooser.close(key)
        self._reader.close(key)

    def _guesses(self, row: ExpandRow, leaves: Sequence[int], logits: torch.Tensor) -> list[Expansion]:
        """One per leaf of the row; empty for those that could not be read."""
        if len(leaves) and not math.isfinite(
            float(logits.max())
        ):  # no guess is better than one made of what is no number
            leaves, logits = (), logits[:0]
        guesses = dict(zip(leaves, self._chooser.guess(row, leaves, logits), strict=True))
        return [guesses.get(leaf) or Expansion.empty() for leaf in row.leaves]
