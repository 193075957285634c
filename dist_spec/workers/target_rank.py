"""One rank of a target of several processes: its device, its place among the others, and what it runs. It knows nothing of
launchers and drafters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dist_spec.config import Config
from dist_spec.errors import ConfigError
from dist_spec.models.parallel.place import TpPlace
from dist_spec.topology import is_loopback, split_address
from dist_spec.workers.target_app import run_target

if TYPE_CHECKING:
    import torch.distributed as dist


def run_rank(config: Config, *, bind: str, rank: int = 0, store: str | None = None, store_fd: int | None = None) -> int:
    """Run one of the target's processes on this machine, as `dist-spec up` starts them; returns its exit code.

    Args:
        bind: where the leader (rank 0) listens for messages.
        store: where the ranks meet, "tcp://host:port"; rank 0 hosts it.
        store_fd: a socket of rank 0 that listens there already.

    Raises:
        ConfigError: there is no such rank, or the leader cannot or may not listen there.
        TransportError, WorkerError: the other ranks were not found.
    """
    size = config.parallel.tp_size
    if rank >= size:
        raise ConfigError(
            f"--rank {rank}: parallel.tp_size is {size}",
            fix=f"use 0 to {size - 1}, or set parallel.tp_size: {rank + 1}",
        )
    if size == 1:
        run_target(config, bind=bind)
        return 0
    if store is None:
        raise ConfigError(
            f"parallel.tp_size: the target has {size} processes, and where they meet is not known",
            fix="use `dist-spec up` or a launcher (`dist-spec launch`), or start each with --rank and --store",
        )
    where = split_address(store)
    if not (is_loopback(where[0]) or config.transport.allow_plaintext):
        raise ConfigError(
            f"--store {store} can be reached from other hosts, and what the ranks say is neither encrypted nor signed",
            fix="meet at 127.0.0.1, or on a network that you trust set transport.allow_plaintext: true",
        )
    place = _place(config, rank, index=rank, where=where, hosts_store=rank == 0)
    if rank == 0:
        place = replace(place, store_fd=store_fd)
        run_target(config, bind=bind, place=place)
        return 0
    from dist_spec.workers.follower_app import run_follower

    return run_follower(config, place=place)


def launched_place(config: Config, rank: int, *, store: dist.Store, host: str, where: tuple[str, int]) -> TpPlace:
    """The place of a rank that a launcher started, perhaps on one of several hosts.

    Args:
        store: the leader's; ranks tell each other there on which host they are.
        host: this rank's.
        where: host and port of that store.
    """
    before = 0
    if config.target.device != "cpu":
        # Not by LOCAL_RANK: it is a permutation under deepspeed, and counts ranks of other roles under others.
        store.set(f"host/{rank}", host)
        before = sum(store.get(f"host/{other}") == host.encode() for other in range(rank))
    return _place(config, rank, index=before, where=where, hosts_store=False)


def _place(config: Config, rank: int, *, index: int, where: tuple[str, int], hosts_store: bool) -> TpPlace:
    return TpPlace(
        rank=rank,
        size=config.parallel.tp_size,
        store_host=where[0],
        store_port=where[1],
        backend="gloo" if config.target.device == "cpu" else "nccl",
        device=device_of(config, index),
        timeout_s=config.parallel.timeout_s,
        hosts_store=hosts_store,
    )


def device_of(config: Config, index: int) -> str:
    """Of the target's rank that is number `index` on its host: they take the devices from `target.device` on."""
    kind, _, first = config.target.device.partition(":")
    if kind == "cpu":
        return "cpu"
    import torch

    # Launchers may show each process its own device alone (srun --gpus-per-task=1).
    return f"{kind}:{0 if torch.cuda.device_count() == 1 else int(first) + index}"
