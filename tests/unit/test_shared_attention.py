"""Attention that all queries share: bit-equal to asking one query alone, whatever rides along and wherever it lies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dist_spec.models import shared_attention
from dist_spec.models.kv_cache import kv_shape
from dist_spec.models.packed import PackedModel, attention_for
from dist_spec.models.runner import ModelRunner
from dist_spec.models.shared_attention import _is_chain, fits, is_exact
from tests.unit.model_cases import ids, row, tiny

SHAPES = [(3, 3, 64), (2, 2, 8), (8, 4, 128), (1, 1, 16), (4, 1, 64), (2, 4, 32)]
BLOCKS = 40


@pytest.mark.parametrize("shape", SHAPES)
def test_products_here_are_chains(shape):
    assert is_exact(*shape, threads=torch.get_num_threads())


def test_a_product_that_adds_halves_is_found_out(monkeypatch):
    """Two partial sums instead of one chain: what a kernel does that unrolls over the terms."""
    whole = torch.bmm

    def halves(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return whole(a[:, :, ::2], b[:, ::2]) + whole(a[:, :, 1::2], b[:, 1::2])

    values = torch.randn((200, 2, 32))
    weights = torch.rand((2, 12, 192))
    assert _is_chain(weights, values, 64, 12)
    monkeypatch.setattr(shared_attention.torch, "bmm", halves)
    assert not _is_chain(weights, values, 64, 12)


def test_a_machine_without_chains_asks_one_query_at_a_time(monkeypatch):
    config = tiny("llama").config
    assert fits(kv_shape(config)[0], config.num_attention_heads, kv_shape(config)[1])
    cpu = torch.device("cpu")
    assert attention_for(config, device=cpu, batch_invariant=True) == "shared"
    monkeypatch.setattr("dist_spec.models.packed.fits", lambda *_: False)
    assert attention_for(config, device=cpu, batch_invariant=True) == "single"
    packed = PackedModel(tiny("llama", "bfloat16"), num_slots=8, batch_invariant=True)
    assert packed.attention == "single"
    assert packed.cache.storage.dtype == torch.bfloat16


def one_by_one(runner: ModelRunner, table: list[int], tokens: list[int]) -> torch.Tensor:
    return torch.cat([runner.forward([row(table, i, tokens[i : i + 1])]) for i in range(len(tokens))])


def random_tree(random: np.random.Generator, truth: list[int], size: int) -> tuple[list[int], list[int], list[int]]:
    """Nodes of which some form the path `truth`: tokens, parents, and the places of that path."""
    nodes: list[int] = []
    parents: list[int] = []
    path: list[int] = []
    places = sorted(random.choice(size, size=min(len(truth), size), replace=False).tolist())
    for node in range(size):
        if len(path) < len(truth) and node == places[len(path)]:
            nodes.append(truth[len(path)])
            parents.append(path[-1] if path else -1)
            path.append(node)
        else:
            nodes.append(int(random.integers(0, 250)))
            parents.append(int(random.integers(-1, node)) if node else -1)
    return nodes, parents, path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen2?window=6", "gemma2?window=40"])
@pytest.mark.parametrize("scattered", [False, True])
def test_trees_chains_and_riders_leave_every_bit_as_it_was(family, dtype, scattered):
    """Prefixes around the chunk border of 128 positions, random trees, riders, blocks of 16 and 32 tokens."""
    random = np.random.default_rng(1)
    truth = ids(150)
    table = random.permutation(20).tolist() if scattered else list(range(20))
    rider_table = list(range(20, BLOCKS))
    block_size = 32 if scattered else 16
    runner = ModelRunner(tiny(family, dtype), num_blocks=BLOCKS, block_size=block_size, batch_invariant=True)
    assert runner.packed.attention == "shared"
    plain = one_by_one(runner, table, truth)
    for head in (1, 5, 31, 64, 100, 120, 125, 127, 128, 130, 140):
        size = int(random.integers(2, 30))
        nodes, parents, path = random_tree(random, truth[head : head + int(random.integers(1, 10))], size)
        drafted = row(table, head - 1, [truth[head - 1], *nodes], parents)
        rider = row(rider_table, 0, ids(int(random.integers(1, 40)), seed=head))
        runner.forward([row(table, 0, truth[: head - 1], wanted=0)] if head > 1 else [rider])
        logits = runner.forward([rider, drafted] if head % 2 else [drafted, rider])
        first = len(rider.tokens) if head % 2 else 0
        ours = logits[[first, *(first + 1 + place for place in path)]]
        assert torch.equal(ours, plain[head - 1 : head + len(path)]), (head, size)


@pytest.mark.parametrize("chunk", [1, 7, 64, 150])
def test_prefill_in_any_chunks_is_the_same(chunk):
    truth, table = ids(150), list(range(20))
    runner = ModelRunner(tiny("llama", "bfloat16"), num_blocks=BLOCKS, block_size=16, batch_invariant=True)
    plain = one_by_one(runner, table, truth)
    pieces = [row(table, i, truth[i : i + chunk]) for i in range(0, len(truth), chunk)]
    assert torch.equal(torch.cat([runner.forward([piece]) for piece in pieces]), plain)


def test_what_an_earlier_owner_left_behind_is_not_seen():
    truth, table = ids(20), list(range(4))
    runner = ModelRunner(tiny("llama"), num_blocks=4, block_size=32, batch_invariant=True)
    plain = one_by_one(runner, table, truth)
    runner.packed.cache.storage.fill_(float("nan"))
    assert torch.equal(one_by_one(runner, table, truth), plain)


def test_a_tree_too_large_for_one_chunk_is_walked():
    random = np.random.default_rng(2)
    truth, table = ids(40), list(range(20))
    runner = ModelRunner(tiny("llama", "bfloat16"), num_blocks=BLOCKS, block_size=16, batch_invariant=True)
    plain = one_by_one(runner, table, truth)
    nodes, parents, path = random_tree(random, truth[30:38], 190)
    runner.forward([row(table, 0, truth[:29], wanted=0)])
    drafted = row(table, 29, [truth[29], *nodes], parents)
    logits = runner.forward([drafted])
    assert torch.equal(logits[[0, *(1 + place for place in path)]], plain[29:38])
    runner.compact([drafted], [path])  # walking lays paths over the nodes' own places, and puts them back
    assert torch.equal(runner.forward([row(table, 38, truth[38:])]), plain[38:])
