"""How a drafter's large model is kept: what contradicts itself, gains nothing or is not served is refused with a way out."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dist_spec.config import Config, ModelDrafterConfig, parse_config
from dist_spec.errors import ConfigError, UnsupportedError

SPLIT = {"model.embed_tokens": "cpu", "model.layers": "disk"}
AO = {"method": "torchao", "quant_type": "Int8WeightOnlyConfig"}


def configured(target: dict[str, Any] | None = None, **drafter: Any) -> Config:
    entry = {"kind": "model", "model": "small", **drafter}
    return parse_config({"target": {"model": "large", **(target or {})}, "drafters": [entry]})


@pytest.mark.parametrize(
    "keys",
    [
        {"device_map": "auto"},
        {"device_map": "balanced", "max_memory": {"cpu": "1.5GiB", "cuda:1": "300MB"}},
        {"device_map": "sequential", "offload_folder": "/tmp/x"},
        {"device_map": SPLIT, "offload_folder": "/tmp/x"},
        {"device_map": {"": "cuda:0", "lm_head": "cuda:1"}, "quantization": AO},
        {"quantization": AO, "device": "cuda:1"},
    ],
)
def test_what_is_served_survives_a_file(keys: dict[str, Any]) -> None:
    config = configured(**keys)
    assert parse_config(yaml.safe_load(config.to_yaml())) == config
    drafter = config.drafters[0]
    assert isinstance(drafter, ModelDrafterConfig)
    assert {key: getattr(drafter, key) for key in keys} == keys


@pytest.mark.parametrize(
    ("keys", "error", "match"),
    [
        ({"device_map": SPLIT}, ConfigError, "no folder is named"),
        ({"device_map": {"": "disk"}, "offload_folder": "x"}, ConfigError, "no device is left to compute"),
        ({"device_map": {"": "cpu", "lm_head": "cpu"}}, ConfigError, "a device is simpler"),
        ({"device_map": {"": "cpu", "lm_head": "cuda:0"}, "offload_folder": "x"}, ConfigError, "puts nothing on disk"),
        ({"device_map": SPLIT, "offload_folder": "x", "max_memory": {"cpu": "1GiB"}}, ConfigError, "that is chosen"),
        ({"device_map": "auto", "device": "cuda:0"}, ConfigError, "contradicts"),
        ({"max_memory": {"cpu": "1GiB"}}, ConfigError, r"max_memory is for drafters\.0\.device_map"),
        ({"offload_folder": "x"}, ConfigError, r"offload_folder is for drafters\.0\.device_map"),
        ({"device_map": "auto", "layers": [0]}, UnsupportedError, r"layers with drafters\.0\.device_map"),
        ({"quantization": AO, "layers": [0]}, UnsupportedError, r"layers with drafters\.0\.quantization"),
        ({"quantization": {"quant_type": "x"}}, ConfigError, "names no method"),
        ({"quantization": AO, "device_map": SPLIT, "offload_folder": "x"}, UnsupportedError, "outside the GPUs"),
        ({"quantization": AO, "device_map": {"": "cpu", "lm_head": "cuda:0"}}, UnsupportedError, "outside the GPUs"),
        ({"quantization": AO, "device_map": "auto", "offload_folder": "x"}, UnsupportedError, "outside the GPUs"),
        ({"device_map": "best"}, ConfigError, r"drafters\.0\.device_map: 'best' is not allowed"),
        ({"device_map": {"lm_head": "gpu"}}, ConfigError, r"drafters\.0\.device_map\.lm_head: 'gpu'"),
        ({"device_map": "auto", "max_memory": {"cpu": "much"}}, ConfigError, "'much' is not of the right form"),
    ],
)
def test_what_is_wrong_together_is_refused(keys: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        configured(**keys)


def test_a_chosen_map_must_not_take_the_targets_gpus() -> None:
    with pytest.raises(ConfigError, match="the target's among them"):
        configured({"device": "cuda:0"}, device_map="auto")
    configured({"device": "cuda:0"}, device_map="auto", max_memory={"cuda:1": "20GiB"})


def test_the_target_must_be_itself() -> None:
    with pytest.raises(ConfigError, match=r"target\.quantization: the output must be the model's own"):
        configured({"quantization": AO})
    with pytest.raises(ConfigError, match=r"target\.device_map: .*parallel\.tp_size"):
        configured({"device_map": "auto"})
    with pytest.raises(ConfigError, match=r"drafters\.0\.device_map: unknown key"):
        parse_config({"target": {"model": "large"}, "drafters": [{"kind": "head", "device_map": "auto"}]})


def test_a_model_kept_otherwise_is_not_the_target_bit_by_bit() -> None:
    config = configured({"model": "small"})
    drafter = config.drafters[0]
    assert isinstance(drafter, ModelDrafterConfig)
    assert drafter.is_model_of(config.target)
    for keys in ({"quantization": AO}, {"device_map": SPLIT, "offload_folder": "x"}):
        other = configured({"model": "small"}, **keys).drafters[0]
        assert isinstance(other, ModelDrafterConfig)
        assert not other.is_model_of(config.target)
