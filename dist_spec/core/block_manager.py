"""Physical KV blocks of the target's cache and who holds them. It knows nothing of tensors."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from dist_spec.core.types import IntArray
from dist_spec.errors import CapacityError


class BlockManager:
    """Hands out block tables. A request's whole need is reserved at admission, so nothing is ever preempted.

    Contiguous runs are preferred (best fit): attention then reads the cache through a view instead of a gathered copy.
    """

    def __init__(self, num_blocks: int, *, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise CapacityError(f"a KV cache needs at least one block, got {num_blocks} of {block_size} tokens")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = [True] * num_blocks
        self._tables: dict[Hashable, list[int]] = {}

    @property
    def num_free(self) -> int:
        return sum(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def fits_ever(self, num_tokens: int) -> bool:
        return self.blocks_for(num_tokens) <= self.num_blocks

    def reserve(self, owner: Hashable, num_tokens: int) -> IntArray | None:
        """Block table for `num_tokens` tokens, or None while there is not enough free."""
        if owner in self._tables:
            raise ValueError(f"{owner!r} holds blocks already")
        count = self.blocks_for(num_tokens)
        if count > self.num_free:
            return None
        run = self._best_run(count)
        blocks = (
            list(range(run, run + count))
            if run is not None
            else [b for b, free in enumerate(self._free) if free][:count]
        )
        for block in blocks:
            self._free[block] = False
        self._tables[owner] = blocks
        return np.array(blocks, dtype=np.int32)

    def release(self, owner: Hashable) -> None:
        for block in self._tables.pop(owner, ()):
            self._free[block] = True

    def _best_run(self, count: int) -> int | None:
        best: tuple[int, int] | None = None
        start = None
        for block, free in enumerate([*self._free, False]):
            if free and start is None:
                start = block
            elif not free and start is not None:
                length = block - start
                if length >= count and (best is None or length < best[0]):
                    best = (length, start)
                start = None
        return None if best is None else best[1]
