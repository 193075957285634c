"""One message on its way, encoded and timed; the step between messages and frames that every transport shares. It knows
no socket and no queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic, perf_counter

from dist_spec.core.messages import Hello, Message, Ping
from dist_spec.errors import ProtocolError
from dist_spec.transports.base import Received
from dist_spec.transports.clocks import stamp
from dist_spec.transports.codec import Frame, decode, encode, kind_of, sent_us
from dist_spec.transports.ledger import Ledger
from dist_spec.transports.names import Names

RIDING = "features"
"""The kind under which the ledger counts features, whether they come with a commit or by themselves."""
MALFORMED = "malformed"
"""The kind under which the ledger counts what could not be decoded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Packet:
    """One encoded message. `sent_s` is when it was to be sent, `local_s` the time its encoding took."""

    kind: str
    frames: list[Frame]
    sent_s: float = 0.0
    local_s: float = 0.0

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.frames))

    def counted(self, ledger: Ledger, *, peer: str, local_s: float = 0.0) -> None:
        """It was handed to the link, which took `local_s`."""
        ledger.count(
            self.kind,
            peer=peer,
            direction="out",
            num_bytes=self.num_bytes - riding_bytes(self.kind, self.frames),
            local_s=self.local_s + local_s,
            now=self.sent_s,
            sent_us=stamp(self.sent_s),
        )
        if riding := riding_bytes(self.kind, self.frames):
            ledger.count(RIDING, peer=peer, direction="out", num_bytes=riding)


def riding_bytes(kind: str, frames: Sequence[Frame]) -> int:
    """Bytes of hidden features that ride along with a commit: the ledger counts them as what they are."""
    return sum(map(len, frames[1:])) if kind == "commit" and len(frames) > 1 else 0


def pack(message: Message, *, peer: str, names: Names) -> Packet:
    """Encode; raises ProtocolError for a message that the other end would refuse."""
    start, now = perf_counter(), monotonic()
    frames = encode(message, sent_us=stamp(now), handle=names.outgoing(message, peer=peer))
    return Packet(kind=kind_of(message), frames=frames, sent_s=now, local_s=perf_counter() - start)


def unpack(frames: Sequence[Frame], *, peer: str, vocab_size: int, ledger: Ledger, names: Names) -> Received:
    """Decode what a peer sent and count it; what is no message comes back as the error."""
    start, now = perf_counter(), monotonic()
    message: Message | ProtocolError
    sent: int | None = None
    try:
        message = decode(frames, vocab_size=vocab_size, resolve=names.resolve)
        kind, sent = kind_of(message), sent_us(frames)
        message = names.incoming(message, peer=peer)
    except ProtocolError as error:
        message, kind = error, MALFORMED
        ledger.dropped(kind, peer=peer, direction="in")
    if isinstance(message, Hello):
        ledger.greeted(peer)
    elif isinstance(message, Ping) and message.echo_s > 0:
        ledger.round_trip(peer, now - message.echo_s)
    num_bytes = sum(map(len, frames))
    local_s = perf_counter() - start
    riding = riding_bytes(kind, frames)
    ledger.count(kind, peer=peer, direction="in", num_bytes=num_bytes - riding, local_s=local_s, now=now, sent_us=sent)
    if riding:
        ledger.count(RIDING, peer=peer, direction="in", num_bytes=riding)
    return peer, message
