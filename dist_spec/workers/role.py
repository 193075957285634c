"""Which role a process has that some launcher started: read off the launcher's variables, an option or a layout. Pure: it
gets the environment as an argument and knows nothing of sockets, models or torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from dist_spec.errors import ConfigError
from dist_spec.topology import is_loopback

RoleName: TypeAlias = Literal["target", "drafter"]
ROLES: tuple[RoleName, ...] = ("target", "drafter")

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")
_NODES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES")
_UNNAMED = ("", "default")
"""What torchrun calls a role that nobody named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """All processes of one start.

    Attributes:
        rank: of this process, 0 to size - 1.
        size: how many processes the launcher started.
        one_host: whether all of them are known to be on this host.
        master: host and port of the launcher's meeting point; None where no launcher tells one.
        agent_store: whether the launcher's own agent hosts the store there (torchrun), and not rank 0.
    """

    rank: int
    size: int
    one_host: bool
    master: tuple[str, int] | None
    agent_store: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """What one process is.

    Attributes:
        name: "target" or "drafter".
        rank: among those of its role.
        size: how many have this role.
        world: all processes of this start.
    """

    name: RoleName
    rank: int
    size: int
    world: World

    @property
    def alone(self) -> bool:
        """Whether every process of this start has this role: the other role is started by itself."""
        return self.size == self.world.size


def world_of(environ: Mapping[str, str], *, required: bool = True) -> World:
    """What the launcher says. Understands torchrun, accelerate, deepspeed, Open MPI, MPICH, srun and plain RANK variables.

    Args:
        required: refuse a process that no launcher started; else it is a world of its own.

    Raises:
        ConfigError: no launcher's variables are there, or they contradict each other.
    """
    rank, size = _number(environ, _RANK), _number(environ, _SIZE)
    if rank is None or size is None:
        if required:
            raise ConfigError(
                "no launcher started this process: none of its variables (RANK and WORLD_SIZE, SLURM_PROCID, "
                "OMPI_COMM_WORLD_RANK) is set",
                fix="start it by torchrun, deepspeed, srun or mpirun, or by `accelerate launch --multi_gpu` (with --cpu "
                "it starts one process without a rank); on one machine `dist-spec up CONFIG` needs no launcher",
            )
        rank, size = 0, 1
    if not 0 <= rank < size:
        raise ConfigError(f"rank {rank} is none of a world of {size}", fix="see how the launcher sets RANK, WORLD_SIZE")
    master = _master(environ)
    local, nodes = _number(environ, _LOCAL_SIZE), _number(environ, _NODES)
    if local is not None:
        one_host = local == size
    elif nodes is not None:
        one_host = nodes == 1
    else:
        one_host = size == 1 or (master is not None and is_loopback(master[0]))
    agent_store = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return World(rank=rank, size=size, one_host=one_host, master=master, agent_store=agent_store)


def role_of(
    environ: Mapping[str, str],
    *,
    tp_size: int,
    drafters: Sequence[str],
    role: str | None = None,
    layout: str | None = None,
) -> Role:
    """This process's role: `torchrun --role` (ROLE_NAME) comes first, then the option `--role`, which speaks for the whole
    start, then the layout of global ranks (default: the target's ranks first, then drafters).

    Args:
        tp_size: ranks that the target needs.
        drafters: names of those that this start is to run.
        role: the option.
        layout: "target:2,drafter:*" and the like.

    Raises:
        ConfigError: sources contradict each other, or the numbers of ranks do not suit the settings.
    """
    world = world_of(environ, required=role is None)
    named = environ.get("ROLE_NAME", "")
    _check_sources(named, role=role, layout=layout)
    if named in ROLES:
        rank, size = _number(environ, ("ROLE_RANK",)), _number(environ, ("ROLE_WORLD_SIZE",))
        if rank is None or size is None or not 0 <= rank < size <= world.size:
            raise ConfigError("ROLE_NAME is set, ROLE_RANK or ROLE_WORLD_SIZE are not", fix="set all three or none")
        found = Role(name=named, rank=rank, size=size, world=world)
    elif role is not None:
        found = Role(name=cast(RoleName, role), rank=world.rank, size=world.size, world=world)
    else:
        layout = f"target:{tp_size},drafter:*" if layout is None else layout
        found = _placed(layout, world)
    _check_numbers(found, tp_size=tp_size, drafters=drafters, laid_out=layout is not None)
    return found


