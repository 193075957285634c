"""From settings to processes: what to start, with which arguments, on which cores. It starts nothing itself and knows
nothing of models or messages."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dist_spec.config import Config, DrafterConfig, HeadDrafterConfig, ModelDrafterConfig
from dist_spec.errors import ConfigError, TransportError
from dist_spec.free_port import bound_port, free_port
from dist_spec.held_port import HeldPort

TARGET = "target"
"""The target's process; of several, the leader. The others are "target-1", "target-2", ..."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessSpec:
    """One process to start.

    Attributes:
        name: unique; "target" (of several ranks the leader), "target-1", ..., or the drafter's name.
        argv: the command and its arguments.
        env: variables to add to the environment.
        cores: cores to pin it to; empty: not pinned.
        restart: whether it is started again when it ends by itself.
        listens: a port that it is handed as it starts, listening already.
        group: processes of one group live and die together: the end of one ends all, and all are started again.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()
    restart: bool = False
    group: str | None = None
    listens: HeldPort | None = None


def plan_processes(
    config: Config,
    *,
    config_path: str,
    address: str,
    sets: Sequence[str] = (),
    available: Sequence[int] | None = None,
    store: str | HeldPort | None = None,
) -> list[ProcessSpec]:
    """The target first (rank by rank), then every drafter that has a process of its own.

    Args:
        config: the settings.
        config_path: the file that the processes read them from (with `sets`, it must give the same settings).
        sets: overrides to hand on, "place=value" each.
        address: where the target listens, "tcp://host:port"; where it listens everywhere, drafters connect by loopback.
        available: the cores of this machine that may be used (default: those this process may run on).
        store: where the ranks of a target of several meet, "tcp://host:port" (default: a port of loopback that is free
            now), or the port itself, which the leader is handed.

    Raises:
        ConfigError: a core is named that this machine does not have, or a drafter has the name of a rank.
    """
    cores = assign_cores(config, available=available_cores() if available is None else available)
    connect = connect_address(address)
    base = (sys.executable, "-m", "dist_spec.cli")
    overrides = tuple(part for text in sets for part in ("--set", text))
    targets = target_names(config)
    for drafter in config.process_drafters:
        if drafter.name in targets:
            raise ConfigError(f"drafters: {drafter.name!r} is a rank of the target", fix="choose another name")
    if len(targets) > 1 and store is None:
        store = listen_address("tcp://127.0.0.1:0")
    held = store if isinstance(store, HeldPort) else None
    where = store.address if isinstance(store, HeldPort) else store
    ranks = [
        ProcessSpec(
            name=name,
            argv=(
                *base,
                "target",
                config_path,
                *_target_options(rank, address=address, store=where, held=held),
                *overrides,
            ),
            env=thread_env(num_threads(cores[name], config.target.threads)),
            cores=cores[name],
            group=TARGET if len(targets) > 1 else None,
            listens=held if rank == 0 else None,
        )
        for rank, name in enumerate(targets)
    ]
    drafters = [
        ProcessSpec(
            name=drafter.name,
            argv=(*base, "draft", config_path, "--name", drafter.name, "--connect", connect, *overrides),
            env=thread_env(num_threads(cores[drafter.name], _threads(drafter))),
            cores=cores[drafter.name],
            restart=True,
        )
        for drafter in config.process_drafters
    ]
    return [*ranks, *drafters]


def kept_alive(specs: Sequence[ProcessSpec]) -> list[ProcessSpec]:
    """The processes as `dist-spec up` runs them: whoever ends is started again, the target's ranks together."""
    return [replace(spec, restart=True) for spec in specs]


def target_names(config: Config) -> list[str]:
    """Names of the target's processes, the leader first."""
    return [TARGET, *(f"{TARGET}-{rank}" for rank in range(1, config.parallel.tp_size))]


def _target_options(rank: int, *, address: str, store: str | None, held: HeldPort | None) -> tuple[str, ...]:
    """Of one rank: only the leader listens, for messages and for the others."""
    meeting = () if store is None else ("--rank", str(rank), "--store", store)
    if rank > 0:
        return meeting
    return ("--bind", address, *meeting, *(() if held is None else ("--store-fd", str(held.fd))))


