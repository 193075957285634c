"""Wakes a thread that waits, from another one: a pair of sockets that `poll` understands. It carries nothing."""

from __future__ import annotations

import select
import socket
from contextlib import suppress


class Bell:
    """Rung by any thread, heard by one. May ring in vain: whoever hears it looks for himself."""

    def __init__(self) -> None:
        self._heard, self._rope = socket.socketpair()
        self._heard.setblocking(False)
        self._rope.setblocking(False)

    def fileno(self) -> int:
        """Can be read once the bell was rung; -1 when closed."""
        return self._heard.fileno()

    def ring(self) -> None:
        with suppress(OSError):  # full: it rings already; closed: nobody listens
            self._rope.send(b"\0")

    def silence(self) -> None:
        """To be called before looking for what it was rung for, so that nothing is missed."""
        with suppress(OSError):
            while self._heard.recv(4096):
                pass

    def wait(self, timeout_s: float) -> None:
        """Until it rings, at most `timeout_s`."""
        if self.fileno() >= 0:
            select.select([self._heard], [], [], max(timeout_s, 0.0))

    def close(self) -> None:
        self._heard.close()
        self._rope.close()
