"""The transport between processes: ZeroMQ ROUTER (leader, binds) and DEALER (peers, connect). It moves frames and
counts them; it knows nothing of what they mean and starts no thread of its own.

A peer's name is its ZeroMQ routing id, so a restarted drafter takes over the place of its dead predecessor. Names must
be unique: two living peers with one name keep throwing each other out. Losing a connection is no error; ZeroMQ makes a
new one, and what was lost meanwhile the protocol asks for again.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Sequence
from time import monotonic, perf_counter
from typing import Any

import zmq

from dist_spec.core.messages import Features, Message
from dist_spec.errors import TransportError
from dist_spec.transports.address import (
    bind_error,
    bulk_identity_of,
    checked_bind,
    checked_connect,
    identity_of,
    peer_name,
)
from dist_spec.transports.base import LEADER, Received
from dist_spec.transports.bell import Bell
from dist_spec.transports.codec import MAX_FRAME_BYTES
from dist_spec.transports.fields import MAX_NAME, MAX_VOCABULARY
from dist_spec.transports.ledger import Ledger
from dist_spec.transports.names import Names
from dist_spec.transports.outbox import HIGH_WATER, Outbox
from dist_spec.transports.packet import pack, unpack

__all__ = ["ZmqLeader", "ZmqPeer", "wait_any"]

_MAX_DRAIN = 4096
"""Messages taken by one `receive`, so that a flood cannot hold the caller for ever."""
_RETRY_S = 0.01
"""How often a waiting `receive` retries what could not be handed over."""
_FAREWELL_MS = 250
"""How long `close` may wait for the last messages to leave."""
BULK_HIGH_WATER = 32
"""Messages of features that may wait for one peer."""
_BULK_DRAIN = 8
"""Messages of features taken by one `receive`: a commit that comes meanwhile is read after so many at most."""
_BULK_PATIENCE_S = 5.0
"""How long they may wait for its second connection."""

_OPTIONS: dict[int, int | bytes] = {
    zmq.LINGER: 0,
    zmq.MAXMSGSIZE: MAX_FRAME_BYTES,
    zmq.HANDSHAKE_IVL: 5_000,
    zmq.HEARTBEAT_IVL: 2_000,  # notices a host that vanished; whether a process makes progress is judged elsewhere
    zmq.HEARTBEAT_TIMEOUT: 10_000,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 30,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.IMMEDIATE: 1,  # nothing is queued inside ZeroMQ for a connection that does not exist: the outbox does that
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 1_000,
}

_contexts: set[zmq.Context[zmq.Socket[bytes]]] = set()
"""Those in use. Held here because the garbage collector, should it find an end that nobody closed, could end a context
before its socket, and that waits for ever."""


class _Channel:
    """A socket with the bounded queue before it."""

    def __init__(self, socket_type: int, *, high_water: int, options: dict[int, int | bytes]) -> None:
        self.ledger = Ledger()
        self.names = Names()
        self.outbox = Outbox(high_water=high_water, ledger=self.ledger)
        self._context = zmq.Context()
        _contexts.add(self._context)
        self.socket = self._context.socket(socket_type)
        for option, value in {**_OPTIONS, zmq.SNDHWM: high_water, zmq.RCVHWM: high_water, **options}.items():
            self.socket.setsockopt(option, value)

    def send(self, peer: str, message: Message, *, route: list[bytes]) -> None:
        self._check_open()
        self.outbox.push(peer, pack(message, peer=peer, names=self.names))
        self.flush(peer, route=route)

    def flush(self, peer: str, *, route: list[bytes], outbox: Outbox | None = None, patience_s: float = 0.0) -> None:
        """Hand over what waits for a peer, as far as that goes without blocking.

        Args:
            outbox: where it waits (None: the usual one).
            patience_s: how long a packet may wait for a peer that is not connected.
        """
        outbox = self.outbox if outbox is None else outbox
        while (packet := outbox.peek(peer)) is not None:
            start = perf_counter()
            frames: list[Any] = [*route, *packet.frames]
            try:
                self.socket.send_multipart(frames, flags=zmq.NOBLOCK)
            except zmq.Again:
                return
            except zmq.ZMQError as error:
                if error.errno != errno.EHOSTUNREACH:
                    raise TransportError(f"cannot send to {peer}: {error}") from error
                if monotonic() - packet.sent_s >= patience_s:
                    outbox.give_up(peer)
                return
            outbox.pop(peer)
            packet.counted(self.ledger, peer=peer, local_s=perf_counter() - start)

    def drain(self, *, limit: int = _MAX_DRAIN) -> list[list[bytes]]:
        """The multipart messages that have arrived, at most `limit`."""
        self._check_open()
        arrived: list[list[bytes]] = []
        # Asking first is cheaper than an exception, and mostly nothing, or one message, has come.
        while len(arrived) < limit and int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            arrived.append(self.socket.recv_multipart(flags=zmq.NOBLOCK))
        return arrived

    def unpack(self, frames: Sequence[bytes], *, peer: str, vocab_size: int) -> Received:
        return unpack(frames, peer=peer, vocab_size=vocab_size, ledger=self.ledger, names=self.names)

    def close(self) -> None:
        if self.socket.closed:
            return
        self.outbox.clear()
        self.socket.close(linger=_FAREWELL_MS)
        self._context.term()
        _contexts.discard(self._context)

    def _check_open(self) -> None:
        if self.socket.closed:
            raise TransportError("this transport was closed")


def _wait(channels: Sequence[_Channel], timeout_s: float, *, retry: bool, bell: Bell | None) -> bool:
    """Until something can be read, the timeout, the moment to retry what still waits to be sent, or the bell; whether it
    rang."""
    if retry:
        timeout_s = min(timeout_s, _RETRY_S)
    milliseconds = math.ceil(timeout_s * 1e3)
    if len(channels) == 1 and bell is None:
        channels[0].socket.poll(milliseconds, zmq.POLLIN)
        return False
    poller = zmq.Poller()
    for channel in channels:
        poller.register(channel.socket, zmq.POLLIN)
    if bell is not None:
        poller.register(bell.fileno(), zmq.POLLIN)
    ready = dict(poller.poll(milliseconds))
    return bell is not None and bell.fileno() in ready


class ZmqLeader:
    """The bound end, with many peers.

    Args:
        bind: "tcp://127.0.0.1:PORT" (0: any free port; see `address`) or "ipc:///path".
        allow_plaintext: permit an address that other hosts can reach; the wire is neither encrypted nor authenticated.
        high_water: messages that may wait for one peer, here and inside ZeroMQ.
        vocab_size: token ids of received messages must be smaller; may be set later, when the model is known.

    Attributes:
        bell: when it rings, a waiting `receive` returns at once, with nothing if nothing came.

    Raises:
        TransportError: the address is malformed, in use, not this host's, or reachable from outside without
            `allow_plaintext`.
    """

    def __init__(
        self,
        bind: str = "tcp://127.0.0.1:0",
        *,
        allow_plaintext: bool = False,
        high_water: int = HIGH_WATER,
        vocab_size: int = MAX_VOCABULARY,
    ) -> None:
        bind = checked_bind(bind, allow_plaintext=allow_plaintext)
        self.vocab_size = vocab_size
        options: dict[int, int | bytes] = {zmq.ROUTER_HANDOVER: 1, zmq.ROUTER_MANDATORY: 1, zmq.IPV6: "[" in bind}
        self._channel = _Channel(zmq.ROUTER, high_water=high_water, options=options)
        self.ledger = self._channel.ledger
        self.names = self._channel.names
        self.bell: Bell | None = None
        self._bulk = Outbox(high_water=BULK_HIGH_WATER, ledger=self.ledger)
        try:
            self._channel.socket.bind(bind)
        except zmq.ZMQError as error:
            self._channel.close()
            raise bind_error(bind, error) from error
        self.address = self._channel.socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def send(self, peer: str, message: Message) -> None:
        """See `Transport.send`; for a peer that is not connected the message is dropped and counted.

        Raises:
            ProtocolError: the message cannot be encoded.
            TransportError: this end was closed.
        """
        if isinstance(message, Features):
            self._bulk.push(peer, pack(message, peer=peer, names=self._channel.names))
            self._flush_bulk(peer)
            return
        self._channel.send(peer, message, route=[identity_of(peer)])

    def _flush_bulk(self, peer: str) -> None:
        """Over a connection of its own, so that no commit waits behind it. That may be made later than the first."""
        route = [bulk_identity_of(peer)]
        self._channel.flush(peer, route=route, outbox=self._bulk, patience_s=_BULK_PATIENCE_S)

    def receive(self, timeout_s: float) -> list[Received]:
        """See `Transport.receive`. The wait is rounded up to whole milliseconds."""
        deadline = monotonic() + timeout_s
        while True:
            for peer in self._channel.outbox.waiting():
                self._channel.flush(peer, route=[identity_of(peer)])
            for peer in self._bulk.waiting():
                self._flush_bulk(peer)
            arrived = self._channel.drain()
            left = deadline - monotonic()
            if arrived or left <= 0:
                return [self._unpack(*message) for message in arrived]
            retry = len(self._bulk) > 0 or len(self._channel.outbox) > 0
            if _wait([self._channel], left, retry=retry, bell=self.bell):
                return []

    def close(self) -> None:
        """Let the last messages leave (for at most a quarter of a second) and free the address."""
        self._bulk.clear()
        self._channel.close()

    def _unpack(self, identity: bytes, *frames: bytes) -> Received:
        return self._channel.unpack(frames, peer=peer_name(identity), vocab_size=self.vocab_size)


class ZmqPeer:
    """A connecting end: drafter or frontend. The leader may come later, go and return.

    Args:
        connect: the leader's address.
        name: by which the leader knows this peer; unique among the peers.
        high_water, vocab_size: as for `ZmqLeader`.
        bulk: make a second connection, for what is large and can wait (`Features`).

    Raises:
        TransportError: malformed address or name.
    """

    def __init__(
        self,
        connect: str,
        name: str,
        *,
        high_water: int = HIGH_WATER,
        vocab_size: int = MAX_VOCABULARY,
        bulk: bool = False,
    ) -> None:
        connect = checked_connect(connect)
        identity = identity_of(name)
        if not name or len(identity) > MAX_NAME or peer_name(identity) != name or name == LEADER:
            raise TransportError(f"{name!r} cannot be a peer's name", fix=f"use 1 to {MAX_NAME} printable characters")
        self.name = name
        self.vocab_size = vocab_size
        options: dict[int, int | bytes] = {zmq.ROUTING_ID: identity, zmq.IPV6: "[" in connect}
        self._channel = _Channel(zmq.DEALER, high_water=high_water, options=options)
        self._channels = [self._channel]
        self.ledger = self._channel.ledger
        self.names = self._channel.names
        self.bell: Bell | None = None
        if bulk:
            options = {**options, zmq.ROUTING_ID: bulk_identity_of(name)}
            self._channels.append(_Channel(zmq.DEALER, high_water=BULK_HIGH_WATER, options=options))
        try:
            for channel in self._channels:
                channel.socket.connect(connect)
        except zmq.ZMQError as error:
            self.close()
            raise TransportError(f"cannot connect to {connect!r}: {error}", fix='use "tcp://HOST:PORT"') from error

    def send(self, peer: str, message: Message) -> None:
        """See `Transport.send`; the only peer is `LEADER`, for another the message is dropped and counted."""
        if peer == LEADER:
            self._channel.send(peer, message, route=[])
        else:
            self.ledger.dropped(pack(message, peer=peer, names=self._channel.names).kind, peer=peer)

    def receive(self, timeout_s: float) -> list[Received]:
        """See `Transport.receive`. The wait is rounded up to whole milliseconds."""
        deadline = monotonic() + timeout_s
        while True:
            self._channel.flush(LEADER, route=[])
            arrived = self._channel.drain()
            for bulk in self._channels[1:]:
                arrived += bulk.drain(limit=_BULK_DRAIN)
            left = deadline - monotonic()
            if arrived or left <= 0:
                return [self._unpack(frames) for frames in arrived]
            if _wait(self._channels, left, retry=len(self._channel.outbox) > 0, bell=self.bell):
                return []

    def close(self) -> None:
        """Let the last messages leave, for at most a quarter of a second."""
        for channel in reversed(self._channels):
            channel.close()

    def _unpack(self, frames: list[bytes]) -> Received:
        return self._channel.unpack(frames, peer=LEADER, vocab_size=self.vocab_size)


def wait_any(peers: Sequence[ZmqPeer], timeout_s: float) -> None:
    """Until any of these ends has something to read, the timeout, or the moment to retry what still waits to be sent."""
    channels = [channel for peer in peers for channel in peer._channels]
    retry = any(len(channel.outbox) for channel in channels)
    _wait(channels, timeout_s, retry=retry, bell=None)
