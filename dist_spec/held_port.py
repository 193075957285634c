"""A port of loopback that listens from the start for a process that is yet to come, or to come again: nobody else can
take it meanwhile. It accepts nothing itself, and knows nothing of who will."""

from __future__ import annotations

import os
import socket
import weakref

_BACKLOG = 256


class HeldPort:
    """Held as long as this object lives, through the ends of those who were handed it.

    Attributes:
        fd: of the listening socket, to be inherited.
        address: "tcp://127.0.0.1:PORT".

    Raises:
        OSError: no port is free.
    """

    def __init__(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(_BACKLOG)
            self.address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
            self.fd = listener.detach()
        weakref.finalize(self, os.close, self.fd)
