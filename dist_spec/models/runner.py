"""The one place between the scheduler's rows and tensors: forward passes, and compaction after a verdict.

It knows no requests, no rules and no clock. Target and tests use it; the model drafter shares `PackedModel` below it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dist_spec.core.types import ForwardRow, HalfArray
from dist_spec.models.features import feature_rows
from dist_spec.models.kv_cache import bytes_per_token, path_moves
from dist_spec.models.loading import LoadedModel
from dist_spec.models.packed import PackedModel
from dist_spec.models.rows import plan_segments
from dist_spec.models.stock import stock_logits


class PendingForward:
    """A forward pass that was started. On CPU it is already done, on a GPU `wait` synchronises."""

    def __init__(
        self, logits: torch.Tensor, event: torch.cuda.Event | None, outputs: Sequence[torch.Tensor] = ()
    ) -> None:
        self._logits = logits
        self._event = event
        self._outputs = outputs

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> torch.Tensor:
        """The logits, as `ModelRunner.forward` gives them."""
        if self._event is not None:
            self._event.synchronize()
        return self._logits

    def features(self, rows: Sequence[int], *, stay: bool = False) -> HalfArray:
        """(n, size) float16 on the host (with `stay`: on the device): the captured layers' outputs of these packed rows.
        Only after `wait`."""
        return feature_rows(self._outputs, rows, stay=stay)


class ModelRunner:
    """A model over `num_blocks` KV blocks of `block_size` tokens each.

    Args:
        batch_invariant: bit-equal logits for a token however many rows ride along (CPU; see `invariance.probe`).
        attention, lean: see `PackedModel`; tests compare them.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        num_blocks: int,
        block_size: int,
        batch_invariant: bool,
        attention: str | None = None,
        lean: bool = True,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.batch_invariant = batch_invariant
        self.packed = PackedModel(
            loaded,
            num_slots=num_blocks * block_size,
            batch_invariant=batch_invariant,
            attention=attention,
            lean=lean,
        )
        self.loaded = loaded
        self.device = loaded.device
        self.vocab_size = loaded.vocab_size
        self.max_positions = loaded.max_positions

    @property
    def kv_bytes(self) -> int:
        return bytes_per_token(self.loaded.local_config, self.packed.kv_dtype) * self.num_blocks * self.block_size

    def forward(self, rows: Sequence[ForwardRow]) -> torch.Tensor:
        """Cache K/V of every row's tokens; logits of each row's last `num_logits` tokens, rows in order.

        Returns:
            (sum of num_logits, vocab) float32 on the model's device.
        Raises:
            CapacityError: a row does not fit into its blocks or the model's context.
        """
        if not rows:
            return torch.empty((0, self.vocab_size), device=self.device)
        segments, positions, logit_rows = plan_segments(
            rows,
            block_size=self.block_size,
            attention=self.packed.attention,
            max_positions=self.max_positions,
        )
        tokens = rows[0].tokens if len(rows) == 1 else np.concatenate([row.tokens for row in rows])
        return self.packed.logits(segments, tokens=tokens, positions=positions, logit_rows=logit_rows)

    def launch(self, rows: Sequence[ForwardRow]) -> PendingForward:
        """Start `forward` and return at once where the device works by itself (GPU)."""
        logits = self.forward(rows)
        outputs = self.packed.captured
        if self.device.type != "cuda":
            return PendingForward(logits, None, outputs)
        event = torch.cuda.Event()
        event.record()
        return PendingForward(logits, event, outputs)

    def capture(self, layers: Sequence[int]) -> None:
        """From the next forward on, keep the outputs of these layers for `PendingForward.features` (none: nothing)."""
        self.packed.capture = tuple(layers)

    def twin(self, *, num_blocks: int, block_size: int) -> ModelRunner:
        """A runner of the same model that works the same way, with a KV cache of its own (checks at start)."""
        return ModelRunner(
            self.loaded,
            num_blocks=num_blocks,
            block_size=block_size,
            batch_invariant=self.batch_invariant,
            attention=self.packed.attention,
            lean=self.packed.is_lean,
        )

    def stock_logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Transformers' own logits of one sequence, (n, vocab) float32; the cache is not touched."""
        return stock_logits(self.loaded, tokens)

    def tick(self) -> None:
        """Call now and then: nobody else needs to hear that this runner is well."""

    @property
    def asked_to_stop(self) -> bool:
        """Whether somebody else who takes part was asked to end: there is nobody."""
        return False

    def close(self) -> None:
        """Nobody else needs to hear that this is the end."""

    def compact(self, rows: Sequence[ForwardRow], paths: Sequence[Sequence[int]]) -> None:
        """After a verdict: put each row's accepted nodes (`paths`, indices of nodes, root side first) right behind its
        committed tokens, so that slots up to cached + num_pending + len(path) hold committed text. Nothing is recomputed.
        """
        self.move(*path_moves(rows, paths, block_size=self.block_size))

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy the K/V of slots `source` onto slots `target`; all are read before any is written."""
        if source:
            with torch.inference_mode():
                moves = torch.tensor([source, target], dtype=torch.long).to(self.device)
                self.packed.cache.move(moves[0], moves[1])
