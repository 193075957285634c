"""The process group of the target's ranks: how they meet, send and part. It knows neither models nor steps.

Drafters never take part. What is small or decides travels over gloo from host to host; NCCL, where there is one, carries the
model's own sums. Deadlines are `watch`'s: the backends' own are far longer, and mere second lines.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any

import psutil
import torch
import torch.distributed as dist

from dist_spec.errors import ConfigError, DistSpecError, WorkerError
from dist_spec.models.parallel.place import TpPlace
from dist_spec.models.parallel.watch import Watch

PATIENCE_S = 3600.0
"""Longest wait for ranks that are still loading their weights."""
_KEYS = "tp"


def host_store(host: str, port: int = 0, *, timeout_s: float = 60.0, fd: int | None = None) -> dist.TCPStore:
    """A store that listens at this one address (a TCPStore by itself listens at all); `.port` tells a port that was 0.

    It lives as long as the returned object, which belongs in the leader's process.

    Args:
        fd: of a socket that listens there already.

    Raises:
        ConfigError: the address is not this machine's, or taken.
    """
    listener = _listen(host, port) if fd is None else _inherited(fd)
    return dist.TCPStore(
        host,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        master_listen_fd=listener.detach(),
    )


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"the target's ranks cannot meet at {host}:{port}: {error.strerror or error}",
            fix="use an address of the leader's machine and a free port",
        ) from None
    listener.listen(256)
    return listener


def _inherited(fd: int) -> socket.socket:
    try:
        return socket.socket(fileno=fd)
    except OSError as error:
        raise ConfigError(
            f"--store-fd {fd}: no socket was inherited under this number ({error.strerror or error})",
            fix="leave it out: only `dist-spec up` and the like hand one on",
        ) from None


class TpGroup:
    """This rank's membership.

    Attributes:
        watch: see `Watch`; whoever works tells it what it is doing.
    """

    def __init__(self, place: TpPlace, watch: Watch, *, hosted: dist.TCPStore | None) -> None:
        self.place = place
        self.rank = place.rank
        self.size = place.size
        self.watch = watch
        self._hosted = hosted

    @classmethod
    def join(cls, place: TpPlace) -> TpGroup:
        """Meet the other ranks; returns when all are there.

        Raises:
            WorkerError: not all came within the deadline (names the missing ones), or one died meanwhile.
            ConfigError: a process of several devices would be needed, or the store cannot be hosted.
        """
        _check_device(place)
        _choose_interface(place.store_host)
        hosted = None
        if place.hosts_store:
            hosted = host_store(place.store_host, place.store_port, timeout_s=place.timeout_s, fd=place.store_fd)
        store, own = _client(place), _client(place)
        watch = Watch(dist.PrefixStore(_KEYS, own), rank=place.rank, size=place.size, timeout_s=place.timeout_s)
        _await_all(dist.PrefixStore(_KEYS, store), place)
        watch.start()  # before they connect: a rank that dies meanwhile would be waited for with all that patience
        watch.doing("the ranks connected to each other")
        try:
            dist.init_process_group(
                "gloo" if place.backend == "gloo" else "cpu:gloo,cuda:nccl",
                store=dist.PrefixStore(f"{_KEYS}/group", store),
                rank=place.rank,
                world_size=place.size,
                timeout=timedelta(seconds=PATIENCE_S),
            )
        except RuntimeError as error:
            failure = watch.failure(error)
            watch.stop()
            raise failure from error
        watch.doing(None)
        return cls(place, watch, hosted=hosted)

    def __enter__(self) -> TpGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Part; an error of this rank ends the others, and may come from the death of one of them.

        Raises:
            WorkerError: with the rank and the cause, in place of what another's death made fail here.
        """
        failure = None if error is None else self.watch.failure(error)
        self.leave()
        if failure is not None and not isinstance(error, DistSpecError | KeyboardInterrupt | SystemExit):
            raise failure from error

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """The leader's tensor, written into `tensor` on every other rank."""
        dist.broadcast(tensor, src=0)
        return tensor

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """On the leader the tensors of all ranks, in their order (equal shapes); empty elsewhere."""
        if self.rank:
            dist.gather(tensor, dst=0)
            return []
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.gather(tensor, found, dst=0)
        return found

    def await_others(self, place: str = "the model is loaded", *, patience_s: float = PATIENCE_S) -> None:
        """Wait, with more patience than elsewhere, until all ranks are at this place. Every `timeout_s` standard error tells
        which are missing; when the patience is over, or one dies, all end."""
        self.watch.meets(place, patience_s=patience_s)
        dist.barrier() if self.place.backend == "gloo" else dist.all_reduce(torch.zeros(1))
        self.watch.meets(None)

    def leave(self) -> None:
        """End this rank's membership, in peace or not."""
        self.watch.stop()
        if dist.is_initialized():
            dist.destroy_process_group()
        self._hosted = None


def _client(place: TpPlace) -> dist.TCPStore:
    timeout = timedelta(seconds=place.timeout_s)
    try:
        return dist.TCPStore(place.store_host, place.store_port, is_master=False, timeout=timeout)
    except RuntimeError as error:
        raise WorkerError(
            f"target rank {place.rank} of {place.size}: the leader's store at {place.store_host}:{place.store_port} "
            f"cannot be reached within {place.timeout_s:g} s",
            fix="start the leader (rank 0) too, and check that its address can be reached from here",
        ) from error


def _await_all(store: Any, place: TpPlace) -> None:
    names = [f"who/{rank}" for rank in range(place.size)]
    try:
        store.wait(names, timedelta(seconds=place.timeout_s))
    except RuntimeError as error:
        missing = _missing(store, names)
        raise WorkerError(
            f"target rank {place.rank} of {place.size}: rank {', '.join(missing) or '0'} did not come within "
            f"{place.timeout_s:g} s",
            fix="start all ranks within parallel.timeout_s of each other",
        ) from error


def _missing(store: Any, names: Sequence[str]) -> list[str]:
    try:
        return [name.rpartition("/")[2] for name in names if not store.check([name])]
    except RuntimeError:
        return []


def _check_device(place: TpPlace) -> None:
    """Transformers shards onto the accelerator where there is one, and onto the one that LOCAL_RANK names."""
    device = torch.device(place.device)
    if device.type == "cpu" and torch.cuda.is_available():
        raise ConfigError(
            "a target over several ranks on the CPU of a machine with GPUs: transformers would use the GPUs",
            fix='set target.device: cuda:0, or hide the GPUs with CUDA_VISIBLE_DEVICES=""',
        )
    if device.type == "cuda":
        os.environ["LOCAL_RANK"] = str(device.index or 0)
        torch.cuda.set_device(device)


def _choose_interface(store_host: str) -> None:
    """Have gloo (and NCCL) use the network interface that leads to the leader; by itself gloo takes the one that this host's
    name resolves to, which is often the loopback or none."""
    try:
        family, _, _, _, address = socket.getaddrinfo(store_host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # nothing is sent
            probe.connect(address)
            own = probe.getsockname()[0]
    except OSError:
        return
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == own for one in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            if name != "lo":
                os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
