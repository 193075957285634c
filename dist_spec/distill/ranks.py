"""One process or several ranks: how a training step is shared. Knows no head and no data.

One process needs nothing. Several ranks (started by torchrun or `accelerate launch`, WORLD_SIZE > 1) go through
`accelerate`: data parallel, and the mixed precision of the device.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from dist_spec.errors import ConfigError

T = TypeVar("T")


class Ranks(Protocol):
    """What the training loop asks of its surroundings."""

    device: torch.device
    rank: int
    size: int

    def prepare(self, module: nn.Module) -> Any:
        """The module whose forward is called from now on."""
        ...

    def precision(self) -> AbstractContextManager[Any]:
        """Around every forward."""
        ...

    def backward(self, loss: torch.Tensor) -> None: ...

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks."""
        ...

    def decide(self, value: float) -> float:
        """What rank 0 says, on every rank."""
        ...


class OneProcess:
    """See `Ranks`. bfloat16 where the device multiplies in it, else float32."""

    rank, size = 0, 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare(self, module: nn.Module) -> Any:
        return module.to(self.device)

    def precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=has_bfloat16(self.device))

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def total(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def decide(self, value: float) -> float:
        return value


class Accelerated:
    """See `Ranks`.

    Raises:
        ConfigError: the package `accelerate` is not installed.
    """

    def __init__(self, device: torch.device) -> None:
        try:
            from accelerate import Accelerator
        except ImportError as error:
            raise ConfigError("training on several ranks needs accelerate", fix="pip install accelerate") from error
        precision = "bf16" if has_bfloat16(device) else "no"
        self._accelerator = Accelerator(mixed_precision=precision, cpu=device.type == "cpu")
        self.device = self._accelerator.device
        self.rank, self.size = self._accelerator.process_index, self._accelerator.num_processes

    def prepare(self, module: nn.Module) -> Any:
        return self._accelerator.prepare(module)

    def precision(self) -> AbstractContextManager[Any]:
        return self._accelerator.autocast()

    def backward(self, loss: torch.Tensor) -> None:
        self._accelerator.backward(loss)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        return self._accelerator.reduce(values.to(self.device), reduction="sum")

    def decide(self, value: float) -> float:
        mine = torch.tensor(value if self.rank == 0 else 0.0, dtype=torch.float64)
        return float(self.total(mine))


def join_ranks(device: torch.device) -> Ranks:
    """The surroundings of this process."""
    return Accelerated(device) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else OneProcess(device)


def share(places: Sequence[T], ranks: Ranks) -> Sequence[T]:
    """This rank's part of a batch."""
    return places[ranks.rank :: ranks.size]


def has_bfloat16(device: torch.device) -> bool:
    """Whether products in bfloat16 are faster than in float32 there."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    return bool(getattr(torch.backends.cpu, "get_cpu_capability", lambda: "")() in ("AVX512", "AMX")) and (
        torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