def assign_cores(config: Config, *, available: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Cores per process name. Named cores are taken as they are; the rest is dealt out.

    A target on the CPU gets one core, with or without drafters: the number of threads changes the rounding of sums, and a
    text must not depend on whether there is a drafter. Drafters deal the other cores out among themselves (and share when
    there are too few). Of a target of several processes each gets one core; named cores are dealt out among them. A process
    whose model lives on a GPU is not pinned.
    """
    named = _named_for_target(config)
    named |= {drafter.name: drafter.cores for drafter in config.process_drafters}
    _check_available(named, available)
    taken = {core for cores in named.values() for core in cores or ()}
    free = [core for core in available if core not in taken] or list(available)

    assigned: dict[str, tuple[int, ...]] = {name: cores for name, cores in named.items() if cores}
    targets = target_names(config)
    if TARGET not in assigned:
        if config.target.device != "cpu":
            assigned |= dict.fromkeys(targets, ())
        else:
            assigned |= {name: (free[rank % len(free)],) for rank, name in enumerate(targets)}
            free = free[len(targets) :] or free[-1:]
    waiting = [drafter for drafter in config.process_drafters if drafter.name not in assigned]
    on_cpu = [drafter.name for drafter in waiting if _device(drafter) == "cpu"]
    assigned |= {drafter.name: () for drafter in waiting if _device(drafter) != "cpu"}
    for index, name in enumerate(on_cpu):
        assigned[name] = tuple(free[index :: len(on_cpu)]) or (free[index % len(free)],)
    return assigned


def _named_for_target(config: Config) -> dict[str, tuple[int, ...] | None]:
    """The target's named cores, dealt out among its processes."""
    names, cores = target_names(config), config.target.cores
    if cores is not None and len(cores) < len(names):
        raise ConfigError(
            f"target.cores: {len(cores)} for {len(names)} processes (parallel.tp_size)",
            fix=f"name {len(names)} or more, or leave the setting out",
        )
    return {name: None if cores is None else cores[rank :: len(names)] for rank, name in enumerate(names)}


def available_cores() -> list[int]:
    """The cores this process may run on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def num_threads(cores: Sequence[int], wanted: int | None) -> int:
    """Threads of a process: as configured, else one per core it is pinned to (1 when it is not pinned)."""
    return wanted if wanted is not None else max(1, len(cores))


def thread_env(count: int) -> dict[str, str]:
    """Environment variables that hold every numerical library to `count` threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {name: str(count) for name in names} | {"TOKENIZERS_PARALLELISM": "false"}


def split_address(address: str) -> tuple[str, int]:
    """("127.0.0.1", 5555) of "tcp://127.0.0.1:5555"; ConfigError when it is not of that form."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not address.startswith("tcp://") or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{address!r} is no address", fix="use tcp://HOST:PORT, for instance tcp://127.0.0.1:5555")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only processes of this host can reach it (nothing is looked up)."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host in ("localhost", "lo")


def connect_address(address: str) -> str:
    """Where a process of this host finds a target that listens at `address`: loopback where that means every address."""
    host, port = split_address(address)
    loopback = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host)
    return address if loopback is None else f"tcp://{loopback}:{port}"


def listen_address(bind: str) -> str:
    """`bind` with a free port in place of port 0.

    Raises:
        TransportError: the port is in use, or the host is not one of this machine's.
    """
    host, port = split_address(bind)
    try:
        free = bound_port(host, port) if port else free_port(host)
    except OSError as error:
        raise TransportError(
            f"cannot listen at {bind}: {error.strerror or error}",
            fix="end what listens there, or choose another port (0: a free one) by --set transport.bind=tcp://127.0.0.1:0",
        ) from None
    return f"{bind.rpartition(':')[0]}:{free}"


def _check_available(named: Mapping[str, tuple[int, ...] | None], available: Sequence[int]) -> None:
    for name, cores in named.items():
        missing = [core for core in cores or () if core not in available]
        if missing:
            place = "target.cores" if name.partition("-")[0] == TARGET else f"cores of drafter {name}"
            raise ConfigError(
                f"{place}: this machine has no core {', '.join(map(str, missing))} to use",
                fix=f"use some of {', '.join(map(str, available))}, or leave the setting out",
            )


def _device(drafter: DrafterConfig) -> str:
    return drafter.device if isinstance(drafter, ModelDrafterConfig | HeadDrafterConfig) else "cpu"


def _threads(drafter: DrafterConfig) -> int | None:
    return drafter.threads if isinstance(drafter, ModelDrafterConfig | HeadDrafterConfig) else 1
