"""Linear layers whose weights stay in 8 bits, as plain functions. Knows no model.

For drafters: results are those of the same weights in 16 bits up to rounding, not bit for bit. With few rows a CPU spends
its time on reading weights, and memory that one core reads from is slower for the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from dist_spec.models.linear import Linear

FEW_ROWS = 8
"""With more, arithmetic takes the time, and 16 bits are faster."""

_LANES = 16
"""torch's product reads beyond the end of rows that are no multiple of this, and may crash."""

_FAST = ("AVX2", "AVX512")
"""Where torch has a fast product of this kind."""


def eight_bit_linear(weights: Sequence[torch.Tensor], scales: Sequence[torch.Tensor]) -> Linear | None:
    """One product for several layers with the same input and no bias; outputs side by side. None where it is not to be had.

    Args:
        weights: (n, in_features) bfloat16 each, on the CPU. Up to rounding they are whole multiples, at most 127, of their
            rows' scales.
        scales: (n,) each.
    """
    if any(one.dtype != torch.bfloat16 or one.device.type != "cpu" for one in weights):
        return None
    if weights[0].shape[1] % _LANES or torch.backends.cpu.get_cpu_capability() not in _FAST:
        return None
    steps = torch.cat(
        [(one.float() / scale[:, None]).round().to(torch.int8) for one, scale in zip(weights, scales, strict=True)]
    )
    scale = torch.cat(list(scales)).bfloat16()
    try:
        product = torch.ops.aten._weight_int8pack_mm.default
        probe = torch.linspace(-1, 1, 3 * steps.shape[1]).bfloat16().view(3, -1)
        expected = F.linear(probe.float(), steps.float()) * scale.float()
        close = torch.allclose(
            product(probe, steps, scale).float(), expected, rtol=0.02, atol=0.02 * float(expected.std())
        )
    except (AttributeError, RuntimeError):
        return None
    return (lambda x: product(x.contiguous(), steps, scale)) if close else None
