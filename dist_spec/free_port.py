"""A port for a process that will listen a little later. It knows nothing of who will."""

from __future__ import annotations

import random
import re
import socket
from contextlib import suppress
from pathlib import Path

_HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _IANA_FIRST = 15_000, 49_152
_TRIES = 64


def free_port(host: str = "127.0.0.1") -> int:
    """A port of `host` that nobody listens at, below those that the kernel hands out by itself where there are such: no
    connection made meanwhile takes it, not even one that is tried before anybody listens, which Linux may join to itself.

    Raises:
        OSError: the host is not one of this machine's, or no port is free.
    """
    end = _first_handed_out()
    wanted = range(_LOWEST, end) if end - _LOWEST > _TRIES else range(0)
    for port in random.SystemRandom().sample(wanted, min(_TRIES, len(wanted))):
        with suppress(OSError):
            return bound_port(host, port)
    return bound_port(host, 0)


def bound_port(host: str, port: int) -> int:
    """The port, once it was seen that one can listen there (0: one that the kernel chooses); else OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As ZeroMQ does: a port that a former run left in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("" if host == "*" else host, port))
        found: int = probe.getsockname()[1]
    return found


def _first_handed_out() -> int:
    try:
        found = re.match(r"\s*(\d+)", _HANDED_OUT.read_text())
    except OSError:  # another system
        found = None
    return _IANA_FIRST if found is None else int(found[1])
