"""How the processes of one start find each other: stores, what is left over in them, addresses, the word at the end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from dist_spec.config import parse_config
from dist_spec.errors import ConfigError, TransportError
from dist_spec.free_port import free_port
from dist_spec.workers.bootstrap import (
    Leader,
    LeaderPost,
    await_ranks,
    find_leader,
    join_store,
    meeting_point,
    own_address,
)
from dist_spec.workers.end_bell import EndBell, EndWatch
from dist_spec.workers.launch_app import Launch, _placed, leader_addresses, run_launch
from dist_spec.workers.role import Role, World
from dist_spec.workers.target_rank import run_rank

HOST = "127.0.0.1"


def world(rank: int, *, master: tuple[str, int] | None, one_host: bool = True) -> World:
    return World(rank=rank, size=3, one_host=one_host, master=master)


def meet(rank: int, port: int, *, timeout_s: float = 20.0) -> object:
    return meeting_point(world(rank, master=(HOST, port)), own_host=lambda: HOST, timeout_s=timeout_s)


def listeners(port: int) -> list[str]:
    """Addresses at which somebody on this machine listens on this port, as the kernel writes them."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                found.append(local.rpartition(":")[0])
    return found


def test_ranks_meet_although_the_one_that_hosts_comes_last() -> None:
    port, stores = free_port(), {}
    others = [threading.Thread(target=lambda r=r: stores.update({r: meet(r, port)})) for r in (1, 2)]
    for other in others:
        other.start()
    time.sleep(0.3)
    stores[0] = meet(0, port)
    for other in others:
        other.join()
    stores[1].set("key", "value")
    assert stores[2].get("key") == b"value"


def test_stores_listen_at_one_address_only() -> None:
    port = free_port()
    boot = meet(0, port)
    post = LeaderPost(boot, host=HOST, address="tcp://127.0.0.1:5")  # type: ignore[arg-type]
    loopback = "0100007F"
    assert listeners(port) == [loopback]
    assert listeners(post.port) == [loopback]
    post.end()


def test_on_one_host_they_meet_at_loopback_whatever_the_launcher_calls_it() -> None:
    port = free_port()
    stores = [
        meeting_point(world(rank, master=("name.invalid", port)), own_host=lambda: HOST, timeout_s=20.0)
        for rank in (0, 1)
    ]
    assert listeners(port) == ["0100007F"]
    stores[0].set("key", "value")
    assert stores[1].get("key") == b"value"


def test_ranks_meet_on_a_network_only_where_it_is_trusted() -> None:
    config = parse_config({"target": {"model": "m"}, "parallel": {"tp_size": 2}})
    for rank in (0, 1):
        with pytest.raises(ConfigError, match=r"--store tcp://10\.0\.0\.1:5 can be reached from other hosts"):
            run_rank(config, bind="tcp://127.0.0.1:0", rank=rank, store="tcp://10.0.0.1:5")


def test_the_leader_is_found_and_what_an_earlier_try_left_is_not_believed() -> None:
    boot = meet(0, free_port())
    dead = Leader(host=HOST, port=free_port(), end_port=1, address="tcp://127.0.0.1:1", token="old")
    boot.set("leader", dead.to_text())  # type: ignore[attr-defined]
    posts: list[LeaderPost] = []

    def start() -> None:
        time.sleep(0.4)
        posts.append(LeaderPost(boot, host=HOST, address="tcp://127.0.0.1:2"))  # type: ignore[arg-type]

    thread = threading.Thread(target=start)
    thread.start()
    leader, store = find_leader(boot, timeout_s=20.0)  # type: ignore[arg-type]
    thread.join()
    assert leader.address == "tcp://127.0.0.1:2"
    assert leader.port == posts[0].port
    assert store.get("token") == leader.token.encode()
    posts[0].end()


