"""The runner on CUDA against the CPU: padded attention, trees, compaction, the model drafter. Skipped without CUDA.

Never run yet: no GPU was at hand when this was written. `tests/gpu/smoke.sh` runs it (under 4 minutes on one GPU).
"""

from __future__ import annotations

import pytest
import torch

from dist_spec.drafters.model import ModelDrafter
from dist_spec.errors import UnsupportedError
from dist_spec.models import invariance
from dist_spec.models.loading import LoadedModel, load_model
from dist_spec.models.runner import ModelRunner
from tests.unit.model_cases import FAMILIES, ids, row, stock_logits, tiny
from tests.unit.test_model_drafter import Request, check

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

TABLE = [3, 7, 1, 6, 0, 5, 2, 4]
RIDER = list(range(8, 16))


@pytest.fixture(autouse=True)
def exact_products():
    """TF32 would hide real differences behind its own rounding."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def on_gpu(family: str, dtype: str) -> LoadedModel:
    return load_model(f"random:{family}", dtype=dtype, device="cuda:0")


@pytest.mark.parametrize("family", FAMILIES)
def test_cuda_follows_the_cpu_through_prefill_tree_compaction_and_decode(family):
    runner = ModelRunner(on_gpu(family, "float32"), num_blocks=16, block_size=4, batch_invariant=False)
    assert runner.packed.attention == "padded"
    tokens = ids(20)
    first = runner.forward([row(TABLE, 0, tokens[:9]), row(RIDER, 0, ids(5, seed=1))])[:9]
    drafted = row(TABLE, 9, [tokens[9], 249, tokens[10], 248, tokens[11]], [-1, -1, 1, 1])
    tree = runner.launch([row(RIDER, 5, ids(2, seed=2)), drafted]).wait()[2:]
    runner.compact([drafted], [[1, 3]])
    last = runner.forward([row(TABLE, 12, tokens[12:])])
    ours = torch.cat([first, tree[[0, 2, 4]], last]).cpu()
    torch.testing.assert_close(ours, stock_logits(tiny(family), tokens), atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_load_check_and_the_probe_pass_on_cuda(family, dtype):
    loaded = on_gpu(family, dtype)
    runner = ModelRunner(loaded, num_blocks=4, block_size=4, batch_invariant=False)
    invariance.check_against_stock(loaded, runner)
    assert invariance.probe(runner).max_logit_difference < 2.0


def test_the_model_drafter_on_cuda():
    drafter = ModelDrafter(on_gpu("llama", "float32"), max_context=64, tree_slots=32)
    request = Request(ids(9))
    leaves = [request.tree.root]
    for _ in range(4):
        guesses = drafter.expand([request.row(leaves)])[0]
        check("llama", request, leaves, guesses)
        leaves = [node for leaf, guess in zip(leaves, guesses, strict=True) for node in request.graft(leaf, guess)][:4]
    request.commit([request.tree.token[n] for n in request.tree.best_chain(2)])
    check("llama", request, [request.tree.root], drafter.expand([request.row([request.tree.root])])[0])


def test_invariant_mode_is_refused_on_cuda():
    with pytest.raises(UnsupportedError, match="CPU only"):
        ModelRunner(on_gpu("llama", "float32"), num_blocks=4, block_size=4, batch_invariant=True)
