"""`Features`, the message that is large and can wait, as a short header and one raw frame; knows nothing of sockets."""

from __future__ import annotations

from collections.abc import Sequence

from dist_spec.core.messages import Features
from dist_spec.errors import ProtocolError
from dist_spec.transports.halves import put_rows, read_rows
from dist_spec.transports.stream import Resolve, begin, read_begin

FEATURES_TAG = 10


def pack_features(m: Features, *, sent_us: int, handle: int | None) -> list[bytes | memoryview]:
    """Header and rows.

    Raises:
        ProtocolError, ValueError, TypeError, struct.error: what `read_features` would refuse.
    """
    out = begin(m, FEATURES_TAG, 0, sent_us, handle)
    frame = put_rows(out, m.rows, limit=max(m.base_length, 1))
    return [bytes(out), frame]


def read_features(frames: Sequence[memoryview], *, resolve: Resolve) -> Features:
    if len(frames) != 2:
        raise ProtocolError(f"{len(frames)} frames where 2 belong")
    reader, _, name, base_length, base_digest = read_begin(frames[0], resolve)
    rows = read_rows(reader, frames[1], limit=base_length)
    reader.end("features")
    request, generation = name
    return Features(request=request, generation=generation, base_length=base_length, base_digest=base_digest, rows=rows)
