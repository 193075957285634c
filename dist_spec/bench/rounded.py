"""A copy of a model whose linear layers were rounded to few bits: a drafter for measurements where there is no smaller
model at hand. The copy is kept among the converted models and loaded by its path; it is no faster than the original."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import nn

from dist_spec.errors import ModelError
from dist_spec.models.loading import load_model
from dist_spec.models.source import cache_folder, resolve


def rounded_copy(model: str, *, bits: int = 4, group: int = 32) -> Path:
    """The folder of the copy, made if it is not there: every group of `group` weights of a row of every linear layer but
    the head is rounded to the nearest of 2**bits - 1 evenly spaced values around 0 that reach its largest.

    Raises:
        ModelError: the model has no folder to take tokenizer and settings from.
    """
    source = resolve(model)
    if source.folder is None:
        raise ModelError(f"{model} is made in memory: no copy of it can be kept", fix="name a drafter (--drafter)")
    folder = cache_folder() / f"{source.folder.name}-rounded-{bits}bit-{group}"
    if (folder / "config.json").exists():
        return folder
    module = load_model(model, dtype="float32", device="cpu").model
    head = module.get_output_embeddings()
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and layer is not head:
            layer.weight.data = _rounded(layer.weight.data, bits=bits, group=group)
    scratch = folder.with_name(f"{folder.name}.part")  # `with_suffix` would cut "1.7B" in two
    shutil.rmtree(scratch, ignore_errors=True)
    module.save_pretrained(scratch)
    for file in source.folder.iterdir():
        if file.is_file() and not (scratch / file.name).exists() and file.suffix != ".safetensors":
            shutil.copy(file, scratch)
    scratch.rename(folder)
    return folder


def _rounded(weight: torch.Tensor, *, bits: int, group: int) -> torch.Tensor:
    """(out, in) -> the same, rounded in groups along `in`."""
    rows, columns = weight.shape
    padded = nn.functional.pad(weight, (0, -columns % group)).view(rows, -1, group)
    steps = 2 ** (bits - 1) - 1
    scale = padded.abs().amax(dim=-1, keepdim=True) / steps
    scale[scale == 0.0] = 1.0
    return ((padded / scale).round() * scale).view(rows, -1)[:, :columns].contiguous()
