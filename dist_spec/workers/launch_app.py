"""One process of a launcher's start: finds its role and the others, then runs as target, follower or drafter. It knows
roles and addresses, and leaves the work to the apps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dist_spec.config import Config
from dist_spec.errors import ConfigError, WorkerError
from dist_spec.topology import (
    assign_cores,
    available_cores,
    connect_address,
    is_loopback,
    listen_address,
    split_address,
    target_names,
)
from dist_spec.workers.prompt_run import PromptRun
from dist_spec.workers.role import Role, role_of
from dist_spec.workers.signals import StopFlag

MEET_TIMEOUT_S = 600.0
_EVERYWHERE = ("*", "0.0.0.0", "::")


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """What the command line says beyond the settings.

    Attributes:
        role, layout: see `role_of`.
        bind: where the leader listens (default: `transport.bind`).
        connect: where the targets of other starts listen, for drafters started by themselves.
        drafters: names of those that this start runs (empty: all that have a process of their own).
        prompts: arguments of the `dist-spec generate` that the leader runs, without `--connect`; empty: none, serve.
        meet_timeout_s: how long the processes of one start wait for each other.
    """

    role: str | None = None
    layout: str | None = None
    bind: str | None = None
    connect: Sequence[str] = ()
    drafters: Sequence[str] = ()
    prompts: Sequence[str] = ()
    meet_timeout_s: float = MEET_TIMEOUT_S


def run_launch(config: Config, launch: Launch, *, environ: Mapping[str, str] = os.environ) -> int:
    """Run this process's part until all is over; returns its exit code.

    Raises:
        ConfigError: no launcher started it, or what it started does not suit the settings.
        TransportError: the others were not found in time.
        WorkerError: what it depends on ended unexpectedly.
    """
    names = [config.drafter(name).name for name in dict.fromkeys(launch.drafters)] or [
        one.name for one in config.process_drafters
    ]
    _check_drafters(config, names)
    role = role_of(environ, tp_size=config.parallel.tp_size, drafters=names, role=launch.role, layout=launch.layout)
    if launch.connect and not (role.name == "drafter" and role.alone):
        raise ConfigError(
            "--connect is for drafters that are started without a target",
            fix="leave it out: the processes of one start find each other",
        )
    name = names[role.rank] if role.name == "drafter" else target_names(config)[role.rank]
    config = _placed(config, role=role, name=name, environ=environ)
    if role.name == "drafter":
        return _draft(config, launch, role=role, name=name, environ=environ)
    if role.rank == 0:
        return _lead(config, launch, role=role, environ=environ)
    return _follow(config, launch, role=role, environ=environ)


def leader_addresses(bind: str, *, host: str, shared: bool) -> tuple[str, str]:
    """Where the leader listens, and how others reach that.

    Args:
        bind: as configured.
        host: this host's address as the others know it.
        shared: whether drafters of this start may be on other hosts: an address of loopback gives way to `host` then.
    """
    where, port = split_address(bind)
    name = f"[{host}]" if ":" in host else host
    if shared and is_loopback(where) and not is_loopback(host):
        bind = f"tcp://{name}:{port}"
    bind = listen_address(bind)
    if where in _EVERYWHERE and not is_loopback(host):
        return bind, f"tcp://{name}:{split_address(bind)[1]}"
    return bind, connect_address(bind)


def _check_drafters(config: Config, names: Sequence[str]) -> None:
    for name in names:
        if config.drafter(name).placement != "process":
            raise ConfigError(f"drafter {name} runs inside the target", fix="leave it out: it needs no process")


def _lead(config: Config, launch: Launch, *, role: Role, environ: Mapping[str, str]) -> int:
    from dist_spec.workers.bootstrap import LeaderPost, await_ranks, meeting_point, own_address
    from dist_spec.workers.target_app import run_target
    from dist_spec.workers.target_rank import launched_place

    host = own_address(role, environ=environ, timeout_s=launch.meet_timeout_s)
    _check_plaintext(config, host)
    bind, address = leader_addresses(launch.bind or config.transport.bind, host=host, shared=not role.alone)
    post = None
    if role.world.size > 1:
        boot = meeting_point(role.world, own_host=lambda: host, timeout_s=launch.meet_timeout_s)
        post = LeaderPost(boot, host=host, address=address)
    place = None
    if role.size > 1 and post is not None:
        await_ranks(post.store, rank=0, size=role.size, timeout_s=launch.meet_timeout_s)
        place = launched_place(config, role.rank, store=post.store, host=host, where=(host, post.port))
    prompts = None
    if launch.prompts:
        beside = role.world.size - role.size  # drafters of this start; those of others come when they come
        prompts = PromptRun(["--connect", address, "--await-drafters", str(beside), *launch.prompts])
    stopping: Callable[[], bool] = prompts.listen() if prompts is not None else StopFlag().listen()
    try:
        run_target(config, bind=bind, place=place, stopping=stopping)
    finally:
        if prompts is not None:
            prompts.close()
        if post is not None:
            post.end()
    return 0 if prompts is None else prompts.code


def _follow(config: Config, launch: Launch, *, role: Role, environ: Mapping[str, str]) -> int:
    from dist_spec.workers.bootstrap import await_ranks, find_leader, meeting_point, own_address
    from dist_spec.workers.follower_app import run_follower
    from dist_spec.workers.target_rank import launched_place

    host = own_address(role, environ=environ, timeout_s=launch.meet_timeout_s)
    _check_plaintext(config, host)
    boot = meeting_point(role.world, own_host=lambda: host, timeout_s=launch.meet_timeout_s)
    leader, store = find_leader(boot, timeout_s=launch.meet_timeout_s)
    await_ranks(store, rank=role.rank, size=role.size, timeout_s=launch.meet_timeout_s)
    place = launched_place(config, role.rank, store=store, host=host, where=(leader.host, leader.port))
    asked = StopFlag().listen()
    # A launcher signals all ranks. Where the start has prompts, the leader lets them finish (see `PromptRun`).
    return run_follower(config, place=place, stopping=(lambda: False) if launch.prompts else asked)


def _draft(config: Config, launch: Launch, *, role: Role, name: str, environ: Mapping[str, str]) -> int:
    from dist_spec.workers.draft_app import run_draft

    if role.alone:
        if not launch.connect:
            raise ConfigError(
                "only drafters were started, and where the target listens is not known",
                fix="give --connect tcp://HOST:PORT, or start the target with them",
            )
        run_draft(config, name=name, connect=launch.connect)
        return 0
    from dist_spec.workers.bootstrap import find_leader, meeting_point, own_address
    from dist_spec.workers.end_bell import EndWatch

    host = own_address(role, environ=environ, timeout_s=launch.meet_timeout_s)
    _check_plaintext(config, host)
    boot = meeting_point(role.world, own_host=lambda: host, timeout_s=launch.meet_timeout_s)
    leader, _ = find_leader(boot, timeout_s=launch.meet_timeout_s)
    watch = EndWatch(leader.host, leader.end_port, timeout_s=launch.meet_timeout_s)
    asked = StopFlag().listen()
    try:
        run_draft(config, name=name, connect=leader.address, stopping=lambda: asked() or watch())
    finally:
        watch.close()
    if watch.lost and not asked():
        raise WorkerError(f"drafter {name}: the target ended without a word", fix="see its output")
    return 0


def _check_plaintext(config: Config, host: str) -> None:
    if not is_loopback(host) and not config.transport.allow_plaintext:
        raise ConfigError(
            f"the processes are on several hosts (this one is {host}), and what they say to each other is neither "
            "encrypted nor signed",
            fix="on a network that you trust, set transport.allow_plaintext: true",
        )


def _placed(config: Config, *, role: Role, name: str, environ: Mapping[str, str]) -> Config:
    """Pin this process to its cores, where the settings name some and all is on one host (else numactl, or the launcher,
    knows better), and settle its threads: as the settings say, else one per named core, else as the launcher says
    (OMP_NUM_THREADS), else one, as several processes share a host here."""
    target = role.name == "target"
    mine = config.target if target else config.drafter(name)
    text = environ.get("OMP_NUM_THREADS", "")
    count = int(text) if text.isdecimal() and int(text) > 0 else 1
    if mine.cores and role.world.one_host:
        cores = assign_cores(config, available=available_cores())[name]
        os.sched_setaffinity(0, cores)
        count = len(cores)
    if getattr(mine, "threads", 0) is not None:
        return config
    settled = mine.model_copy(update={"threads": count})
    if target:
        return config.model_copy(update={"target": settled})
    others = tuple(settled if one.name == name else one for one in config.drafters)
    return config.model_copy(update={"drafters": others})
