"""Tiny models in folders, and ways to keep them: parts on disk, or quantised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dist_spec.models.large import load_large
from dist_spec.models.loading import LoadedModel
from dist_spec.models.placement import Placement
from dist_spec.models.random_models import build_random, byte_tokenizer

SPEC = "llama?seed=5&hidden=64&layers=4"
INT8 = {"method": "torchao", "quant_type": "Int8WeightOnlyConfig"}
ON_DISK = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.layers.2": "disk",
    "model.layers.3": "cpu",
    "model.norm": "cpu",
    "lm_head": "disk",
}


def saved(folder: Path, spec: str = SPEC) -> Path:
    """A folder as a user has one: config.json, model.safetensors, tokenizer.json."""
    build_random(spec).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(byte_tokenizer().to_str())
    return folder


def loaded(folder: Path, *, dtype: str = "float32", **wishes: Any) -> LoadedModel:
    return load_large(str(folder), placement=Placement(**wishes), dtype=dtype, device="cpu")
