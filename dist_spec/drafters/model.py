"""The drafter that is a smaller language model with the target's tokenizer. It knows no messages, peers or time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dist_spec.core.types import Expansion
from dist_spec.drafters.base import ExpandRow, RequestKey
from dist_spec.drafters.chooser import Chooser
from dist_spec.drafters.draft_cache import TREE_SLOTS
from dist_spec.drafters.draw import LawSettings
from dist_spec.drafters.leaf_reader import LeafReader
from dist_spec.models.loading import LoadedModel


class ModelDrafter:
    """See `drafters.base.Drafter`.

    Args:
        loaded: the small model.
        target_vocab: logits beyond it (padding of the drafter's head) are never guessed.
        laws: draw one guess per leaf from a law that travels with it (rules that weigh); None: the best-ranked guesses.

    The others are those of `LeafReader`; `batch_invariant` makes self-drafting always agree.
    """

    kind = "model"

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        target_vocab: int | None = None,
        max_requests: int = 4,
        max_context: int | None = None,
        tree_slots: int = TREE_SLOTS,
        prefill_chunk: int = 256,
        batch_invariant: bool = False,
        attention: str | None = None,
        laws: LawSettings | None = None,
    ) -> None:
        self._vocab = min(loaded.vocab_size, target_vocab or loaded.vocab_size)
        self._reader = LeafReader(
            loaded,
            max_requests=max_requests,
            max_context=max_context,
            tree_slots=tree_slots,
            prefill_chunk=prefill_chunk,
            batch_invariant=batch_invariant,
            attention=attention,
        )
        self._chooser = Chooser(vocab_size=self._vocab, eos_ids=loaded.tokenizer.eos_ids, laws=laws)

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        """See `Drafter.expand`. A request's first step also prefills its history, in chunks."""
        read = self._reader.read(rows)
        return [self._guesses(row, leaves, logits) for row, (leaves, logits) in zip(rows, read, strict=True)]

    def close(self, key: RequestKey) -> None:
        """See `Drafter.close`."""
        self._chooser.close(key)
        self._reader.close(key)

    def _guesses(self, row: ExpandRow, leaves: Sequence[int], logits: torch.Tensor) -> list[Expansion]:
        """One per leaf of the row; empty for those that could not be read."""
        guesses = dict(zip(leaves, self._chooser.guess(row, leaves, logits[:, : self._vocab]), strict=True))
        return [guesses.get(leaf) or Expansion.empty() for leaf in row.leaves]
