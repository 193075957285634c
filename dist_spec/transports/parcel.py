"""How a message's frames lie in one header and the bodies behind it, and how the two are sent and read on a `Pair`. It knows
no queue, no thread and no message.

A header holds the frames' sizes, and the frames of host memory themselves where they fit: most messages need no second
transfer, and so no round trip. Frames on a device (tensors, (n,) uint8) are bodies of their own, and arrive on a device.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from dist_spec.errors import TransportError
from dist_spec.transports.codec import Frame
from dist_spec.transports.pair import Pair

if TYPE_CHECKING:
    import torch


MAX_FRAMES = 512
MAX_BYTES = 1 << 28
"""Of one message."""
HEADER_BYTES = 1 << 17
BEAT, FRAMES, FAREWELL = 1, 2, 3
"""What a header says: nothing, here is a message, this end leaves."""

_MAGIC = 0x64535031
_HEAD = struct.Struct("<IHHQ")  # magic, what, number of frames, bytes of those in host memory
_SIZE = struct.Struct("<Q")
_ON_DEVICE = 1 << 63
_LONGEST_HEAD = _HEAD.size + MAX_FRAMES * _SIZE.size


@dataclass(kw_only=True)
class Parcel:
    """A message on its way.

    Attributes:
        works: what was begun; `held`: tensors that it reads.
        later: bodies to be sent once the header is gone; `ready`: what computes them has come so far.
    """

    frames: Sequence[Frame]
    what: int = FRAMES
    works: list[Any] = field(default_factory=list)
    held: list[torch.Tensor] = field(default_factory=list)
    later: list[torch.Tensor] = field(default_factory=list)
    ready: Any = None


def fits(frames: Sequence[Frame]) -> bool:
    """Whether a lane carries a message of these frames."""
    return len(frames) <= MAX_FRAMES and sum(map(len, frames)) <= MAX_BYTES


def needs_device(pair: Pair, frames: Sequence[Frame]) -> bool:
    """Whether sending takes more than a few system calls: a stream, and the first time a communicator."""
    tensors = any(not isinstance(frame, bytes | memoryview) for frame in frames)
    return tensors or (pair.backend != "gloo" and sum(map(len, frames)) + _LONGEST_HEAD > HEADER_BYTES)


def start(pair: Pair, parcel: Parcel) -> None:
    """Begin to send a message: its header, with all frames of host memory if they fit behind it."""
    host: list[bytes | memoryview] = []
    sizes: list[int] = []
    for frame in parcel.frames:
        if isinstance(frame, bytes | memoryview):
            host.append(frame)
            sizes.append(len(frame))
        else:
            sizes.append(len(frame) | _ON_DEVICE)
            if len(frame):
                parcel.later.append(frame)
    num_bytes = sum(map(len, host))
    head = _HEAD.pack(_MAGIC, parcel.what, len(sizes), num_bytes) + b"".join(map(_SIZE.pack, sizes))
    if len(head) + num_bytes <= HEADER_BYTES:
        parcel.held = [_joined(pair, [head, *host])]
        parcel.works = pair.start(parcel.held[0])
        return
    parcel.held = [_joined(pair, [head]), _joined(pair, host)]
    if pair.backend == "gloo":
        parcel.works = pair.start(*parcel.held)
    else:
        parcel.works = pair.start(parcel.held[0])
        parcel.later.insert(0, parcel.held[1])


def _joined(pair: Pair, parts: Sequence[bytes | memoryview]) -> torch.Tensor:
    """(n,) uint8 on the host: the parts one after the other."""
    box = pair.buffer(sum(map(len, parts)))
    view = _view(box)
    end = 0
    for part in parts:
        view[end : end + len(part)] = part
        end += len(part)
    return box


def read(pair: Pair, box: torch.Tensor) -> tuple[int, list[Frame]]:
    """What came, with its frames; bodies that did not fit into the box are received."""
    view = _view(box)
    magic, what, count, num_bytes = _HEAD.unpack_from(view)
    start = _HEAD.size + count * _SIZE.size
    if magic != _MAGIC or what not in (BEAT, FRAMES, FAREWELL) or count > MAX_FRAMES or num_bytes > MAX_BYTES:
        raise TransportError("the other end does not speak this lane's language")
    marked = [_SIZE.unpack_from(view, _HEAD.size + i * _SIZE.size)[0] for i in range(count)]
    sizes = [size & ~_ON_DEVICE for size in marked]
    host = [size for size, mark in zip(sizes, marked, strict=True) if not mark & _ON_DEVICE]
    if sum(host) != num_bytes or sum(sizes) > MAX_BYTES:
        raise TransportError("the other end announces frames of wrong sizes")
    if start + num_bytes <= HEADER_BYTES:
        body = memoryview(bytes(view[start : start + num_bytes]))
    else:
        body = _view(pair.receive_body(num_bytes).cpu())
    parts = iter([body[first:last] for first, last in pairwise(accumulate(host, initial=0))])
    frames: list[Frame] = [
        (pair.receive_body(size) if size else b"") if mark & _ON_DEVICE else next(parts)
        for size, mark in zip(sizes, marked, strict=True)
    ]
    return what, frames


def _view(box: torch.Tensor) -> memoryview:
    """The bytes of a host tensor."""
    found: Any = box.numpy()
    return memoryview(found)
