"""Names and addresses of ZeroMQ ends: which routing id is which peer, where binding is allowed; it opens nothing."""

from __future__ import annotations

import errno

import zmq

from dist_spec.errors import TransportError
from dist_spec.topology import is_loopback

_BIND_FIX = 'use "tcp://127.0.0.1:PORT"; port 0 takes a free one'


def peer_name(identity: bytes) -> str:
    """A printable name for any routing id; those of our own peers name themselves, others appear as "?" and hex."""
    try:
        name = identity.decode()
    except UnicodeDecodeError:
        name = ""
    return name if name.isprintable() and not name.startswith("?") and name else "?" + identity.hex()


def identity_of(name: str) -> bytes:
    """The inverse of `peer_name`; a name that no peer can have gives an id that no peer has."""
    if not name.startswith("?"):
        return name.encode(errors="replace")
    try:
        return bytes.fromhex(name[1:])
    except ValueError:
        return b""


def bulk_identity_of(name: str) -> bytes:
    """The routing id of a peer's second connection, over which it is sent what is large and can wait."""
    return identity_of(name) + b"\0bulk"


def checked_bind(address: str, *, allow_plaintext: bool) -> str:
    """The address as ZeroMQ wants it; raises TransportError when it is malformed or open to other hosts."""
    host = _host(address, any_port=True)
    if host is None:
        raise TransportError(f"cannot bind to {address!r}", fix=_BIND_FIX)
    if not host:
        return address
    if not (allow_plaintext or is_loopback(host)):
        raise TransportError(
            f"{address} can be reached from other hosts, and messages are neither encrypted nor authenticated"
            " (CURVE keys are not in this release)",
            fix="bind to 127.0.0.1 (with a tunnel between hosts), or set allow_plaintext on a network you trust",
        )
    return address.replace("://localhost:", "://127.0.0.1:")


def checked_connect(address: str) -> str:
    """The address as it is; raises TransportError when it is malformed."""
    if _host(address, any_port=False) is None:
        raise TransportError(f"cannot connect to {address!r}", fix='use "tcp://HOST:PORT"')
    return address


def _host(address: str, *, any_port: bool) -> str | None:
    """The host of a TCP address, "" for a path of this host, None when malformed (ZeroMQ would wrap a port > 65535)."""
    scheme, _, rest = address.partition("://")
    if scheme == "ipc":
        return "" if rest else None
    host, _, port = rest.rpartition(":")
    free = port in ("0", "*")
    valid = any_port if free else port.isdecimal() and int(port) < 65536
    return host if scheme == "tcp" and host and valid else None


def bind_error(address: str, error: zmq.ZMQError) -> TransportError:
    """What to tell the user when ZeroMQ refused to bind."""
    if error.errno == errno.EADDRINUSE:
        return TransportError(f"{address} is in use", fix="end the process that holds it, or use port 0 for a free one")
    if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV):
        return TransportError(f"{address} is not an address of this host", fix="bind to an address of this host")
    return TransportError(f"cannot bind to {address}: {error}", fix=_BIND_FIX)
