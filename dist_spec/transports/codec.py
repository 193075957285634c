"""Messages to frames and back, checked both ways; knows nothing of sockets, peers or what a message is for.

A message begins with its tag, the protocol version and when it was sent; then come the fields, as msgpack (`records`)
or, for those that flow while text is being made, as compact binary (`stream`, `bulk`). Never pickle. What `decode`
would refuse, `encode` refuses too (but for `Commit`), so a bad message shows up where it was made.

A `Hello` alone is one msgpack array [tag, version, fields ...], as in every version, so that the leader can refuse a peer
of another version by name.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from dist_spec.core.messages import PROTOCOL_VERSION, Commit, Features, Hello, Message, Propose
from dist_spec.errors import ProtocolError
from dist_spec.transports import fields as f
from dist_spec.transports.bulk import FEATURES_TAG, pack_features, read_features
from dist_spec.transports.fields import MAX_FRAME_BYTES
from dist_spec.transports.records import pack_record, read_hello, read_record, wrong_version
from dist_spec.transports.stream import (
    COMMIT_TAG,
    PROPOSE_TAG,
    RequestName,
    Resolve,
    pack_commit,
    pack_propose,
    read_commit,
    read_propose,
)

__all__ = ["MAX_FRAME_BYTES", "Frame", "decode", "encode", "kind_of", "sent_us"]

Frame: TypeAlias = "bytes | memoryview | torch.Tensor"
"""A tensor is (n,) uint8 on a device: features, where the link takes such."""

if TYPE_CHECKING:
    import torch

_ENVELOPE = struct.Struct("<BBI")
_TIME = struct.Struct("<I")
_TIME_AT = 2
_MSGPACK = 0x80
"""Tags are smaller; the first byte of a msgpack array is not."""


def kind_of(message: Message) -> str:
    """The name under which the ledger counts a message: "propose", "commit", ..."""
    return type(message).__name__.lower()


def unknown_name(handle: int) -> RequestName:
    """What a request is called by whoever does not know its name; the other end knows it by that (`names`)."""
    return f"#{handle:08x}", 0


def encode(message: Message, *, sent_us: int = 0, handle: int | None = None) -> list[Frame]:
    """Frames of one message; the first holds everything but dense draft laws and hidden features.

    Args:
        sent_us: the sender's clock in microseconds, modulo 2^32; a `Hello` does not carry it.
        handle: what to call the request by instead of its name, if the receiver knows it (`Commit`, `Propose`, `Features`).

    Raises:
        ProtocolError: a field is out of range, too long, of another type, or the arrays do not fit together.
    """
    try:
        match message:
            case Commit():
                frames: list[Frame] = [*pack_commit(message, sent_us=sent_us, handle=handle)]
            case Propose():
                frames = [*pack_propose(message, sent_us=sent_us, handle=handle)]
            case Features():
                frames = [*pack_features(message, sent_us=sent_us, handle=handle)]
            case _:
                tag, fields = pack_record(message)
                is_hello = isinstance(message, Hello)
                frames = [fields if is_hello else _ENVELOPE.pack(tag, PROTOCOL_VERSION, sent_us) + fields]
    except ProtocolError:
        raise
    except (ValueError, TypeError, OverflowError, KeyError, AttributeError, struct.error) as error:
        raise ProtocolError(f"a {kind_of(message)} message cannot be encoded: {error}") from error
    if len(frames[0]) > MAX_FRAME_BYTES:
        raise ProtocolError(f"the message has {len(frames[0])} bytes; the limit is {MAX_FRAME_BYTES}")
    return frames


def decode(frames: Sequence[Frame], *, vocab_size: int = f.MAX_VOCABULARY, resolve: Resolve = unknown_name) -> Message:
    """The message in `frames`; arrays may be read-only.

    Args:
        frames: as `encode` made them.
        vocab_size: token ids must be smaller than this.
        resolve: the request that a handle stands for.

    Raises:
        ProtocolError: for anything that is no message of this protocol version. No other exception, whatever the bytes.
    """
    if not frames or len(frames[0]) == 0:
        raise ProtocolError("an empty message")
    views: list[Any] = [memoryview(one) if isinstance(one, bytes | bytearray | memoryview) else one for one in frames]
    first = views[0]
    if not all(isinstance(view, memoryview) for view in views) and not _may_lie_on_a_device(views):
        raise ProtocolError("frames on a device where none belong")
    tag = first[0]
    if tag >= _MSGPACK:
        return read_hello(first)
    if len(first) < _ENVELOPE.size:
        raise ProtocolError("the message ends in its header")
    if first[1] != PROTOCOL_VERSION:
        raise wrong_version(first[1])
    if tag == COMMIT_TAG:
        return read_commit(views, vocab_size=vocab_size, resolve=resolve)
    if tag == PROPOSE_TAG:
        return read_propose(views, vocab_size=vocab_size, resolve=resolve)
    if tag == FEATURES_TAG:
        return read_features(views, resolve=resolve)
    if len(frames) != 1:
        raise ProtocolError(f"{len(frames)} frames where 1 belongs")
    return read_record(tag, first[_ENVELOPE.size :], vocab_size=vocab_size)


def _may_lie_on_a_device(views: Sequence[Any]) -> bool:
    """Only features do, behind the header of their message."""
    first, *others = views
    known = isinstance(first, memoryview) and first[0] in (COMMIT_TAG, FEATURES_TAG)
    return known and len(others) == 1


def sent_us(frames: Sequence[Frame]) -> int | None:
    """When the sender says it sent a message (its clock in microseconds, modulo 2^32); None for a `Hello`."""
    first: Any = frames[0]
    first = memoryview(first)
    if len(first) < _ENVELOPE.size or first[0] >= _MSGPACK:
        return None
    found: int = _TIME.unpack_from(first, _TIME_AT)[0]
    return found
