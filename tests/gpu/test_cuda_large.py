"""A model drafter on CUDA with layers in host memory and on disk, and a quantised one. Skipped without CUDA.

Never run yet: no GPU was at hand when this was written.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch

from dist_spec.models.invariance import check_against_stock
from dist_spec.models.runner import ModelRunner
from tests.unit.large_cases import INT8, loaded, saved

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

OFFLOADED = {"": "cuda:0", "model.layers.1": "cpu", "model.layers.2": "disk"}


def test_layers_elsewhere_are_computed_on_the_gpu(tmp_path):
    folder = saved(tmp_path / "model")
    model = loaded(folder, device_map=OFFLOADED, offload_folder=str(tmp_path / "offloaded"))
    assert set(model.layer_devices) == {torch.device("cuda:0")}
    runner = ModelRunner(model, num_blocks=8, block_size=8, batch_invariant=False)
    assert runner.packed.attention == "padded"
    check_against_stock(model, runner)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_layers_over_two_gpus_keep_their_kv_where_they_compute(tmp_path):
    model = loaded(saved(tmp_path / "model"), device_map={"": "cuda:0", "model.layers.1": "cuda:1"})
    runner = ModelRunner(model, num_blocks=8, block_size=8, batch_invariant=False)
    assert [pool.device.index for pool in runner.packed.cache.layers] == [0, 1, 0, 0]
    check_against_stock(model, runner)


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs torchao")
def test_quantised_on_a_gpu(tmp_path):
    model = loaded(saved(tmp_path / "model"), dtype="bfloat16", device_map={"": "cuda:0"}, quantization=INT8)
    check_against_stock(model, ModelRunner(model, num_blocks=8, block_size=8, batch_invariant=False))
