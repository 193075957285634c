"""Device maps made explicit before anything loads: who computes what, bytes per place, misfits; and step tensors that follow
the layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from dist_spec.errors import ConfigError, ModelError, UnsupportedError
from dist_spec.models.attention import attend_padded
from dist_spec.models.invariance import check_against_stock
from dist_spec.models.kv_cache import PagedKVCache
from dist_spec.models.placement import Placement, Plan, plan
from dist_spec.models.random_models import build_random
from dist_spec.models.runner import ModelRunner
from dist_spec.models.step import Segment, make_step
from tests.unit.model_cases import tiny

CPU, META = torch.device("cpu"), torch.device("meta")


def empty(layers: int = 12):
    config = build_random(f"llama?layers={layers}").config
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def planned(layers: int = 12, *, folder: str | None = "x", **wishes) -> Plan:
    placement = Placement(offload_folder=folder, **wishes)
    return plan(empty(layers), placement, device="cpu", name="tiny")


def bytes_of(module: torch.nn.Module) -> int:
    tensors = [*module.parameters(), *module.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_layer_1_is_not_layer_10():
    found = planned(device_map={"": "cpu", "model.layers.1": "disk"})
    disk = [part for part, place in found.device_map.items() if place == "disk"]
    assert disk == ["model.layers.1"]
    assert {f"model.layers.{number}" for number in range(12)} < set(found.device_map)
    assert found.layer_devices == ("cpu",) * 12


def test_what_lies_in_host_memory_is_computed_on_the_first_gpu():
    given = {"": "cpu", "model.layers.0": "cuda:1", "model.layers.1": "cuda:0", "model.layers.3": "disk"}
    found = planned(4, device_map=given)
    assert found.main == "cuda:1"
    assert found.layer_devices == ("cuda:1", "cuda:0", "cuda:1", "cuda:1")


def test_bytes_are_those_of_the_parts_and_of_the_largest_that_is_fetched():
    model = empty(4)
    layer, whole = bytes_of(model.model.layers[0]), bytes_of(model)
    found = planned(4, device_map={"": "cpu", "model.layers.1": "disk", "model.layers.2": "disk"})
    largest = bytes_of(model.model.layers[0].mlp.up_proj)
    assert found.weights == {"cpu": whole - 2 * layer + largest, "disk": 2 * layer}
    on_gpu = planned(4, device_map={"": "cuda:0", "lm_head": "cpu"})
    head = bytes_of(model.lm_head)
    assert on_gpu.weights == {"cuda:0": whole - head + head, "cpu": head}


@pytest.mark.parametrize("word", ["auto", "balanced", "sequential"])
def test_a_chosen_map_keeps_to_the_memory_given(word):
    whole = bytes_of(empty())
    limit = whole * 2 // 3
    found = planned(device_map=word, max_memory={"cuda:0": f"{limit // 1000}KB", "cuda:1": f"{limit // 1000}KB"})
    assert set(found.layer_devices) == {"cuda:0", "cuda:1"}
    assert all(found.weights[place] <= limit for place in ("cuda:0", "cuda:1"))
    assert found.is_spread


def test_a_chosen_map_that_does_not_fit_says_how_much_is_missing():
    with pytest.raises(ModelError, match=r"needs .* MiB for its weights; .* MiB of it do not fit \(cpu: 300KB\)"):
        planned(device_map="auto", max_memory={"cpu": "300KB"}, folder=None)
    found = planned(device_map="auto", max_memory={"cpu": "300KB"})
    assert found.weights["cpu"] <= 300_000 + bytes_of(empty(1).model.layers[0])
    assert found.weights["disk"] > 0


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"": "cpu", "model.layer.1": "disk"}, ModelError, "no module 'model.layer.1', perhaps you mean 'model.layers"),
        ({"model": "cpu"}, ModelError, "gives no place to lm_head"),
        ({"lm_head": "cpu", "model.layers.0": "cpu"}, ModelError, "and [0-9]+ more"),
        ({"": "cuda:0", "model.layers.1.mlp": "cuda:1"}, UnsupportedError, r"spreads model.layers.1 .* cuda:0, cuda:1"),
    ],
)
def test_a_map_with_a_mistake_is_told_before_loading(given, error, match):
    with pytest.raises(error, match=match):
        planned(4, device_map=given)


def test_parts_of_a_layer_may_lie_on_disk():
    found = planned(2, device_map={"": "cpu", "model.layers.1.mlp": "disk"})
    assert found.device_map["model.layers.1.mlp"] == "disk"
    assert found.device_map["model.layers.1.self_attn"] == "cpu"
    assert found.layer_devices == ("cpu", "cpu")


def test_quantised_weights_stay_on_gpus():
    wish = Placement(device_map={"": "cuda:0", "lm_head": "cpu"})
    with pytest.raises(UnsupportedError, match="a part outside the GPUs"):
        plan(empty(2), wish, device="cpu", name="tiny", quantizer=object())


def test_without_accelerate_its_extra_is_named(monkeypatch):
    monkeypatch.setattr("transformers.utils.is_accelerate_available", lambda: False)
    with pytest.raises(ConfigError, match="accelerate, which is not installed") as caught:
        planned(device_map="auto")
    assert caught.value.fix == "pip install 'dist_spec[large]'"


def test_each_layers_pool_lies_where_it_computes():
    config = tiny("llama?layers=4").config
    cache = PagedKVCache(config, num_slots=8, dtype=torch.float32, device=CPU, layer_devices=(CPU, META, META, CPU))
    assert [layer.device for layer in cache.layers] == [CPU, META, META, CPU]
    for number in (0, 3):
        cache.layers[number][:] = number + torch.arange(8.0).view(8, 1, 1, 1)
    cache.move(torch.tensor([1, 2]), torch.tensor([2, 5]))
    for number in (0, 3):
        assert (cache.layers[number][:, 0, 0, 0] - number).tolist() == [0, 1, 1, 3, 4, 2, 6, 7]


def test_index_tensors_and_masks_follow_the_layer_and_move_once():
    loaded = tiny("llama?layers=2")
    cache = PagedKVCache(loaded.config, num_slots=16, dtype=torch.float32, device=CPU, layer_devices=(CPU, META))
    scattered = np.array([0, 2, 4], dtype=np.int64)
    segment = Segment(
        first=0,
        count=3,
        key_start=None,
        key_slots=scattered,
        write_slots=scattered,
        query_positions=np.arange(3),
        key_positions=np.arange(3),
        mask=np.tril(np.ones((3, 3), dtype=np.bool_)),
    )
    tokens = np.array([5, 6, 7])
    step = make_step(
        [segment], tokens=tokens, positions=np.arange(3), logit_rows=[2], cache=cache, attend=attend_padded
    )
    heads, dim = loaded.config.num_attention_heads, loaded.config.head_dim
    kv_heads = loaded.config.num_key_value_heads
    for layer, device in enumerate((CPU, META, META)):
        query, kv = torch.ones(3, heads, dim, device=device), torch.ones(3, 2, kv_heads, dim, device=device)
        before = len(step.scratch)
        assert attend_padded(step, min(layer, 1), query, kv, scale=1.0).device == device
        assert layer < 2 or len(step.scratch) == before  # the second layer there finds all of it
    assert {value.device for value in step.scratch.values()} == {CPU, META}


@pytest.mark.parametrize("attention", ["loop", "padded"])
def test_a_model_with_two_pools_computes_what_it_did(attention):
    loaded = tiny("llama?layers=4")
    loaded = type(loaded)(
        name=loaded.name,
        model=loaded.model,
        config=loaded.config,
        dtype=loaded.dtype,
        device=CPU,
        layer_devices=(CPU, torch.device("cpu:0"), CPU, torch.device("cpu:0")),  # two names, so two pools
        stock_only=True,
    )
    runner = ModelRunner(loaded, num_blocks=8, block_size=8, batch_invariant=False, attention=attention)
    assert not runner.packed.is_lean
    with pytest.raises(ValueError, match="too many values"):
        assert runner.packed.cache.storage
    check_against_stock(loaded, runner)