def test_another_store_at_the_place_of_a_dead_leader_is_not_believed() -> None:
    boot = meet(0, free_port())
    post = LeaderPost(boot, host=HOST, address="tcp://127.0.0.1:2")  # type: ignore[arg-type]
    post.store.set("token", "of somebody else")
    with pytest.raises(TransportError, match=r"did not show up within 0\.5 s"):
        find_leader(boot, timeout_s=0.5)  # type: ignore[arg-type]
    post.end()


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"host": 1}', b"\xff", b'{"host": "h", "port": 0}', b"9" * 5000, b"null"]
)
def test_garbage_in_the_launchers_store_is_refused(text: bytes) -> None:
    with pytest.raises(TransportError, match="holds no address of a leader"):
        Leader.from_text(text)


def test_what_cannot_be_met_is_told() -> None:
    with pytest.raises(TransportError, match="nobody answers at"):
        join_store(HOST, free_port(), timeout_s=0.3)
    with pytest.raises(ConfigError, match="MASTER_ADDR"):
        meeting_point(world(1, master=None), own_host=lambda: HOST, timeout_s=1.0)


def test_the_end_reaches_all_drafters_also_those_nobody_ever_spoke_to() -> None:
    bell = EndBell(host=HOST)
    watches = [EndWatch(HOST, bell.port, timeout_s=5.0) for _ in range(5)]
    assert not any(watch() for watch in watches)
    watches.pop().close()  # one leaves early: nothing changes for the others
    bell.ring()
    bell.ring()
    deadline = time.monotonic() + 10
    while not all(watch() for watch in watches):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not any(watch.lost for watch in watches)
    for watch in watches:
        watch.close()
    with pytest.raises(TransportError, match="has gone already"):
        EndWatch(HOST, bell.port, timeout_s=5.0)


def test_a_leader_that_dies_without_a_word_is_noticed() -> None:
    bell = EndBell(host=HOST)
    watch = EndWatch(HOST, bell.port, timeout_s=5.0)
    bell._socket.close()  # what the kernel does for a process that was killed
    deadline = time.monotonic() + 10
    while not watch():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert watch.lost
    watch.close()


def role(*, one_host: bool, master: str = HOST) -> Role:
    return Role(name="target", rank=0, size=2, world=world(0, master=(master, 1), one_host=one_host))


def test_own_address() -> None:
    pod = {"POD_IP": "10.0.0.9"}
    assert own_address(role(one_host=True, master="elsewhere"), environ=pod, timeout_s=1.0) == HOST
    assert own_address(role(one_host=False), environ=pod, timeout_s=1.0) == "10.0.0.9"
    assert own_address(role(one_host=False), environ={}, timeout_s=1.0) == HOST
    with pytest.raises(ConfigError, match="no address of this host"):
        own_address(role(one_host=False, master="name.invalid"), environ={}, timeout_s=0.2)


def test_ranks_wait_for_all_others_however_late() -> None:
    boot = meet(0, free_port())
    post = LeaderPost(boot, host=HOST, address="tcp://127.0.0.1:2")  # type: ignore[arg-type]
    came: list[int] = []

    def come(rank: int) -> None:
        time.sleep(0.2 * rank)
        _, store = find_leader(boot, timeout_s=20.0)  # type: ignore[arg-type]
        await_ranks(store, rank=rank, size=3, timeout_s=20.0)
        came.append(rank)

    threads = [threading.Thread(target=come, args=[rank]) for rank in (1, 2)]
    for thread in threads:
        thread.start()
    await_ranks(post.store, rank=0, size=3, timeout_s=20.0)
    for thread in threads:
        thread.join()
    assert sorted(came) == [1, 2]
    with pytest.raises(TransportError, match=r"not all of the target's 4 ranks came within 0\.3 s"):
        await_ranks(post.store, rank=0, size=4, timeout_s=0.3)
    post.end()