def parse_layout(layout: str, *, size: int) -> list[tuple[RoleName, int]]:
    """Roles with their numbers of ranks, in order of ranks; `*` stands for all that is left of `size`.

    Raises:
        ConfigError: it is malformed, or does not come to `size` ranks.
    """
    parts = [text.strip().partition(":") for text in layout.split(",")]
    names = [name for name, _, _ in parts]
    counts = [count for _, _, count in parts]
    good = all(name in ROLES for name in names) and len(set(names)) == len(names)
    if not good or not all(count == "*" or count.isdecimal() for count in counts) or counts.count("*") > 1:
        raise ConfigError(f"--layout {layout}: is none", fix="for instance target:2,drafter:1 or target:2,drafter:*")
    fixed = sum(int(count) for count in counts if count != "*")
    if fixed > size or ("*" not in counts and fixed != size):
        raise ConfigError(
            f"--layout {layout}: names {fixed} ranks, the launcher started {size}",
            fix=f"start {fixed} processes, or give a layout of {size}",
        )
    return [(cast(RoleName, name), size - fixed if count == "*" else int(count)) for name, _, count in parts]


def _check_sources(named: str, *, role: str | None, layout: str | None) -> None:
    """What the launcher, the option and the layout say must not contradict each other."""
    if layout is not None and (role is not None or named in ROLES):
        raise ConfigError(
            "a layout and a role are given", fix="leave --layout out: the role already says what this process is"
        )
    if layout is None and named not in (*_UNNAMED, *ROLES):
        raise ConfigError(f"the launcher's role {named!r} is none", fix="give it --role target or --role drafter")
    if role is not None and named in ROLES and named != role:
        raise ConfigError(
            f"the launcher says that this is a {named}, the option --role says {role}", fix="give both the same role"
        )


def _placed(layout: str, world: World) -> Role:
    start = 0
    for name, count in parse_layout(layout, size=world.size):
        if start <= world.rank < start + count:
            return Role(name=name, rank=world.rank - start, size=count, world=world)
        start += count
    raise AssertionError("a layout covers every rank")


def _check_numbers(role: Role, *, tp_size: int, drafters: Sequence[str], laid_out: bool) -> None:
    """The same refusal on every rank, so that none waits for those that refused."""
    others = role.world.size - role.size
    targets, drafting = (role.size, others) if role.name == "target" else (others, role.size)
    together = laid_out or not role.alone
    if (role.name == "target" or together) and targets != tp_size:
        raise ConfigError(
            f"{targets} of {role.world.size} processes are to be the target, and parallel.tp_size is {tp_size}",
            fix=f"start {tp_size} for the target, or set parallel.tp_size: {max(1, targets)}",
        )
    if (role.name == "drafter" or together) and drafting != len(drafters):
        names = ", ".join(drafters) or "none"
        more = drafting > len(drafters)
        raise ConfigError(
            f"{drafting} of {role.world.size} processes are to draft, and {len(drafters)} drafters have a process of their "
            f"own ({names})",
            fix=f"start {len(drafters)} for drafters, or "
            + ("add drafters to the settings" if more else "name those to be run, --drafter NAME each"),
        )


def _master(environ: Mapping[str, str]) -> tuple[str, int] | None:
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not host or not port:
        return None
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"MASTER_PORT: {port!r} is no port", fix="set it to a free port of the first rank's host")
    return host, int(port)


def _number(environ: Mapping[str, str], names: Sequence[str]) -> int | None:
    """Of the first of these variables that is set."""
    for name in names:
        text = environ.get(name, "")
        if text:
            if not text.isdecimal():
                raise ConfigError(f"{name}: {text!r} is no number", fix="see how the launcher sets it")
            return int(text)
    return None
