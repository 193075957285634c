"""Model ids, conversion, and what is refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from dist_spec.errors import ModelError, UnsupportedError
from dist_spec.models import source
from dist_spec.models.convert import convert_gguf
from dist_spec.models.loading import check_module, load_model
from dist_spec.models.random_models import build_random


def saved(folder: Path, spec: str = "llama") -> Path:
    build_random(spec).save_pretrained(folder)
    return folder


def size_of(spec: str) -> float:
    return sum(p.double().abs().sum().item() for p in build_random(spec).parameters())


def test_a_random_model_is_a_function_of_its_name():
    before = torch.random.get_rng_state()
    here = size_of("qwen3?seed=3")
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(3)
    assert here == size_of("qwen3?seed=3") != size_of("qwen3?seed=4")


@pytest.mark.slow
def test_a_random_model_is_the_same_in_every_process():
    code = (
        "from dist_spec.models.random_models import build_random as b;"
        "print(sum(p.double().abs().sum().item() for p in b('qwen3?seed=3').parameters()))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(other.stdout) == size_of("qwen3?seed=3")


@pytest.mark.parametrize(
    ("spec", "match"),
    [("lama", "family"), ("llama?sead=1", "sead"), ("llama?seed=x", "whole number"), ("llama?vocab=8", "below 259"),
     ("llama?heads=3", "random model"), ("llama?layers=0", "layers=0"), ("llama?head_dim=7", "random model"),
     ("llama?window=4", "no sliding window")],
)  # fmt: skip
def test_a_wrong_random_id_names_the_fault(spec, match):
    with pytest.raises(ModelError, match=match):
        load_model(f"random:{spec}", dtype="float32", device="cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_folder_is_loaded_in_the_asked_dtype(tmp_path, dtype):
    loaded = load_model(str(saved(tmp_path)), dtype=dtype, device="cpu")
    assert loaded.model.lm_head.weight.dtype == getattr(torch, dtype) == loaded.dtype
    assert not loaded.model.training
    stock = build_random("llama").lm_head.weight.to(loaded.dtype)
    assert torch.equal(loaded.model.lm_head.weight, stock)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised checkpoint .fp8."),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "t5"}, "encoder-decoder"),
        ({"vision_config": {}}, "multimodal"),
    ],
)
def test_unsupported_checkpoints_are_refused_by_name_before_any_weight_is_read(tmp_path, changes, match):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"} | changes))
    with pytest.raises(UnsupportedError, match=match):
        load_model(str(tmp_path), dtype="float32", device="cpu")


def test_a_lora_adapter_is_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UnsupportedError, match="LoRA"):
        load_model(str(tmp_path), dtype="float32", device="cpu")


def test_remote_code_is_off_unless_asked_for(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "c.C"}}))
    with pytest.raises(ModelError, match="trust_remote_code"):
        load_model(str(tmp_path), dtype="float32", device="cpu")


@pytest.mark.parametrize("family", ["bloom", "falcon"])
def test_architectures_without_the_attention_interface_are_refused(family):
    keys = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "n_layer": 1, "n_head": 2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, vocab_size=64, **keys))
    with pytest.raises(UnsupportedError, match="AttentionInterface"):
        check_module(model, name=family)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, "dynamic"),
        ({"kv_lora_rank": 4}, "latent attention"),
        ({"max_position_embeddings": 0}, "max_position_embeddings"),
    ],
)
def test_states_and_rotations_that_a_batch_would_mix_up_are_refused(changes, match):
    model = build_random("qwen2")
    for name, value in changes.items():
        setattr(model.config, name, value)
    with pytest.raises(UnsupportedError, match=match):
        check_module(model, name="toy")


@pytest.mark.parametrize(
    ("model", "match"),
    [("/no/such/folder", "does not exist"), ("/no/such.gguf", "does not exist"), ("nothing", "does not exist")],
)
def test_missing_models_are_named(model, match):
    with pytest.raises(ModelError, match=match):
        load_model(model, dtype="float32", device="cpu")


def test_a_hub_name_without_a_hub_is_a_clear_error(monkeypatch):
    monkeypatch.setattr(source, "_reachable", lambda _: False)
    with pytest.raises(ModelError, match="not reachable"):
        load_model("some-org/some-model", dtype="float32", device="cpu")


def test_a_broken_folder_is_a_clear_error(tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_model(str(tmp_path), dtype="float32", device="cpu")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot read"):
        load_model(str(tmp_path), dtype="float32", device="cpu")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="holds no settings"):
        load_model(str(tmp_path), dtype="float32", device="cpu")
    saved(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(ModelError, match="cannot load"):
        load_model(str(tmp_path), dtype="float32", device="cpu")


def test_pickled_weights_are_not_read(tmp_path):
    weights = saved(tmp_path) / "model.safetensors"
    weights.unlink()
    torch.save(build_random("llama").state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot load"):
        load_model(str(tmp_path), dtype="float32", device="cpu")


@pytest.mark.parametrize("model", ["x" * 5000, "~nobody_of_that_name/model"])
def test_paths_that_the_system_refuses_are_clear_errors(model):
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(model, dtype="float32", device="cpu")


def test_a_cache_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"x")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"{_name_in_cache(tmp_path / 'a.gguf')}.lock").mkdir()  # where the lock would be written
    with pytest.raises(ModelError, match="cannot be read"):
        source.resolve(str(tmp_path / "a.gguf"), cache_dir=tmp_path / "cache")


def _name_in_cache(file: Path) -> str:
    return f"{file.stem}-{file.stat().st_size}-{int(file.stat().st_mtime)}"


def test_devices_and_dtypes_are_checked():
    with pytest.raises(ModelError, match="dtype"):
        load_model("random:llama", dtype="int8", device="cpu")
    with pytest.raises(ModelError, match="unknown device"):
        load_model("random:llama", dtype="float32", device="nowhere")
    with pytest.raises(UnsupportedError, match="not supported"):
        load_model("random:llama", dtype="float32", device="meta")
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match="does not exist here"):
            load_model("random:llama", dtype="float32", device="cuda:0")


def test_a_failed_conversion_leaves_nothing_behind(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUFnonsense")
    with pytest.raises(ModelError, match="cannot convert"):
        convert_gguf(tmp_path / "bad.gguf", target=tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["bad.gguf"]


def test_two_that_start_at_once_convert_once(tmp_path, monkeypatch):
    """The second waits for the lock, says so, and finds the folder."""
    calls: list[str] = []
    said: list[str] = []

    def convert(file: Path, *, target: Path, progress: object) -> None:
        calls.append(file.name)
        while not said:
            time.sleep(0.01)
        target.mkdir()
        (target / "config.json").write_text("{}")

    monkeypatch.setattr("dist_spec.models.convert.convert_gguf", convert)
    (tmp_path / "a.gguf").write_bytes(b"x")
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(source.resolve, str(tmp_path / "a.gguf"), cache_dir=tmp_path / "cache", progress=said.append)
            for _ in range(2)
        ]
        folders = {future.result(timeout=20).folder for future in both}
    assert calls == ["a.gguf"]
    assert len(folders) == 1
    assert "waiting for another process" in said[0]
