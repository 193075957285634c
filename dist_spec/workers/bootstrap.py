"""How the processes of one start find each other: the launcher's store tells where the leader's own store is, and that
tells the rest. It knows no launcher by name (see `role.py`), and nothing of models or messages.

The leader's store outlives every drafter, and listens at one address only. What the launcher's store says may be left
over from an earlier try of an elastic launcher (the count of restarts differs between its agents), so nobody believes it
before the store that it names has answered with the same token.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from time import monotonic, sleep

import torch.distributed as dist

from dist_spec.errors import ConfigError, TransportError
from dist_spec.models.parallel.group import host_store
from dist_spec.topology import is_loopback
from dist_spec.workers.end_bell import EndBell
from dist_spec.workers.role import Role, World

_PREFIX = "dist_spec"
_LEADER, _TOKEN = "leader", "token"
_RETRY_S = 0.1
_TRY_S = 5.0
"""How long one attempt to reach a store may take."""
_MAX_RECORD = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Leader:
    """Where the leader is.

    Attributes:
        host, port: of its store.
        end_port: of its `EndBell`.
        address: where it listens for messages, "tcp://host:port".
        token: made up anew at every start.
    """

    host: str
    port: int
    end_port: int
    address: str
    token: str

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: bytes) -> Leader:
        """Raises TransportError when it is no such record."""
        try:
            data = json.loads(text[:_MAX_RECORD])
            record = cls(**data)
            good = all(isinstance(one, str) for one in (record.host, record.address, record.token))
            good = good and all(type(port) is int and 0 < port < 65536 for port in (record.port, record.end_port))
        except (ValueError, TypeError):
            good = False
        if not good:
            raise TransportError("the launcher's store holds no address of a leader", fix="is its port used by others?")
        return record


class LeaderPost:
    """The leader's end: hosts its store, tells where it is, and at the end that it is over.

    Args:
        host: one address of this host, where the store listens.
        address: where the leader will listen for messages, as others reach it.
        boot: the launcher's store.

    Attributes:
        store, port: the leader's own store, and where it listens.

    Raises:
        ConfigError, TransportError: it cannot listen there.
    """

    def __init__(self, boot: dist.Store, *, host: str, address: str) -> None:
        self.store = host_store(host)
        self.port = self.store.port
        self._bell = EndBell(host=host)
        token = secrets.token_hex(8)
        self.store.set(_TOKEN, token)
        leader = Leader(host=host, port=self.port, end_port=self._bell.port, address=address, token=token)
        boot.set(_LEADER, leader.to_text())

    def end(self) -> None:
        """Tell the drafters that it is over."""
        self._bell.ring()


def meeting_point(world: World, *, own_host: Callable[[], str], timeout_s: float) -> dist.Store:
    """The launcher's store: its agent's where it has one, else rank 0 hosts it.

    Args:
        own_host: this host's address, should rank 0 not own the address that the launcher tells.

    Raises:
        ConfigError: the launcher tells no meeting point, or rank 0 cannot listen there.
        TransportError: it cannot be reached.
    """
    if world.master is None:
        raise ConfigError(
            "the launcher tells no place to meet: MASTER_ADDR and MASTER_PORT are not set",
            fix="export MASTER_ADDR (the first rank's host) and MASTER_PORT (a free port there) to every process",
        )
    host, port = world.master
    if world.one_host and not world.agent_store:
        host = "127.0.0.1"  # whatever the launcher calls this host: others need not reach it
    if world.rank == 0 and not world.agent_store:
        try:
            store = host_store(host, port)
        except ConfigError:
            store = host_store(own_host(), port)
    else:
        store = join_store(host, port, timeout_s=timeout_s)
    return dist.PrefixStore(_PREFIX, store)


def find_leader(boot: dist.Store, *, timeout_s: float) -> tuple[Leader, dist.Store]:
    """The leader of this start, and its store.

    Raises:
        TransportError: it did not show up in time.
    """
    deadline = monotonic() + timeout_s
    seen = "nothing was published"
    while monotonic() < deadline:
        try:
            boot.wait([_LEADER], timedelta(seconds=max(0.1, deadline - monotonic())))
            leader = Leader.from_text(boot.get(_LEADER))
            seen = f"nobody answers at {leader.host}:{leader.port}"
            store = _try_store(leader.host, leader.port)
            if store.check([_TOKEN]) and store.get(_TOKEN) == leader.token.encode():
                return leader, store
        except (OSError, dist.DistError, TransportError):
            pass  # not yet there, or left over from an earlier try
        sleep(_RETRY_S)
    raise TransportError(
        f"the target's first rank did not show up within {timeout_s:g} s ({seen})",
        fix="see its output; it must be able to listen at an address that this host can reach",
    )


def await_ranks(store: dist.Store, *, rank: int, size: int, timeout_s: float) -> None:
    """Until all the target's ranks have found the leader's store: nodes may be started minutes apart.

    Raises:
        TransportError: not all came in time.
    """
    names = [f"rank/{one}" for one in range(size)]
    store.set(names[rank], "here")
    try:
        store.wait(names, timedelta(seconds=timeout_s))
    except dist.DistError as error:
        raise TransportError(
            f"not all of the target's {size} ranks came within {timeout_s:g} s (this is rank {rank}): {error}",
            fix="start them all, and see the output of those that are missing",
        ) from error


def own_address(role: Role, *, environ: Mapping[str, str], timeout_s: float) -> str:
    """The address of this host at which the others can reach it: loopback where all are on one host, else POD_IP, else
    that of the interface on the way to the launcher's meeting point, whose name may take a while to be known.

    Raises:
        ConfigError: none can be found.
    """
    world = role.world
    if world.one_host or world.master is None:
        return "127.0.0.1"
    if environ.get("POD_IP"):
        return environ["POD_IP"]
    host, deadline = world.master[0], monotonic() + timeout_s
    while (found := _source_address(host)) is None and monotonic() < deadline:
        sleep(_RETRY_S)
    if found is not None and is_loopback(found) and not is_loopback(host):
        found = _source_address("192.0.2.1")  # the host's name means loopback here: the way to anywhere (sends nothing)
    if found is None:
        raise ConfigError(
            f"no address of this host can be found from which {host} is reached (tried for {timeout_s:g} s)",
            fix="check MASTER_ADDR, or set POD_IP to this host's address",
        )
    return found


def join_store(host: str, port: int, *, timeout_s: float) -> dist.TCPStore:
    """A store that another process hosts, or will host soon.

    Raises:
        TransportError: nobody answers there, or the name cannot be resolved, for `timeout_s`.
    """
    deadline = monotonic() + timeout_s
    while True:
        try:
            return _try_store(host, port)
        except (OSError, dist.DistError) as error:
            if monotonic() + _RETRY_S > deadline:
                raise TransportError(
                    f"nobody answers at {host}:{port} after {timeout_s:g} s: {error}",
                    fix="are all processes started, and does the name mean the first rank's host everywhere?",
                ) from error
        sleep(_RETRY_S)


def _try_store(host: str, port: int) -> dist.TCPStore:
    # Whether somebody listens is found out by ourselves: torch warns of every failed try.
    socket.create_connection((host, port), timeout=_TRY_S).close()
    return dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_TRY_S))


def _source_address(host: str) -> str | None:
    """Of the interface from which this host would send to `host`; no packet is sent."""
    try:
        family, _, _, _, where = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return None
