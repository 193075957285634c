"""One message on its way, encoded and timed; the step between messages and frames that every transport shares. It knows
no socket and no queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from dist_spec.core.messages import Message
from dist_spec.errors import ProtocolError
from dist_spec.transports.base import Received
from dist_spec.transports.codec import Frame, decode, encode, kind_of
from dist_spec.transports.ledger import Ledger

MALFORMED = "malformed"
"""The kind under which the ledger counts what could not be decoded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Packet:
    """One encoded message. `local_s` is the time its encoding took."""

    kind: str
    frames: list[Frame]
    local_s: float = 0.0

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.frames))


def pack(message: Message) -> Packet:
    """Encode; raises ProtocolError for a message that the other end would refuse."""
    start = perf_counter()
    frames = encode(message)
    return Packet(kind=kind_of(message), frames=frames, local_s=perf_counter() - start)


def unpack(frames: Sequence[Frame], *, peer: str, vocab_size: int, ledger: Ledger) -> Received:
    """Decode what a peer sent and count it; what is no message comes back as the error."""
    start = perf_counter()
    message: Message | ProtocolError
    try:
        message = decode(frames, vocab_size=vocab_size)
        kind = kind_of(message)
    except ProtocolError as error:
        message, kind = error, MALFORMED
        ledger.dropped(kind, peer=peer, direction="in")
    num_bytes = sum(map(len, frames))
    ledger.count(kind, peer=peer, direction="in", num_bytes=num_bytes, local_s=perf_counter() - start)
    return peer, message
