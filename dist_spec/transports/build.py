"""From the settings to the two ends of a link: ZeroMQ alone, or with a lane for tensors beside it. It sends nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from dist_spec.config import Config, DrafterConfig
from dist_spec.transports.fields import MAX_VOCABULARY
from dist_spec.transports.zmq import ZmqLeader, ZmqPeer

if TYPE_CHECKING:
    from dist_spec.transports.composed import ComposedLeader, ComposedPeer

LeaderEnd: TypeAlias = "ZmqLeader | ComposedLeader"
PeerEnd: TypeAlias = "ZmqPeer | ComposedPeer"


def build_leader(
    config: Config, *, bind: str, vocab_size: int = MAX_VOCABULARY, device: str | None = None
) -> LeaderEnd:
    """The leader's end at `bind`; with lanes if any drafter of the settings wants one.

    Args:
        device: where the target's tensors live (None: `target.device`).

    Raises:
        TransportError: see `ZmqLeader` and `CollectiveLeader`.
    """
    allow_plaintext = config.transport.allow_plaintext
    zmq = ZmqLeader(bind, allow_plaintext=allow_plaintext, vocab_size=vocab_size)
    if all(drafter.link.tensors == "zmq" for drafter in config.process_drafters):
        return zmq
    from dist_spec.transports.composed import ComposedLeader

    try:
        return ComposedLeader(
            zmq,
            device=device or config.target.device,
            allow_plaintext=allow_plaintext,
            deadline_s=config.transport.dead_after_s,
        )
    except Exception:
        zmq.close()
        raise


def keeps_tensors(end: LeaderEnd) -> bool:
    """Whether features should stay on their device until this end takes them."""
    return not isinstance(end, ZmqLeader) and end.keeps_tensors


def build_peer(config: Config, drafter: DrafterConfig, *, connect: str) -> PeerEnd:
    """A drafter's end.

    Raises:
        TransportError: malformed address or name.
    """
    zmq = ZmqPeer(connect, drafter.name, bulk=drafter.kind == "head")
    if drafter.link.tensors == "zmq":
        return zmq
    from dist_spec.transports.composed import ComposedPeer

    backend = drafter.link.backend
    return ComposedPeer(
        zmq,
        connect=connect,
        carries="messages" if drafter.link.messages == "collective" else "tensors",
        device=getattr(drafter, "device", "cpu"),
        backend=None if backend == "auto" else backend,
        deadline_s=config.transport.dead_after_s,
    )
