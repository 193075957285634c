"""Which requests run: first come, first served, as soon as their whole need of KV blocks is there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from dist_spec.core.block_manager import BlockManager
from dist_spec.core.sequence import Sequence
from dist_spec.core.types import IntArray
from dist_spec.errors import CapacityError


class Scheduler:
    """Waiting and running sequences, and the running ones' block tables.

    Args:
        max_sequences: sequences in one forward pass.
        lookahead: tokens of cache beyond a sequence's longest text (draft-tree nodes of one step).
        max_pending: uncached committed tokens fed in one step over all rows; longer prompts are prefilled in chunks, so
            that one long prompt does not hold up the other rows for long.
    """

    def __init__(self, blocks: BlockManager, *, max_sequences: int, lookahead: int, max_pending: int = 256) -> None:
        self.blocks = blocks
        self.max_sequences = max_sequences
        self.lookahead = lookahead
        self.max_pending = max_pending
        self.waiting: deque[Sequence] = deque()
        self.running: dict[tuple[str, int], Sequence] = {}
        self.tables: dict[tuple[str, int], IntArray] = {}

    def need(self, sequence: Sequence) -> int:
        longest = min(sequence.prompt_length + sequence.sampling.max_tokens, sequence.max_model_len)
        return max(longest, len(sequence.prefix)) + self.lookahead

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises CapacityError if it could never run."""
        if not self.blocks.fits_ever(self.need(sequence)):
            size = self.blocks.num_blocks * self.blocks.block_size
            raise CapacityError(
                f"request {sequence.request!r} needs {self.need(sequence)} tokens of KV cache, there are {size}",
                fix="lower max_tokens, shorten the prompt, or raise target.max_model_len / target.max_sequences",
            )
        self.waiting.append(sequence)

    def admit(self) -> list[Sequence]:
        """Move sequences from waiting to running while there is room; returns those that moved."""
        admitted: list[Sequence] = []
        while self.waiting and len(self.running) < self.max_sequences:
            table = self.blocks.reserve(self.waiting[0].key, self.need(self.waiting[0]))
            if table is None:
                break
            sequence = self.waiting.popleft()
            self.running[sequence.key] = sequence
            self.tables[sequence.key] = table
            admitted.append(sequence)
        return admitted

    def share_pending(self, sequences: Iterable[Sequence]) -> list[int]:
        """How many uncached tokens each of the first sequences may feed in this step, in order; those for which nothing
        is left have no entry and sit the step out."""
        left = self.max_pending
        shares: list[int] = []
        for sequence in sequences:
            if left <= 0:
                break
            shares.append(min(len(sequence.prefix) - sequence.cached, left))
            left -= shares[-1]
        return shares

    def remove(self, key: tuple[str, int]) -> None:
        if key in self.running:
            del self.running[key], self.tables[key]
            self.blocks.release(key)
        else:
            self.waiting = deque(s for s in self.waiting if s.key != key)
