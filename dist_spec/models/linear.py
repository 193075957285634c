"""Linear layers as plain functions, with weights laid out ahead of time where that pays. Knows no model.

On CPU in bfloat16, `F.linear` lays out its weights anew in every call; with the layout made once, a one-row product
over all of SmolLM2's weights takes half the time, and the results are bit-identical (checked when packing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F

Linear: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""(rows, in_features) -> (rows, out_features)"""

INVARIANT_ROWS = 4
"""With at least so many rows, a row's result does not depend on the number of rows (CPU; measured on millions of
elements). One row alone takes another path: every float32 product differs, in bfloat16 1.7e-4 of the elements of a
product over 1536 inputs, few enough for a short probe to miss. So one row is never trusted."""


def plain_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    return lambda x: F.linear(x, weight, bias)


def packed_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear | None:
    """A linear layer with its own laid-out copy of `weight`; None where this build cannot, or where results differ."""
    if weight.dtype != torch.bfloat16 or weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    try:
        laid_out = torch.ops.mkldnn._reorder_linear_weight(weight)
        operator = torch.ops.mkldnn._linear_pointwise.default
        probe = torch.linspace(-1, 1, 5 * weight.shape[1], dtype=weight.dtype).view(5, -1)
        same = torch.equal(operator(probe, laid_out, bias, "none", [], ""), F.linear(probe, weight, bias))
    except (AttributeError, RuntimeError):
        return None
    if not same:
        return None
    return lambda x: operator(x, laid_out, bias, "none", [], "")


def fused_linear(modules: Sequence[torch.nn.Linear], *, pack: bool) -> Linear:
    """One product for several linear layers with the same input; outputs side by side.

    Without packing, the modules' own weights become views of the fused one, so that nothing is stored twice.
    """
    biased = modules[0].bias is not None
    with torch.no_grad():
        weight = modules[0].weight if len(modules) == 1 else torch.cat([m.weight for m in modules])
        bias = torch.cat([m.bias for m in modules]) if biased else None
        linear = packed_linear(weight.detach(), bias) if pack else None
        if linear is not None:
            return linear
        if len(modules) > 1:
            for module, part in zip(modules, weight.split([m.weight.shape[0] for m in modules]), strict=True):
                module.weight.data = part
        return plain_linear(weight.detach(), bias)
