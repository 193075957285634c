"""The state of an interrupted training on disk: tensors and numbers, replaced as a whole. Knows no head and no data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dist_spec.distill.cache import write_aside
from dist_spec.errors import ModelError

CHECKPOINT = "checkpoint.safetensors"


def save_checkpoint(
    file: Path,
    *,
    weights: Mapping[str, torch.Tensor],
    average: Mapping[str, torch.Tensor],
    optimiser: torch.optim.Optimizer,
    names: list[str],
    numbers: Mapping[str, Any],
) -> None:
    """Replace the checkpoint.

    Args:
        names: of the optimiser's parameters, in its order.
        numbers: JSON: where the data order stands, counts, history.
    """
    from safetensors.torch import save

    tensors = {f"weights/{name}": value for name, value in weights.items()}
    tensors |= {f"average/{name}": value for name, value in average.items()}
    for index, state in optimiser.state_dict()["state"].items():
        for key, value in state.items():
            tensors[f"optimiser/{names[index]}/{key}"] = torch.as_tensor(value)
    flat = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    write_aside(file, save(flat, {"numbers": json.dumps(dict(numbers))}))


def forget_checkpoint(folder: Path) -> None:
    """Another training begins in this folder: resuming it must never find the weights of the one before."""
    (folder / CHECKPOINT).unlink(missing_ok=True)


def load_checkpoint(file: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors and numbers of a checkpoint.

    Raises:
        ModelError: it cannot be read.
    """
    from safetensors import safe_open

    try:
        with safe_open(file, "pt") as handle:
            numbers = json.loads(handle.metadata()["numbers"])
            return {name: handle.get_tensor(name).clone() for name in handle.keys()}, numbers  # noqa: SIM118
    except Exception as error:
        raise ModelError(f"cannot read the checkpoint {file}: {error}", fix="start anew without --resume") from error


def restore(
    tensors: Mapping[str, torch.Tensor],
    *,
    module: nn.Module,
    average: Mapping[str, torch.Tensor],
    optimiser: torch.optim.Optimizer,
    names: list[str],
) -> None:
    """Put a checkpoint's tensors where they belong.

    Raises:
        ModelError: the checkpoint is of a head of another shape.
    """
    try:
        module.load_state_dict(_below(tensors, "weights/"))
        for name, value in _below(tensors, "average/").items():
            average[name].copy_(value)
    except (RuntimeError, KeyError) as error:
        raise ModelError(
            f"the checkpoint is of a head of another shape: {error}"[:400], fix="start anew without --resume"
        ) from error
    state: dict[int, dict[str, torch.Tensor]] = {}
    for index, name in enumerate(names):
        state[index] = _below(tensors, f"optimiser/{name}/")
    whole = optimiser.state_dict()
    optimiser.load_state_dict({"state": {i: s for i, s in state.items() if s}, "param_groups": whole["param_groups"]})


def _below(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
