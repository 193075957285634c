"""Where the two ends of a lane find each other: a store that the leader hosts, at which a peer knocks and says who it is.
It moves no messages. Like all of torch.distributed it neither encrypts nor authenticates: loopback, or a trusted network.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from threading import Thread
from typing import Any
from uuid import uuid4

from dist_spec.errors import TransportError
from dist_spec.topology import is_loopback
from dist_spec.transports.pair import Pair, TensorBackend

_FOR_EVER = timedelta(days=365)
_GUESTS = "guests"
_MAX_GUEST_BYTES = 4096
_BACKLOG = 64
_MEET_S = 10.0
"""How long one end waits for the other to come, at least: it may be busy."""
WILDCARDS = ("0.0.0.0", "::")
"""Every address of a host: a peer must know by itself which one leads there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Guest:
    """Who knocked.

    Attributes:
        name: of the peer.
        key: under which the two ends meet; never used twice.
        backend: what the peer would like bodies to travel by.
        host: the leader's address as the peer reached it.
    """

    name: str
    key: str
    backend: TensorBackend
    host: str


class Meeting:
    """The leader's end.

    Args:
        host: one address of this host, to which alone the store is bound.
        port: 0 for a free one.
        on_guest: called by a thread of the meeting's own whenever a peer has knocked.

    Attributes:
        address: "HOST:PORT".

    Raises:
        TransportError: the address is not this host's, in use, or open to other hosts without `allow_plaintext`.
    """

    def __init__(self, host: str, port: int = 0, *, allow_plaintext: bool, on_guest: Callable[[Guest], None]) -> None:
        import torch.distributed as dist

        if not (allow_plaintext or is_loopback(host)):
            raise TransportError(
                f"a store at {host} can be reached from other hosts; torch.distributed neither encrypts nor authenticates",
                fix="bind to 127.0.0.1, or set transport.allow_plaintext on a network you trust",
            )
        listening = _listen(host, port)
        self.host, self.port = listening.getsockname()[:2]
        self._store: Any = dist.TCPStore(
            self.host,
            self.port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
            timeout=_FOR_EVER,
        )
        self._on_guest = on_guest
        self._thread = Thread(target=self._listen_for_guests, args=(self.client(_FOR_EVER),), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def client(self, timeout: timedelta) -> Any:
        """A connection to the store: whoever waits on one holds it up for all who use the same."""
        import torch.distributed as dist

        return dist.TCPStore(self.host, self.port, is_master=False, timeout=timeout)

    def receive(self, guest: Guest, *, backend: TensorBackend, device: str, deadline_s: float) -> Pair:
        """The leader's end of a pair with this guest; waits for the guest's. See `Pair` for errors."""
        import torch.distributed as dist

        store = dist.PrefixStore(guest.key, self.client(timedelta(seconds=max(deadline_s, _MEET_S))))
        agreed: TensorBackend = "nccl" if guest.backend == backend == "nccl" else "gloo"
        store.set("backend", agreed)
        host = guest.host if self.host in WILDCARDS else self.host  # what a guest says opens nothing that is not open
        return Pair(store, rank=0, backend=agreed, device=device, host=host, deadline_s=deadline_s)

    def close(self) -> None:
        """Harmless when done twice."""
        if self._store is not None:
            self._store.queue_push(_GUESTS, b"")
            self._thread.join(1.0)
            self._store = None  # ends the store, and frees its port

    def _listen_for_guests(self, store: Any) -> None:
        while True:
            try:
                told = bytes(store.queue_pop(_GUESTS, True))
            except RuntimeError:  # the store is gone
                return
            if not told:
                return
            guest = _guest(told)
            if guest is not None:
                self._on_guest(guest)


def knock(
    address: str, *, name: str, backend: TensorBackend, device: str, deadline_s: float, reached: str | None = None
) -> Pair:
    """A peer's end of a pair with the leader; waits for the leader's.

    Args:
        address: of the leader's store, "HOST:PORT".
        reached: the host by which this peer reaches the leader otherwise; used where the store's is a wildcard.

    Raises:
        TransportError: nobody is there, or the pair could not be made.
    """
    import torch.distributed as dist

    host, port = split(address)
    host = reached if reached and host in WILDCARDS else host
    own, host = _addresses(host, port)
    timeout = timedelta(seconds=max(deadline_s, _MEET_S))
    try:
        client = dist.TCPStore(host, port, is_master=False, timeout=timeout)
        guest = Guest(name=name, key=uuid4().hex, backend=backend, host=host)
        client.queue_push(_GUESTS, json.dumps(asdict(guest)).encode())
        store = dist.PrefixStore(guest.key, client)
        agreed: TensorBackend = "nccl" if bytes(store.get("backend")) == b"nccl" else "gloo"
    except RuntimeError as error:
        raise TransportError(f"the store at {address} does not answer: {str(error).splitlines()[0]}") from error
    return Pair(store, rank=1, backend=agreed, device=device, host=own, deadline_s=deadline_s)


def split(address: str) -> tuple[str, int]:
    """Host (without brackets) and port of "HOST:PORT".

    Raises:
        TransportError: it is none.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise TransportError(f"{address!r} is no address of a store", fix='use "HOST:PORT"')
    return host.strip("[]"), int(port)


def _listen(host: str, port: int) -> socket.socket:
    """torch's own store would listen on every address of this host."""
    try:
        family, kind, proto, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, proto)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        text = f"cannot bind a store to {host}:{port}: {error}"
        raise TransportError(text, fix="use another host or port") from error
    return listening


def _addresses(host: str, port: int) -> tuple[str, str]:
    """(our own address on the way to the leader, the leader's). Knocks once by itself: torch's store would complain at
    length of nobody being there."""
    try:
        with socket.create_connection((host, port), timeout=2.0) as connection:
            return connection.getsockname()[0], connection.getpeername()[0]
    except OSError as error:
        raise TransportError(f"nobody listens at {host}:{port} ({error})") from error


def _guest(told: bytes) -> Guest | None:
    """None: whoever knocked speaks another language."""
    try:
        fields = json.loads(told[:_MAX_GUEST_BYTES])
        guest = Guest(**fields)
    except (ValueError, TypeError):
        return None
    texts = (guest.name, guest.key, guest.backend, guest.host)
    return guest if all(isinstance(one, str) for one in texts) and len(guest.key) == 32 else None
