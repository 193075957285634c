"""Hidden features of a target: the outputs of some decoder layers, caught during a forward and picked row by row as they
travel to draft heads. It knows no requests, heads or messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dist_spec.core.types import HalfArray
from dist_spec.errors import UnsupportedError

HALF_MAX = 65504.0
"""The largest float16: what a layer puts out may be larger (single channels of large models are)."""


def tells_features(model: Any) -> bool:
    """Whether the outputs of a transformers model's layers can be caught: it keeps them in one list."""
    layers = getattr(model.get_decoder(), "layers", None)
    return isinstance(layers, torch.nn.ModuleList) and len(layers) == model.config.get_text_config().num_hidden_layers


@contextmanager
def caught(model: Any, layers: Sequence[int], into: dict[int, torch.Tensor]) -> Iterator[None]:
    """While it lasts, a transformers model's own forward leaves the outputs of these decoder layers in `into`, each
    (rows, hidden) of the packed step.

    Raises:
        UnsupportedError: see `tells_features`.
    """
    if not layers:
        yield
        return
    if not tells_features(model):
        raise UnsupportedError(f"{type(model).__name__} does not keep its layers in one list: it gives no features")
    stack = model.get_decoder().layers
    hooks = [stack[number].register_forward_hook(_keep(number, into)) for number in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _keep(number: int, into: dict[int, torch.Tensor]) -> Any:
    def hook(module: Any, inputs: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        into[number] = hidden[0] if hidden.dim() == 3 else hidden

    return hook


def feature_rows(outputs: Sequence[torch.Tensor], rows: Sequence[int], *, stay: bool = False) -> HalfArray:
    """(n, sum of widths) float16 on the host: these packed rows of every output side by side, all numbers finite (what is
    none becomes 0: a row that overflowed is its request's trouble, nobody else's).

    Args:
        outputs: per layer (rows, hidden), in the order in which a head fuses them.
        stay: as a tensor where the outputs are; nobody waits for the device.
    """
    if not rows:
        return np.empty((0, sum(one.shape[1] for one in outputs)), np.float16)
    first, count = rows[0], len(rows)
    with torch.inference_mode():
        if list(rows) == list(range(first, first + count)):
            parts = [one[first : first + count] for one in outputs]
        else:
            index = torch.tensor(rows, dtype=torch.long, device=outputs[0].device)
            parts = [one.index_select(0, index) for one in outputs]
        joined: Any = torch.cat(parts, dim=1).float().nan_to_num_(0.0).clamp_(-HALF_MAX, HALF_MAX).half()
    found: HalfArray = joined if stay else joined.cpu().numpy()
    return found
