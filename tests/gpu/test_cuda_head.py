"""Draft heads on CUDA against the CPU: features that a target on a GPU tells, and a head's guesses. Skipped without CUDA."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dist_spec.drafters.head import HeadDrafter
from dist_spec.models.loading import load_model
from dist_spec.models.runner import ModelRunner
from tests.unit.head_cases import LAYERS, TARGET, features_of, tiny_head
from tests.unit.model_cases import ids, row
from tests.unit.test_head_drafter import feed, grow
from tests.unit.test_model_drafter import Request

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def test_features_may_stay_on_the_gpu() -> None:
    loaded = load_model(TARGET, dtype="float32", device="cuda:0")
    runner = ModelRunner(loaded, num_blocks=16, block_size=8, batch_invariant=False)
    runner.capture(LAYERS)
    text = ids(20)
    pending = runner.launch([row(range(4), 0, text)])
    pending.wait()
    stayed = pending.features(range(20), stay=True)
    assert isinstance(stayed, torch.Tensor)
    assert stayed.device.type == "cuda"
    np.testing.assert_array_equal(stayed.cpu().numpy(), pending.features(range(20)))
    head = tiny_head()
    drafter, request = HeadDrafter(tiny_head().to("cuda:0"), window=64, tree_slots=64), Request(ids(12))
    drafter.features(request.key, 0, torch.from_numpy(features_of(request.history)[:11]).to("cuda:0"))  # type: ignore[arg-type]
    grow(drafter, head, request, num_true=11, steps=2, seed=1)


@pytest.mark.parametrize("lean", [True, False])
def test_features_of_a_target_on_a_gpu(lean: bool) -> None:
    loaded = load_model(TARGET, dtype="float32", device="cuda:0")
    runner = ModelRunner(loaded, num_blocks=16, block_size=8, batch_invariant=False, lean=lean)
    runner.capture(LAYERS)
    text = ids(20)
    pending = runner.launch([row(range(4), 0, text), row(range(8, 12), 0, ids(7, seed=3))])
    pending.wait()
    np.testing.assert_allclose(pending.features(range(20)), features_of(text), rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(pending.features([3, 9]), features_of(text)[[3, 9]], rtol=2e-2, atol=2e-2)


def test_a_head_on_a_gpu_guesses_what_it_does_on_a_cpu() -> None:
    head = tiny_head()
    drafter = HeadDrafter(tiny_head().to("cuda:0"), window=64, tree_slots=64)
    request = Request(ids(12))
    feed(drafter, request, 0, 11)
    grow(drafter, head, request, num_true=11, steps=3, seed=1)
    chain = [request.tree.token[n] for n in request.tree.best_chain(2)]
    request.commit([*chain, 9])
    feed(drafter, request, 11, len(request.history) - 1)
    grow(drafter, head, request, num_true=len(request.history) - 1, steps=3, seed=2)
