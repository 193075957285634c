"""What every transport looks like. It moves typed messages between one leader and its peers and counts bytes; it knows
nothing of what they mean. Sending never blocks; losing a message costs speed only."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from dist_spec.core.messages import Message
from dist_spec.errors import ProtocolError
from dist_spec.transports.ledger import Ledger

LEADER = "leader"
"""The name by which drafters and frontends address the leader."""

Received: TypeAlias = tuple[str, Message | ProtocolError]
"""(peer, message), or (peer, error) when that peer sent something that is no message."""


class Transport(Protocol):
    """One end. The leader's end is bound and has many peers; a connecting end has one, `LEADER`."""

    ledger: Ledger

    def send(self, peer: str, message: Message) -> None:
        """Queue a message; at the high-water mark the oldest is dropped (and counted), never the caller blocked."""
        ...

    def receive(self, timeout_s: float) -> list[Received]:
        """Everything that has arrived; waits up to `timeout_s` (0: not at all) if nothing has."""
        ...

    def close(self) -> None: ...
