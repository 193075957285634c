"""Which role a process has: read off what each launcher really sets (recorded), an option, or a layout."""

from __future__ import annotations

from typing import Any

import pytest

from dist_spec.errors import ConfigError
from dist_spec.workers.role import Role, parse_layout, role_of, world_of

TORCHRUN = {
    "RANK": "2",
    "WORLD_SIZE": "3",
    "LOCAL_RANK": "2",
    "LOCAL_WORLD_SIZE": "3",
    "GROUP_RANK": "0",
    "ROLE_NAME": "default",
    "ROLE_RANK": "2",
    "ROLE_WORLD_SIZE": "3",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
# Two agents, `--role drafter` with one process and `--role target` with two; the drafter's came first.
UNEQUAL = TORCHRUN | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "MASTER_ADDR": "node0"}
UNEQUAL |= {"ROLE_NAME": "target", "ROLE_RANK": "1", "ROLE_WORLD_SIZE": "2"}
DEEPSPEED = {"RANK": "2", "LOCAL_RANK": "2", "WORLD_SIZE": "3", "LOCAL_SIZE": "3", "CROSS_RANK": "0", "CROSS_SIZE": "1"}
DEEPSPEED |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
# The second of two hosts with unequal slots: LOCAL_RANK is RANK % slots, a permutation.
DEEPSPEED_NODES = DEEPSPEED | {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "LOCAL_SIZE": "2",
    "CROSS_SIZE": "2",
    "MASTER_ADDR": "n0",
}
ACCELERATE = TORCHRUN | {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO", "RANK": "0"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}
MPIRUN |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "3", "PMIX_RANK": "2"}
SRUN = {"SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_NNODES": "2"}
SRUN |= {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "2", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
# An allocation of Slurm in which torchrun starts the processes: what torchrun says counts.
BOTH = {**SRUN, "SLURM_PROCID": "0", "SLURM_NTASKS": "8", **TORCHRUN}


def role(environ: dict[str, str], **changes: Any) -> Role:
    return role_of(environ, **{"tp_size": 2, "drafters": ["small"], **changes})


@pytest.mark.parametrize(
    ("environ", "expected", "one_host"),
    [
        (TORCHRUN, ("drafter", 0, 1), True),
        (TORCHRUN | {"RANK": "1"}, ("target", 1, 2), True),
        (UNEQUAL, ("target", 1, 2), False),
        (UNEQUAL | {"ROLE_NAME": "drafter", "ROLE_RANK": "0", "ROLE_WORLD_SIZE": "1"}, ("drafter", 0, 1), False),
        (DEEPSPEED, ("drafter", 0, 1), True),
        (DEEPSPEED_NODES, ("target", 1, 2), False),
        (ACCELERATE, ("target", 0, 2), True),
        (MPIRUN, ("drafter", 0, 1), True),
        (SRUN, ("drafter", 0, 1), False),
        (BOTH, ("drafter", 0, 1), True),
    ],
    ids=["torchrun", "rank1", "unequal", "drafter", "deepspeed", "nodes", "accelerate", "mpirun", "srun", "both"],
)
def test_every_launcher_is_understood(environ: dict[str, str], expected: tuple[str, int, int], one_host: bool) -> None:
    found = role(environ)
    assert (found.name, found.rank, found.size) == expected
    assert found.world.one_host is one_host
    assert found.world.agent_store is ("TORCHELASTIC_USE_AGENT_STORE" in environ)
    assert not found.alone


def test_plain_variables_without_a_count_per_host_are_on_one_host_when_they_meet_there() -> None:
    plain = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}
    assert world_of(plain | {"MASTER_ADDR": "127.0.0.1"}).one_host
    assert not world_of(plain | {"MASTER_ADDR": "leader.svc"}).one_host
    assert world_of({"RANK": "0", "WORLD_SIZE": "2"}).master is None


