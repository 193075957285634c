"""From settings to processes: arguments, cores, threads, addresses."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from dist_spec.config import Config, parse_config
from dist_spec.errors import ConfigError, TransportError
from dist_spec.held_port import HeldPort
from dist_spec.topology import (
    ProcessSpec,
    assign_cores,
    is_loopback,
    listen_address,
    plan_processes,
    split_address,
)

NGRAM = {"kind": "ngram"}
MODEL = {"kind": "model", "model": "m"}
ADDRESS = "tcp://127.0.0.1:5555"


def configured(*drafters: dict[str, Any], **target: Any) -> Config:
    return parse_config({"target": {"model": "m", **target}, "drafters": list(drafters)})


def planned(config: Config, *, available: list[int]) -> list[ProcessSpec]:
    return plan_processes(config, config_path="c.yaml", address=ADDRESS, available=available)


def test_target_comes_first_and_only_drafters_are_restarted() -> None:
    config = configured(NGRAM, {**NGRAM, "name": "inside", "placement": "leader"}, MODEL)
    target, first, second = planned(config, available=[0, 1, 2])
    assert target.argv[1:] == ("-m", "dist_spec.cli", "target", "c.yaml", "--bind", ADDRESS)
    assert first.argv[1:] == ("-m", "dist_spec.cli", "draft", "c.yaml", "--name", "ngram0", "--connect", ADDRESS)
    assert [(spec.name, spec.restart) for spec in (target, first, second)] == [
        ("target", False),
        ("ngram0", True),
        ("model2", True),
    ]


@pytest.mark.parametrize(
    ("config", "available", "expected"),
    [
        (configured(NGRAM), [0, 1], {"target": (0,), "ngram0": (1,)}),
        (configured(NGRAM), [4, 5, 6], {"target": (4,), "ngram0": (5, 6)}),
        (configured(NGRAM), [3], {"target": (3,), "ngram0": (3,)}),
        (configured(NGRAM, MODEL), [0, 1], {"target": (0,), "ngram0": (1,), "model1": (1,)}),
        (configured(NGRAM, MODEL), [0, 1, 2, 3], {"target": (0,), "ngram0": (1, 3), "model1": (2,)}),
        (configured(), [0, 1], {"target": (0,)}),
        (configured({**MODEL, "cores": [0]}), [0, 1], {"target": (1,), "model0": (0,)}),
        (configured(NGRAM, cores=[1]), [0, 1], {"target": (1,), "ngram0": (0,)}),
        (configured(NGRAM, cores=[0, 1]), [0, 1], {"target": (0, 1), "ngram0": (0, 1)}),
        (configured({**MODEL, "device": "cuda:1"}, device="cuda:0"), [0, 1], {"target": (), "model0": ()}),
        (configured(NGRAM, device="cuda:0"), [0, 1], {"target": (), "ngram0": (0, 1)}),
    ],
)
def test_cores_are_dealt_out(config: Config, available: list[int], expected: dict[str, tuple[int, ...]]) -> None:
    assert assign_cores(config, available=available) == expected


def test_threads_follow_cores_unless_said_otherwise() -> None:
    specs = planned(
        configured({**MODEL, "threads": 3}, {**NGRAM, "cores": [2, 3]}, cores=[0, 1]), available=[0, 1, 2, 3, 4]
    )
    assert [spec.env["OMP_NUM_THREADS"] for spec in specs] == ["2", "3", "1"]


def test_a_core_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"target\.cores: this machine has no core 7") as caught:
        planned(configured(cores=[7]), available=[0, 1])
    assert "0, 1" in (caught.value.fix or "")


def test_port_zero_becomes_a_free_port() -> None:
    address = listen_address("tcp://127.0.0.1:0")
    host, port = split_address(address)
    assert host == "127.0.0.1"
    with socket.socket() as probe:
        probe.bind((host, port))


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TransportError, match="cannot listen") as caught:
            listen_address(address)
    assert "choose another port" in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("listening", "connecting"),
    [
        ("tcp://*:5", "tcp://127.0.0.1:5"),
        ("tcp://0.0.0.0:5", "tcp://127.0.0.1:5"),
        ("tcp://[::]:5", "tcp://[::1]:5"),
        ("tcp://10.0.0.1:5", "tcp://10.0.0.1:5"),
        ("tcp://[::1]:5", "tcp://[::1]:5"),
    ],
)
def test_drafters_connect_to_an_address_that_can_be_reached(listening: str, connecting: str) -> None:
    specs = plan_processes(configured(NGRAM), config_path="c", address=listening, available=[0, 1])
    assert specs[0].argv[-1] == listening
    assert specs[1].argv[-1] == connecting


@pytest.mark.parametrize("text", ["", "tcp://", "127.0.0.1:5", "tcp://h", "tcp://h:x", "tcp://h:99999", "ipc://x:1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no address"):
        split_address(text)


def test_overrides_are_handed_on() -> None:
    specs = plan_processes(configured(NGRAM), config_path="c", address=ADDRESS, sets=["a.b=1"], available=[0, 1])
    assert all(spec.argv[-2:] == ("--set", "a.b=1") for spec in specs)


# ---- a target of several processes ------------------------------------------------------------------------------------


def parallel(*drafters: dict[str, Any], tp_size: int = 2, **target: Any) -> Config:
    data = {"target": {"model": "m", **target}, "drafters": list(drafters), "parallel": {"tp_size": tp_size}}
    return parse_config(data)


def test_ranks_form_one_group_and_only_the_leader_listens() -> None:
    specs = plan_processes(
        parallel(NGRAM, tp_size=3), config_path="c.yaml", address=ADDRESS, available=[0, 1], store="tcp://127.0.0.1:9"
    )
    assert [(spec.name, spec.group, spec.restart) for spec in specs] == [
        ("target", "target", False),
        ("target-1", "target", False),
        ("target-2", "target", False),
        ("ngram0", None, True),
    ]
    meeting = ("--store", "tcp://127.0.0.1:9")
    assert specs[0].argv[3:] == ("target", "c.yaml", "--bind", ADDRESS, "--rank", "0", *meeting)
    assert specs[2].argv[3:] == ("target", "c.yaml", "--rank", "2", *meeting)


def test_ranks_meet_at_a_free_port_of_loopback_unless_told_where() -> None:
    specs = planned(parallel(), available=[0, 1])
    host, port = split_address(specs[0].argv[-1])
    assert host == "127.0.0.1"
    assert port > 0
    assert specs[1].argv[-1] == specs[0].argv[-1]


@pytest.mark.parametrize(
    ("config", "available", "expected"),
    [
        (parallel(), [0, 1], {"target": (0,), "target-1": (1,)}),
        (parallel(NGRAM), [0, 1, 2, 3], {"target": (0,), "target-1": (1,), "ngram0": (2, 3)}),
        (parallel(NGRAM), [0, 1], {"target": (0,), "target-1": (1,), "ngram0": (1,)}),
        (parallel(NGRAM, tp_size=3), [0, 1], {"target": (0,), "target-1": (1,), "target-2": (0,), "ngram0": (1,)}),
        (parallel(NGRAM, cores=[0, 1, 2, 3]), [0, 1, 2, 3, 4], {"target": (0, 2), "target-1": (1, 3), "ngram0": (4,)}),
        (parallel(NGRAM, device="cuda:0"), [0, 1], {"target": (), "target-1": (), "ngram0": (0, 1)}),
    ],
)
def test_each_rank_gets_cores(config: Config, available: list[int], expected: dict[str, tuple[int, ...]]) -> None:
    assert assign_cores(config, available=available) == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (parallel(cores=[0]), "1 for 2 processes"),
        (parallel(cores=[0, 9]), r"target\.cores: this machine has no core 9"),
        (parallel({**NGRAM, "name": "target-1"}), "'target-1' is a rank of the target"),
    ],
)
def test_what_does_not_suit_ranks_is_refused(config: Config, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        planned(config, available=[0, 1])
    assert caught.value.fix


def test_the_leader_is_handed_the_port_where_ranks_meet() -> None:
    held = HeldPort()
    specs = plan_processes(parallel(NGRAM), config_path="c", address=ADDRESS, available=[0, 1], store=held)
    assert [spec.listens for spec in specs] == [held, None, None]
    assert specs[0].argv[-4:] == ("--store", held.address, "--store-fd", str(held.fd))
    assert specs[1].argv[-2:] == ("--store", held.address)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((host, True) for host in ("127.0.0.1", "127.1.2.3", "[::1]", "::1", "localhost")),
        *((host, False) for host in ("127.evil.example", "10.0.0.1", "0.0.0.0", "*", "localhost.x")),
    ],
)
def test_what_only_this_host_can_reach(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
