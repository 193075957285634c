"""Admission: first come, first served, whole need or nothing; prefill shared out in chunks."""

from __future__ import annotations

import pytest

from dist_spec.core.block_manager import BlockManager
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.sequence import Sequence
from dist_spec.core.types import Sampling
from dist_spec.errors import CapacityError


def sequence(name: str, *, prompt: int = 4, max_tokens: int = 4, generated: int = 0) -> Sequence:
    return Sequence(
        name,
        0,
        prompt=range(prompt),
        generated=range(generated),
        sampling=Sampling(max_tokens=max_tokens),
        max_model_len=64,
    )


def scheduler(num_blocks: int = 8, **options: int) -> Scheduler:
    return Scheduler(BlockManager(num_blocks, block_size=4), **{"max_sequences": 4, "lookahead": 2, **options})


def test_the_need_is_the_longest_text_and_the_tree_of_one_step() -> None:
    plan = scheduler()
    assert plan.need(sequence("a")) == 4 + 4 + 2
    assert plan.need(sequence("b", prompt=60, max_tokens=100)) == 64 + 2  # the context ends first
    assert plan.need(sequence("c", generated=3)) == 4 + 4 + 2  # max_tokens counts what was generated before


def test_a_request_that_never_fits_is_refused_at_once() -> None:
    with pytest.raises(CapacityError, match="KV cache"):
        scheduler(num_blocks=2).submit(sequence("a"))


def test_first_come_first_served() -> None:
    """A small request does not overtake a large one that waits for room."""
    plan = scheduler(num_blocks=6)
    for name, tokens in (("a", 4), ("big", 14), ("small", 1)):
        plan.submit(sequence(name, max_tokens=tokens))
    assert [one.request for one in plan.admit()] == ["a"]
    assert plan.admit() == []
    plan.remove(("a", 0))
    assert [one.request for one in plan.admit()] == ["big"]
    plan.remove(("big", 0))
    assert [one.request for one in plan.admit()] == ["small"]
    assert set(plan.tables) == {("small", 0)}


def test_no_more_sequences_than_allowed() -> None:
    plan = scheduler(num_blocks=50, max_sequences=2)
    for name in "abc":
        plan.submit(sequence(name))
    assert [one.request for one in plan.admit()] == ["a", "b"]
    plan.remove(("b", 0))
    assert [one.request for one in plan.admit()] == ["c"]


def test_a_waiting_request_can_be_taken_back() -> None:
    plan = scheduler(max_sequences=1)
    for name in "abc":
        plan.submit(sequence(name))
    plan.admit()
    plan.remove(("b", 0))
    assert [one.request for one in plan.waiting] == ["c"]
    plan.remove(("nobody", 0))
    plan.remove(("a", 0))
    plan.remove(("c", 0))
    assert plan.blocks.num_free == plan.blocks.num_blocks
    assert not plan.tables


def test_prefill_is_shared_out_in_order() -> None:
    plan = scheduler(max_pending=10)
    short, long, late = sequence("a", prompt=1), sequence("b", prompt=30), sequence("c", prompt=3)
    assert plan.share_pending([short, long, late]) == [1, 9]
    long.cached = 27
    assert plan.share_pending([short, long, late]) == [1, 3, 3]
    assert plan.share_pending([]) == []
