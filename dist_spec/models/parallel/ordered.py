"""Sums over ranks in the order of the ranks, whatever the size of what is summed. It knows transformers' way to shard a
module, and no model.

A backend's own sum over more than two ranks cuts its buffer into pieces and begins each at another rank, so the rounding
of a row depends on how many rows ride along: batch-invariant mode would not be bit-equal. Two ranks need none of this.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES, RowwiseParallel

ORDERED_ROWWISE = "dist_spec_ordered_rowwise"


class _OrderedRowwise(RowwiseParallel):
    """A linear layer split along its inputs (part of transformers' own kind is replaced, so it has to be one of it)."""

    def transform_output_post_forward(self, module: Any, output: torch.Tensor, mesh: Any) -> torch.Tensor:
        parts = [torch.empty_like(output) for _ in range(mesh.size())]
        dist.all_gather(parts, output.contiguous(), group=mesh.get_group())
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        bias = module._parameters.get("bias")
        if bias is None:
            return total
        return total + (bias.to_local() if hasattr(bias, "to_local") else bias)


ALL_PARALLEL_STYLES.register(ORDERED_ROWWISE, _OrderedRowwise())


def ordered_plan(plan: dict[str, str]) -> dict[str, str]:
    """What of a model's plan is to be done in order."""
    return {name: ORDERED_ROWWISE for name, style in plan.items() if style == "rowwise"}