@pytest.mark.parametrize(
    ("bind", "host", "shared", "listening", "reached"),
    [
        ("tcp://127.0.0.1:7", HOST, True, "tcp://127.0.0.1:7", "tcp://127.0.0.1:7"),
        ("tcp://127.0.0.1:7", "127.0.0.9", True, "tcp://127.0.0.1:7", "tcp://127.0.0.1:7"),
        ("tcp://127.0.0.1:7", "10.0.0.1", False, "tcp://127.0.0.1:7", "tcp://127.0.0.1:7"),
        ("tcp://127.0.0.1:7", "10.0.0.1", True, "tcp://10.0.0.1:7", "tcp://10.0.0.1:7"),
        ("tcp://*:7", "10.0.0.1", True, "tcp://*:7", "tcp://10.0.0.1:7"),
        ("tcp://*:7", HOST, True, "tcp://*:7", "tcp://127.0.0.1:7"),
        ("tcp://127.0.0.1:7", "fd00::1", True, "tcp://[fd00::1]:7", "tcp://[fd00::1]:7"),
    ],
)
def test_the_leader_listens_where_the_others_reach_it(
    bind: str, host: str, shared: bool, listening: str, reached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dist_spec.workers.launch_app.listen_address", lambda address: address)
    assert leader_addresses(bind, host=host, shared=shared) == (listening, reached)


def launched(environ: dict[str, str], launch: Launch, **sections: object) -> int:
    config = parse_config({"target": {"model": "m"}, "drafters": [{"kind": "ngram"}], **sections})
    return run_launch(config, launch, environ=environ)


@pytest.mark.parametrize(
    ("environ", "launch", "message"),
    [
        ({}, Launch(role="drafter"), "where the target listens is not known"),
        ({}, Launch(role="target", connect=["tcp://h:1"]), "--connect is for drafters"),
        ({}, Launch(role="drafter", drafters=["nobody"]), "no drafter is called 'nobody'"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "5", "POD_IP": "10.0.0.1"},
            Launch(),
            "several hosts .this one is 10.0.0.1., and what they say",
        ),
    ],
)
def test_refusals_before_anything_starts(environ: dict[str, str], launch: Launch, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        launched(environ, launch)
    assert caught.value.fix


def test_a_drafter_inside_the_leader_needs_no_process() -> None:
    inside = [{"kind": "ngram", "name": "inside", "placement": "leader"}]
    with pytest.raises(ConfigError, match="inside runs inside the target"):
        launched({}, Launch(role="drafter", drafters=["inside"]), drafters=inside)


def alone(name: str, rank: int, size: int, *, one_host: bool = True) -> Role:
    every = World(rank=rank, size=size, one_host=one_host, master=None)
    return Role(name=name, rank=rank, size=size, world=every)  # type: ignore[arg-type]


def test_a_launched_process_is_pinned_to_named_cores_only_and_takes_as_many_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned: list[tuple[int, ...]] = []
    monkeypatch.setattr("os.sched_setaffinity", lambda process, cores: pinned.append(tuple(cores)))
    monkeypatch.setattr("dist_spec.workers.launch_app.available_cores", lambda: list(range(8)))
    drafters = [{"kind": "model", "name": "small", "model": "m"}, {"kind": "ngram", "name": "lookup", "cores": [7]}]

    def threads(role: Role, name: str, *, omp: str = "", **target: object) -> int | None:
        config = parse_config({"target": {"model": "m", **target}, "drafters": drafters, "parallel": {"tp_size": 2}})
        placed = _placed(config, role=role, name=name, environ={"OMP_NUM_THREADS": omp})
        return placed.target.threads if role.name == "target" else getattr(placed.drafter(name), "threads", None)

    assert threads(alone("target", 1, 2), "target-1") == 1
    assert threads(alone("target", 1, 2), "target-1", omp="3") == 3
    assert threads(alone("target", 1, 2), "target-1", omp="3", threads=2) == 2
    assert threads(alone("drafter", 0, 2), "small", omp="4") == 4
    assert pinned == []
    assert threads(alone("target", 1, 2), "target-1", cores=[0, 1, 2, 3]) == 2
    assert threads(alone("drafter", 1, 2), "lookup") is None
    assert pinned == [(1, 3), (7,)]
    assert threads(alone("target", 1, 2, one_host=False), "target-1", omp="3", cores=[0, 1, 2, 3]) == 3
    assert len(pinned) == 2
