"""Blocks: nobody's twice, given back whole, contiguous where possible."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_spec.core.block_manager import BlockManager
from dist_spec.errors import CapacityError


def test_a_reservation_covers_its_tokens() -> None:
    blocks = BlockManager(10, block_size=16)
    table = blocks.reserve("a", 33)
    assert table is not None
    assert table.dtype == np.int32
    assert table.tolist() == [0, 1, 2]
    assert blocks.num_free == 7
    assert blocks.blocks_for(16) == 1
    assert blocks.blocks_for(0) == 0


def test_what_does_not_fit_now_waits_and_changes_nothing() -> None:
    blocks = BlockManager(4, block_size=16)
    blocks.reserve("a", 40)
    assert blocks.reserve("b", 17) is None
    assert blocks.num_free == 1
    blocks.release("a")
    assert blocks.reserve("b", 17) is not None
    assert blocks.fits_ever(64)
    assert not blocks.fits_ever(65)


def test_the_smallest_run_that_fits_is_taken() -> None:
    blocks = BlockManager(10, block_size=1)
    for owner, size in (("a", 3), ("b", 1), ("c", 2), ("d", 1)):
        blocks.reserve(owner, size)
    blocks.release("a")
    blocks.release("c")
    assert blocks.reserve("e", 2).tolist() == [4, 5]  # free: 0-2, 4-5, 7-9
    assert blocks.reserve("f", 3).tolist() == [0, 1, 2]


def test_scattered_blocks_serve_where_no_run_is_long_enough() -> None:
    blocks = BlockManager(5, block_size=1)
    for owner in "abcde":
        blocks.reserve(owner, 1)
    for owner in "ace":
        blocks.release(owner)
    assert blocks.reserve("f", 3).tolist() == [0, 2, 4]


def test_one_owner_holds_one_table() -> None:
    blocks = BlockManager(4, block_size=1)
    blocks.reserve("a", 1)
    with pytest.raises(ValueError, match="holds blocks already"):
        blocks.reserve("a", 1)
    blocks.release("nobody")
    assert blocks.num_free == 3


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0)])
def test_a_cache_of_nothing_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(CapacityError):
        BlockManager(num_blocks, block_size=block_size)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=40))
def test_no_block_is_ever_anyone_elses(actions: list[tuple[int, int]]) -> None:
    blocks = BlockManager(16, block_size=2)
    held: dict[int, list[int]] = {}
    for owner, tokens in actions:
        if owner in held:
            blocks.release(owner)
            del held[owner]
        else:
            table = blocks.reserve(owner, tokens)
            free = 16 - sum(map(len, held.values()))
            assert (table is None) == (blocks.blocks_for(tokens) > free)
            if table is not None:
                held[owner] = table.tolist()
        used = [block for table in held.values() for block in table]
        assert len(used) == len(set(used))
        assert blocks.num_free == 16 - len(used)
