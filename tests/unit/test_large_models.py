"""Models whose weights are on disk or quantised: they compute what they should, drafts are the same, and what is missing or
does not fit is said in one line."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from dist_spec.commands.check import check_all
from dist_spec.config import parse_config
from dist_spec.drafters.model import ModelDrafter
from dist_spec.errors import ConfigError, ModelError, UnsupportedError
from dist_spec.models import large as large_module
from dist_spec.models.invariance import check_against_stock
from dist_spec.models.parallel import deepspeed as deepspeed_module
from dist_spec.models.runner import ModelRunner
from dist_spec.models.student import early_exit
from tests.unit.large_cases import INT8, ON_DISK, loaded, saved
from tests.unit.model_cases import ids, stock_logits
from tests.unit.test_model_drafter import Request

needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="quantised drafters are not tested: pip install torchao"
)
WAYS = [
    pytest.param({"device_map": ON_DISK}, id="disk"),
    pytest.param({"device_map": "auto", "max_memory": {"cpu": "300KB"}}, id="chosen"),
    pytest.param({"device_map": {"": "cpu", "model.layers.1.mlp": "disk"}}, id="part of a layer"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("large") / "model")


def drafts(model, *, steps: int = 4) -> list[list[int]]:
    """What a drafter guesses while its tree grows and commits arrive."""
    drafter = ModelDrafter(model, max_requests=1, max_context=128)
    request = Request(ids(20))
    found: list[list[int]] = []
    for _ in range(steps):
        leaves = [request.tree.root]
        for _ in range(2):
            expansions = drafter.expand([request.row(leaves)])[0]
            found.extend(guesses.tokens.tolist() for guesses in expansions)
            leaves = [node for leaf, one in zip(leaves, expansions, strict=True) for node in request.graft(leaf, one)][
                :4
            ]
        request.commit([found[-1][0], 7])
    return found


@pytest.mark.parametrize("wishes", WAYS)
def test_drafts_are_those_of_the_whole_model(folder, wishes, tmp_path):
    model = loaded(folder, offload_folder=str(tmp_path), **wishes)
    on_disk = [name for name, weight in model.model.named_parameters() if weight.device.type == "meta"]
    assert model.stock_only
    assert on_disk  # nothing of these is in memory
    check_against_stock(loaded(folder), ModelRunner(model, num_blocks=8, block_size=8, batch_invariant=False))
    assert drafts(model) == drafts(loaded(folder))
    assert [name for name, weight in model.model.named_parameters() if weight.device.type == "meta"] == on_disk


def test_what_fits_on_one_device_runs_as_any_other_model(folder):
    model = loaded(folder, device_map="auto")
    assert not model.stock_only
    assert ModelRunner(model, num_blocks=8, block_size=8, batch_invariant=False).packed.is_lean


@needs_torchao
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_quantised_weights_are_small_and_run_through_their_own_forward(folder, dtype):
    model, whole = loaded(folder, dtype=dtype, quantization=INT8), loaded(folder, dtype=dtype)
    kind = type(model.model.model.layers[0].mlp.up_proj.weight)
    assert kind is not torch.nn.Parameter
    runner = ModelRunner(model, num_blocks=8, block_size=8, batch_invariant=False)
    assert not runner.packed.is_lean
    check_against_stock(model, runner)
    ours, theirs = (stock_logits(one, ids(20)) for one in (model, whole))
    assert 0 < float((ours - theirs).square().mean().sqrt() / theirs.square().mean().sqrt()) < 0.2
    with pytest.raises(UnsupportedError, match="layers cannot be dropped"):
        early_exit(model, [0])


@needs_torchao
def test_a_checkpoint_that_was_quantised_loads_as_it_is(folder, tmp_path):
    first = loaded(folder, quantization=INT8)
    stored = tmp_path / "stored"
    first.model.save_pretrained(stored)
    assert json.loads((stored / "config.json").read_text())["quantization_config"]["quant_method"] == "torchao"
    again = loaded(stored)
    assert again.stock_only
    assert torch.allclose(*(stock_logits(one, ids(20)) for one in (first, again)), atol=1e-3)
    with pytest.raises(ModelError, match="cannot be quantised again"):
        loaded(stored, quantization=INT8)
    with pytest.raises(ModelError, match="disk offload with a pre-quantized"):
        loaded(stored, device_map=ON_DISK, offload_folder=str(tmp_path))


@pytest.mark.parametrize(
    ("quantization", "match"),
    [
        ({"method": "int7"}, "transformers has no method 'int7'"),
        ({"method": "bitsandbytes"}, "needs load_in_8bit: true or load_in_4bit: true"),
        ({"method": "quanto", "weight": "int8"}, "method quanto has no option 'weight'"),
        pytest.param({"method": "torchao", "quant_type": "Int9"}, "torchao has no configuration", marks=needs_torchao),
    ],
)
def test_a_wrong_method_or_option_is_named(folder, quantization, match):
    with pytest.raises(ConfigError, match=match):
        loaded(folder, quantization=quantization)


def test_options_that_the_method_refuses_are_told(folder):
    with pytest.raises(ModelError, match="Only support weights in"):
        loaded(folder, quantization={"method": "quanto", "weights": "int3"})


def test_a_missing_package_is_named_with_its_extra(folder, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchao"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(ConfigError, match=r"method torchao needs a package that is missing.*torchao") as caught:
        loaded(folder, quantization=INT8)
    assert caught.value.fix == "pip install 'dist_spec[quantized]'"
    monkeypatch.setattr("transformers.quantizers.quantizer_bnb_8bit.is_bitsandbytes_available", lambda: False)
    with pytest.raises(ConfigError, match=r"bitsandbytes needs a package .*pip install"):
        loaded(folder, quantization={"method": "bitsandbytes", "load_in_8bit": True})
    monkeypatch.setattr(deepspeed_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the package deepspeed, which is not installed") as caught:
        deepspeed_module.check_deepspeed()
    assert "dist_spec[deepspeed]" in str(caught.value.fix)


def test_what_is_made_in_memory_cannot_be_spread():
    with pytest.raises(UnsupportedError, match="made in memory"):
        loaded(Path("random:llama"), device_map="auto")


def test_running_out_of_memory_is_told_with_a_way_out(folder, monkeypatch, tmp_path):
    def full(*args, **options):
        raise ModelError("cannot load") from torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(large_module, "read_module", full)
    with pytest.raises(ModelError, match=r"does not fit: CUDA out of memory\. Tried") as caught:
        loaded(folder, device_map=ON_DISK, offload_folder=str(tmp_path))
    assert "offload_folder" in str(caught.value.fix)


def checked(folder, **drafter):
    entry = {"kind": "model", "model": str(folder), "dtype": "float32", **drafter}
    return check_all(
        parse_config({"target": {"model": str(folder), "dtype": "float32"}, "drafters": [entry]}), source="c.yaml"
    )


def test_check_reckons_every_place_and_refuses_what_does_not_fit(folder, tmp_path):
    whole = {name: need for name, _, need in checked(folder).needs}["model0"]
    report = checked(folder, device_map=ON_DISK, offload_folder=str(tmp_path))
    assert report.problems == []
    parts = {place: need for name, place, need in report.needs if name == "model0"}
    assert set(parts) == {"cpu", "disk"}
    assert parts["cpu"].kv_bytes == whole.kv_bytes
    assert parts["disk"].kv_bytes == parts["disk"].process_bytes == 0
    weights = {place: part.weights_bytes for place, part in parts.items()}
    assert weights["cpu"] < whole.weights_bytes < sum(weights.values())  # the largest part on disk is fetched
    (problem,) = checked(folder, device_map="auto", max_memory={"cpu": "300KB"}).problems
    assert "do not fit (cpu: 300KB)" in problem.message
    assert "offload_folder" in str(problem.fix)
    (problem,) = checked(folder, device_map={"": "cpu", "lm_head": "cuda:63"}).problems
    assert "no device cuda:63" in problem.message


@needs_torchao
def test_check_reckons_with_the_quantised_size(folder):
    def weights(**drafter):
        (need,) = [need for name, _, need in checked(folder, **drafter).needs if name == "model0"]
        return need.weights_bytes

    assert 0.25 * weights() < weights(quantization=INT8) < 0.5 * weights()
