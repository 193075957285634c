"""A frontend of a target that somebody else runs (`generate --connect`): connects, waits until it is ready, and stays
through the target's restarts. It starts and ends no process and knows nothing of what is asked."""

from __future__ import annotations

import os
import secrets
import socket
from time import monotonic
from types import TracebackType
from typing import Protocol, Self

from dist_spec.bench.deployment import Deployment
from dist_spec.config import Config
from dist_spec.errors import TransportError
from dist_spec.models.tokenizer import Tokenizer
from dist_spec.server.client import Client
from dist_spec.topology import connect_address
from dist_spec.transports.zmq import ZmqPeer

WAIT_S = 60.0
"""How long is waited for a target that is not there, or no longer."""
DRAFTERS_WAIT_S = 30.0
_HOST_CHARACTERS = 24


class Serving(Protocol):
    """What runs requests: a deployment of our own, or a connection to a running target.

    Attributes:
        client: connected, or about to be.
        tag: goes in front of request ids, which are unique among all frontends of a target ("": nobody else is there).
        shared: others may use it too.
    """

    client: Client
    tag: str
    shared: bool

    def check(self) -> None:
        """Look after what belongs to it; raises WorkerError when that can serve no longer."""
        ...


class Connection:
    """A client of the target at `address`; use as a context manager.

    Args:
        config: its heartbeat holds here too.
        tokenizer: compared with the target's at the greeting.
        wait_s: how long is waited for the target, at the start and whenever it goes away.

    Raises:
        ConfigError, TransportError: malformed address.
    """

    shared = True

    def __init__(self, address: str, config: Config, *, tokenizer: Tokenizer, wait_s: float = WAIT_S) -> None:
        self.address = connect_address(address)
        self.wait_s = wait_s
        self.tag = secrets.token_hex(4)
        name = f"frontend-{socket.gethostname()[:_HOST_CHARACTERS]}-{os.getpid()}-{self.tag}"
        self.client = Client(
            ZmqPeer(self.address, name),
            name=name,
            silence_s=wait_s,
            repeat_s=min(5.0, max(wait_s / 4, 0.5)),
            heartbeat_s=config.transport.heartbeat_s,
            vocabulary=tokenizer.vocabulary_hashes(),
            tokens=tokenizer.token_map,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()

    def check(self) -> None:
        """Nothing is ours to look after: the client itself waits for the target."""

    def wait_ready(self, *, num_drafters: int = 0) -> None:
        """Until the target answers, and has so many drafters (for these it is not waited long: they cost nothing but speed).

        Raises:
            TransportError: it has not after `wait_s`, or it refused us.
            TokenizerMismatchError: its tokenizer is another one.
        """
        if not self.client.connect(timeout_s=self.wait_s):
            raise TransportError(
                f"no target answers at {self.address} (waited {self.wait_s:g} s)",
                fix="check the address and that the target is up; one that still loads needs a longer --wait-s",
            )
        deadline = monotonic() + min(self.wait_s, DRAFTERS_WAIT_S)
        while self.client.num_drafters < num_drafters and monotonic() < deadline:
            self.client.poll(timeout_s=0.05)


def serving_of(
    config: Config, *, tokenizer: Tokenizer, name: str, connect: str | None, wait_s: float = WAIT_S
) -> Deployment | Connection:
    """Processes of our own (called `name`), or those behind the address `connect`; to be entered and waited for.

    Raises:
        ConfigError, TransportError: see `Deployment` and `Connection`.
    """
    if connect is None:
        return Deployment(name, config)
    return Connection(connect, config, tokenizer=tokenizer, wait_s=wait_s)