@pytest.mark.parametrize(
    ("layout", "size", "expected"),
    [
        ("target:2,drafter:*", 5, [("target", 2), ("drafter", 3)]),
        ("drafter:1,target:*", 3, [("drafter", 1), ("target", 2)]),
        ("target:*", 4, [("target", 4)]),
        ("target:4,drafter:*", 4, [("target", 4), ("drafter", 0)]),
        ("target:1, drafter:1", 2, [("target", 1), ("drafter", 1)]),
    ],
)
def test_layouts(layout: str, size: int, expected: list[tuple[str, int]]) -> None:
    assert parse_layout(layout, size=size) == expected


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("", "is none"),
        ("target", "is none"),
        ("target:two", "is none"),
        ("leader:1,drafter:2", "is none"),
        ("target:*,drafter:*", "is none"),
        ("target:1,target:2", "is none"),
        ("target:2,drafter:2", "names 4 ranks, the launcher started 3"),
        ("target:4,drafter:*", "names 4 ranks, the launcher started 3"),
        ("target:1,drafter:1", "names 2 ranks, the launcher started 3"),
    ],
)
def test_what_is_no_layout_of_this_start_is_refused(layout: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        role(TORCHRUN, layout=layout)
    assert caught.value.fix


def test_a_layout_places_roles_in_any_order() -> None:
    found = role(TORCHRUN, layout="drafter:1,target:2")
    assert (found.name, found.rank, found.size) == ("target", 1, 2)


def test_the_option_speaks_for_a_start_of_one_role() -> None:
    found = role(TORCHRUN, role="target", tp_size=3)
    assert (found.name, found.rank, found.size, found.alone) == ("target", 2, 3, True)
    found = role(TORCHRUN, role="drafter", drafters=["a", "b", "c"])
    assert (found.name, found.rank, found.size, found.alone) == ("drafter", 2, 3, True)


def test_with_a_role_no_launcher_is_needed() -> None:
    found = role({}, role="drafter")
    assert (found.name, found.rank, found.size, found.alone) == ("drafter", 0, 1, True)


@pytest.mark.parametrize(
    ("environ", "changes", "message", "fix"),
    [
        ({}, {}, "no launcher started this process", "accelerate launch --multi_gpu"),
        (TORCHRUN, {"tp_size": 1}, "2 of 3 processes are to draft, and 1 drafters", "start 1 for drafters"),
        (TORCHRUN, {"tp_size": 3}, "0 of 3 processes are to draft", "--drafter NAME"),
        (TORCHRUN, {"tp_size": 4}, "names 4 ranks", "start 4"),
        (TORCHRUN, {"layout": "target:1,drafter:2"}, "1 of 3 processes are to be the target", "parallel.tp_size: 1"),
        (UNEQUAL, {"tp_size": 1}, "2 of 3 processes are to be the target, and parallel.tp_size is 1", "start 1"),
        (UNEQUAL, {"drafters": ["a", "b"]}, "1 of 3 processes are to draft, and 2 drafters", "start 2"),
        (UNEQUAL, {"layout": "target:2,drafter:1"}, "a layout and a role", "leave --layout out"),
        (UNEQUAL, {"role": "drafter"}, "says that this is a target, the option --role says drafter", "same role"),
        (UNEQUAL | {"ROLE_RANK": ""}, {}, "ROLE_RANK", "all three"),
        (TORCHRUN | {"ROLE_NAME": "targte"}, {}, "role 'targte' is none", "--role target"),
        (TORCHRUN, {"role": "target"}, "3 of 3 processes are to be the target", "start 2"),
        (TORCHRUN, {"role": "drafter"}, "3 of 3 processes are to draft", "add drafters"),
        (TORCHRUN | {"RANK": "three"}, {}, "RANK: 'three' is no number", "launcher"),
        (TORCHRUN | {"RANK": "3"}, {}, "rank 3 is none of a world of 3", "WORLD_SIZE"),
        (TORCHRUN | {"MASTER_PORT": "many"}, {}, "MASTER_PORT", "free port"),
    ],
)
def test_contradictions_are_refused_with_a_way_out(
    environ: dict[str, str], changes: dict[str, Any], message: str, fix: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        role(environ, **changes)
    assert fix in (caught.value.fix or "")


def test_every_rank_refuses_alike() -> None:
    """None may wait for others that have refused already."""
    for rank in range(4):
        with pytest.raises(ConfigError, match="2 of 4 processes are to draft"):
            role(TORCHRUN | {"RANK": str(rank), "WORLD_SIZE": "4"})
