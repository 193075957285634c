"""A transport that draws every message into a trace: the same end, with one track per link. It changes nothing."""

from __future__ import annotations

from time import monotonic

from dist_spec.core.messages import Close, Commit, Features, Message, Need, Open, Propose
from dist_spec.errors import ProtocolError
from dist_spec.telemetry.trace import Trace
from dist_spec.transports.base import LEADER, Received, Transport


class TracedTransport:
    """`inner`, drawn into `trace`. Arrows lead from the sending of a `Commit` or `Propose` to its arrival.

    Args:
        name: of this end as its peers know it ("leader", or the drafter's name).
    """

    def __init__(self, inner: Transport, *, trace: Trace, name: str = LEADER) -> None:
        self._inner = inner
        self._trace = trace
        self._name = name
        self.ledger = inner.ledger

    def send(self, peer: str, message: Message) -> None:
        start = monotonic()
        self._inner.send(peer, message)
        flow = arrow(message, sender=self._name, receiver=peer)
        self._draw(f"to {peer}", message, start, monotonic(), flow=flow and f"s:{flow}")

    def receive(self, timeout_s: float) -> list[Received]:
        received = self._inner.receive(timeout_s)
        if received:
            now = monotonic()
            for peer, message in received:
                if isinstance(message, ProtocolError):
                    self._trace.span(f"from {peer}", "garbage", now, now)
                    continue
                flow = arrow(message, sender=peer, receiver=self._name)
                self._draw(f"from {peer}", message, now, now, flow=flow and f"f:{flow}")
        return received

    def close(self) -> None:
        self._inner.close()

    def _draw(self, track: str, message: Message, start_s: float, end_s: float, *, flow: str) -> None:
        self._trace.span(track, type(message).__name__, start_s, end_s, flow=flow, arguments=summary(message))


def arrow(message: Message, *, sender: str, receiver: str) -> str:
    """The same text at both ends of the link for the messages that matter for time, "" for others."""
    match message:
        case Propose():
            return f"{sender}>{receiver} {message.request}#{message.generation} p{message.serial}"
        case Commit():
            end = message.base_length + len(message.tokens)
            return f"{sender}>{receiver} {message.request}#{message.generation} c{message.base_length}-{end}"
    return ""


def summary(message: Message) -> dict[str, str | int]:
    """What a person wants to see of it."""
    match message:
        case Propose():
            return {"request": message.request, "base": message.base_length, "nodes": len(message.tokens)}
        case Commit():
            sizes = {"tokens": len(message.tokens), "accepted": message.num_accepted}
            return {"request": message.request, "base": message.base_length, **sizes}
        case Open():
            return {"request": message.request, "prompt": len(message.prompt)}
        case Features():
            return {"request": message.request, "base": message.base_length, "rows": len(message.rows)}
        case Close():
            return {"request": message.request, "reason": message.reason}
        case Need():
            return {"request": message.request, "has": message.have_length}
    return {}
