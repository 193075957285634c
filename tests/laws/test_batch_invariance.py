"""Law: in batch-invariant mode a token's logits are the same bits however many rows ride along and however they come."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dist_spec.models import invariance
from dist_spec.models.loading import load_model
from dist_spec.models.runner import ModelRunner
from tests.unit.model_cases import FAMILIES, ids, row, tiny

TABLE = [9, 2, 7, 4, 5, 0, 3, 1, 6, 8, 10, 11, 12, 13, 14, 15]
RIDERS = [list(range(first, first + 16)) for first in (16, 32, 48)]
LENGTH = 56


def invariant_runner(family: str, dtype: str, **keys: object) -> ModelRunner:
    return ModelRunner(tiny(family, dtype), num_blocks=64, block_size=4, batch_invariant=True, **keys)


def one_by_one(runner: ModelRunner, tokens: list[int], table: list[int]) -> torch.Tensor:
    return torch.cat([runner.forward([row(table, i, [token])]) for i, token in enumerate(tokens)])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_chains_trees_and_riders_change_no_bit(family, dtype):
    runner, tokens = invariant_runner(family, dtype), ids(LENGTH)
    truth = one_by_one(runner, tokens, TABLE)
    random = np.random.default_rng(1)
    at = 0
    while at < LENGTH:
        size = int(min(random.integers(1, 13), LENGTH - at))
        nodes = int(random.integers(0, size))
        parents = list(range(-1, nodes - 1))
        rows = [row(RIDERS[r], 0, ids(int(random.integers(1, 30)), seed=r)) for r in range(int(random.integers(0, 4)))]
        place = int(random.integers(0, len(rows) + 1))
        rows.insert(place, row(TABLE, at, tokens[at : at + size], parents))
        first = sum(r.num_logits for r in rows[:place])
        assert torch.equal(runner.forward(rows)[first : first + size], truth[at : at + size]), (at, size, nodes)
        at += size


@pytest.mark.parametrize("table", [TABLE, list(range(16))])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_path_in_any_tree_has_the_bits_of_plain_decoding_and_compacts_to_them(family, dtype, table):
    runner, tokens = invariant_runner(family, dtype), ids(40, seed=2)
    truth = one_by_one(runner, tokens, RIDERS[0])
    random = np.random.default_rng(3)
    runner.forward([row(table, 0, tokens[:9], wanted=0)])
    at = 9
    while at + 6 < len(tokens):
        depth = int(random.integers(1, 6))
        drafted, path = tangled(tokens[at + 1 : at + 1 + depth], random)
        offered = row(table, at, [tokens[at], *[t for t, _ in drafted]], [p for _, p in drafted])
        rider = row(RIDERS[1], 0, ids(5, seed=at))
        out = runner.forward([rider, offered])[5:]
        kept = [0, *[1 + node for node in path]]
        assert torch.equal(out[kept], truth[at : at + 1 + depth]), (at, drafted)
        runner.compact([offered], [path])
        at += 1 + depth


def tangled(path: list[int], random: np.random.Generator) -> tuple[list[tuple[int, int]], list[int]]:
    """(token, parent) nodes in which `path` hides among decoys below random nodes; and where its nodes are."""
    nodes: list[tuple[int, int]] = []
    places: list[int] = []
    for token in path:
        for _ in range(int(random.integers(0, 3))):
            nodes.append((int(random.integers(0, 250)), int(random.integers(-1, len(nodes))) if nodes else -1))
        nodes.append((token, places[-1] if places else -1))
        places.append(len(nodes) - 1)
    return nodes, places


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_free_mode_is_not_invariant_and_the_probe_says_so(dtype):
    """The control: without the mode the same comparison must fail (bits) yet stay small."""
    loaded = tiny("llama?layers=4&seed=1", dtype)
    free = ModelRunner(loaded, num_blocks=4, block_size=4, batch_invariant=False)
    strict = ModelRunner(loaded, num_blocks=4, block_size=4, batch_invariant=True)
    found = invariance.probe(free)
    assert not found.bit_equal
    assert 0 < found.max_logit_difference < 1
    assert invariance.probe(strict) == invariance.Probe(bit_equal=True, max_logit_difference=0.0, checked_rows=36)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_smollm2_is_bit_equal(dtype):
    loaded = load_model("smollm2", dtype=dtype, device="cpu")
    runner = ModelRunner(loaded, num_blocks=4, block_size=16, batch_invariant=True)
    assert runner.packed.is_lean
    invariance.check_against_stock(loaded, runner)
    for seed in range(3):
        assert invariance.probe(runner, seed=seed).bit_equal
