"""The runner against the stock model: every family, both block-table kinds, prefill, decode, chains, trees, compaction."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dist_spec.core.types import ForwardRow
from dist_spec.errors import CapacityError, ModelError
from dist_spec.models import invariance
from dist_spec.models.runner import ModelRunner
from tests.unit.model_cases import FAMILIES, ids, row, stock_logits, tiny

TABLES = {"contiguous": [0, 1, 2, 3, 4, 5, 6, 7], "scattered": [3, 7, 1, 6, 0, 5, 2, 4]}
RIDER = list(range(8, 16))
MODES = {"loop": (False, None), "single": (True, "single"), "shared": (True, "shared"), "padded": (False, "padded")}


def runner_of(family: str, mode: str, *, lean: bool = True, dtype: str = "float32") -> ModelRunner:
    invariant, attention = MODES[mode]
    return ModelRunner(
        tiny(family, dtype), num_blocks=16, block_size=4, batch_invariant=invariant, attention=attention, lean=lean
    )


def tree_row(table: list[int], cached: int, tokens: list[int]) -> ForwardRow:
    """One pending token, then `tokens[1:4]` as a path hidden among decoys: nodes 1, 3, 5 are the truth."""
    mixed = [tokens[0], 249, tokens[1], 248, tokens[2], 247, tokens[3]]
    return row(table, cached, mixed, [-1, -1, 1, 1, 3, 3])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("family", FAMILIES)
def test_follows_the_stock_model_through_prefill_chain_tree_compaction_and_decode(family, table, mode):
    blocks, tokens, runner = TABLES[table], ids(20), runner_of(family, mode)
    rider = ids(9, seed=1)
    first = runner.forward([row(blocks, 0, tokens[:9])])
    mixed = runner.forward([row(RIDER, 0, rider), row(blocks, 9, tokens[9:14], [-1, 0, 1])])
    drafted = tree_row(blocks, 14, tokens[14:18])
    tree = runner.forward([drafted, row(RIDER, 9, ids(2, seed=2))])[:7]
    runner.compact([drafted], [[1, 3, 5]])
    last = runner.forward([row(blocks, 18, tokens[18:])])
    ours = torch.cat([first, mixed[9:], tree[[0, 2, 4, 6]], last])
    torch.testing.assert_close(ours, stock_logits(tiny(family), tokens), atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(mixed[:9], stock_logits(tiny(family), rider), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_lean_and_stock_forward_agree(family):
    tokens = ids(14)
    rows = [tree_row(TABLES["scattered"], 6, tokens[6:10])]
    out = []
    for lean in (True, False):
        runner = runner_of(family, "loop", lean=lean)
        assert runner.packed.is_lean == (lean and not family.startswith("gemma"))
        runner.forward([row(TABLES["scattered"], 0, tokens[:6], wanted=0)])
        out.append(runner.forward(rows))
    torch.testing.assert_close(out[0], out[1], atol=2e-4, rtol=1e-4)


def test_decoys_change_nothing_for_the_true_path():
    tokens, runner = ids(14), runner_of("llama", "loop")
    runner.forward([row(RIDER, 0, tokens[:8], wanted=0)])
    tree = tree_row(RIDER, 8, tokens[8:12])
    wrong = ForwardRow(
        block_table=tree.block_table,
        cached=tree.cached,
        tokens=tree.tokens,
        num_pending=tree.num_pending,
        parents=np.arange(-1, 5, dtype=np.int32),  # the same tokens as a chain: decoys are seen now
        num_logits=tree.num_logits,
    )
    right = runner.forward([tree])
    assert (runner.forward([wrong])[6] - right[6]).abs().max() > 0.05
    torch.testing.assert_close(right[6], stock_logits(tiny("llama"), tokens[:12])[11], atol=2e-4, rtol=1e-4)


def test_rollback_is_overwriting():
    tokens, runner = ids(12), runner_of("qwen3", "loop")
    runner.forward([row(RIDER, 0, tokens[:8], wanted=0)])
    runner.forward([row(RIDER, 8, [*tokens[8:9], 3, 4, 5], [-1, 0, 1])])  # all rejected: `cached` simply stays behind
    after = runner.forward([row(RIDER, 9, tokens[9:12])])
    torch.testing.assert_close(after, stock_logits(tiny("qwen3"), tokens)[9:], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_compaction_of_a_path_in_place_moves_nothing(mode):
    tokens, runner = ids(16), runner_of("llama", mode)
    runner.forward([row(RIDER, 0, tokens[:8], wanted=0)])
    chain = row(RIDER, 8, tokens[8:13], [-1, 0, 1, 2])
    runner.forward([chain])
    before = runner.packed.cache.storage.clone()
    runner.compact([chain], [[0, 1, 2]])
    assert torch.equal(before, runner.packed.cache.storage)


def test_only_wanted_logits_come_back():
    tokens, runner = ids(10), runner_of("llama", "loop")
    full = stock_logits(tiny("llama"), tokens)
    out = runner.forward([row(RIDER, 0, tokens, wanted=2), row(TABLES["contiguous"], 0, tokens, wanted=0)])
    torch.testing.assert_close(out, full[8:], atol=2e-4, rtol=1e-4)
    assert runner.forward([]).shape == (0, runner.vocab_size)
    assert runner.forward([row(RIDER, 0, tokens, wanted=0)]).shape == (0, runner.vocab_size)


def test_launch_gives_what_forward_gives():
    tokens, runner = ids(6), runner_of("llama", "loop")
    started = runner.launch([row(RIDER, 0, tokens)])
    assert started.done()
    assert torch.equal(started.wait(), runner.forward([row(RIDER, 0, tokens)]))


@pytest.mark.parametrize("mode", MODES)
def test_a_sequence_beyond_the_first_rotary_table(mode):
    """Positions beyond the table computed at the start: it grows."""
    loaded = tiny("llama?max_len=6000&layers=1")
    invariant, attention = MODES[mode]
    runner = ModelRunner(loaded, num_blocks=6, block_size=1000, batch_invariant=invariant, attention=attention)
    tokens = ids(4, seed=3)
    at = 4500
    out = runner.forward([row([0, 1, 2, 3, 4], at, tokens)])
    assert out.isfinite().all()
    table = loaded.lean._table
    assert len(table) > at + 3
    cos, _ = loaded.model.model.rotary_emb(torch.zeros(1, 1), torch.tensor([[at]]))
    torch.testing.assert_close(table[at, 0, 0], cos[0, 0])


def test_too_long_is_refused():
    runner = runner_of("llama", "loop")
    with pytest.raises(CapacityError, match="do not fit"):
        runner.forward([row([0, 1], 6, ids(3))])
    short = ModelRunner(tiny("llama?max_len=8"), num_blocks=4, block_size=4, batch_invariant=False)
    with pytest.raises(CapacityError, match="context of 8"):
        short.forward([row([0, 1, 2], 7, ids(2))])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_load_check_passes_for_what_is_served(family, dtype):
    for mode in MODES:
        invariance.check_against_stock(tiny(family, dtype), runner_of(family, mode, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", ["window", "rotary", "scale"])
def test_the_load_check_refuses_a_forward_that_is_subtly_wrong(fault, dtype, monkeypatch):
    loaded = tiny("mistral?window=6&seed=5", dtype)
    runner = ModelRunner(loaded, num_blocks=4, block_size=4, batch_invariant=False)
    for layer in loaded.lean._layers:
        if fault == "window":
            monkeypatch.setattr(layer, "window", None)
        if fault == "scale":
            monkeypatch.setattr(layer, "scale", layer.scale * 1.5)
    if fault == "rotary":
        table = loaded.lean._table  # a constant shift would change nothing: rotation is relative
        monkeypatch.setattr(loaded.lean, "_table", torch.cat([table[:20:2], table]))
    with pytest.raises(ModelError, match="differ from the stock"):
        invariance.check_against_stock(loaded, runner)
