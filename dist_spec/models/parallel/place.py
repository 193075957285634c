"""Where one rank of a target stands among the others. Plain data: it imports no torch and starts nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Backend: TypeAlias = Literal["gloo", "nccl"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TpPlace:
    """One tensor-parallel rank.

    Attributes:
        rank, size: rank 0 is the leader.
        store_host, store_port: where the ranks meet (a TCPStore in the leader's process).
        backend: for the model's sums; what is small or decides always travels over gloo.
        device: of this rank, "cpu" or "cuda:N".
        timeout_s: longest time without progress before all ranks end.
        store_fd: a socket that listens there already, inherited from whoever started the leader.
        hosts_store: the leader is to host the store itself; else it is hosted already (`group.host_store`).
    """

    rank: int
    size: int
    store_host: str
    store_port: int
    backend: Backend = "gloo"
    device: str = "cpu"
    timeout_s: float = 60.0
    hosts_store: bool = False
    store_fd: int | None = None

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    @property
    def name(self) -> str:
        """As the processes of a deployment are called: target, target-1, ..."""
        return "target" if self.is_leader else f"target-{self.rank}"
