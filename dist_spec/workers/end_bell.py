"""How the drafters of one start hear that it is over: each keeps a connection to the leader, which says one word at the end.
Sockets only; it knows nothing of who is connected, nor of what they do.

Nobody accepts a connection before the end: until then they wait in the kernel, at no cost to the leader's loop. If the
leader dies without a word, the kernel closes them, and that is news too.
"""

from __future__ import annotations

import contextlib
import socket
from time import monotonic

from dist_spec.errors import TransportError

_WORD = b"end"
_BACKLOG = 1024
_LOOK_S = 0.1


class EndBell:
    """The leader's end.

    Args:
        host: one address of this host.

    Attributes:
        port: where it listens.

    Raises:
        TransportError: it cannot listen there.
    """

    def __init__(self, *, host: str) -> None:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.bind((host, 0))
            self._socket.listen(_BACKLOG)
            self._socket.setblocking(False)
        except OSError as error:
            raise TransportError(f"cannot listen at {host}: {error.strerror or error}") from error
        self.port = int(self._socket.getsockname()[1])

    def ring(self) -> None:
        """Tell all who are connected; then nobody is. May be called again."""
        with contextlib.suppress(OSError), self._socket:
            while True:  # until accept finds nobody: the socket does not block
                connection, _ = self._socket.accept()
                with contextlib.suppress(OSError), connection:
                    connection.send(_WORD)


class EndWatch:
    """A drafter's end; call it to ask whether it is over. It never waits.

    Attributes:
        lost: the leader has gone without a word.

    Raises:
        TransportError: nobody listens there.
    """

    def __init__(self, host: str, port: int, *, timeout_s: float) -> None:
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise TransportError(f"the target at {host} has gone already: {error.strerror or error}") from error
        # A host that vanished is noticed, in the end.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket.setblocking(False)
        self._over = self.lost = False
        self._next_look_s = 0.0

    def __call__(self) -> bool:
        now = monotonic()
        if not self._over and now >= self._next_look_s:
            self._next_look_s = now + _LOOK_S
            self._look()
        return self._over

    def close(self) -> None:
        self._socket.close()

    def _look(self) -> None:
        try:
            heard = self._socket.recv(len(_WORD))
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        self._over, self.lost = True, not heard
