"""Rows of hidden features as raw frames of float16 and back, checked; knows no message."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_spec.core.messages import MAX_FEATURES
from dist_spec.core.types import HalfArray
from dist_spec.errors import ProtocolError
from dist_spec.transports import fields as f
from dist_spec.transports.octets import Reader, put_number

_HALF = np.dtype("<f2")


def put_rows(out: bytearray, rows: Any, *, limit: int) -> Any:
    """Append the shape; returns the frame that holds the numbers: a memoryview, or a tensor for rows on a device.

    Args:
        limit: rows at most.

    Raises:
        ProtocolError: too many, too wide, not float16, or not all of them finite.
    """
    is_half = rows.dtype == np.float16 if isinstance(rows, np.ndarray) else str(rows.dtype) == "torch.float16"
    if rows.ndim != 2 or not is_half or not 1 <= len(rows) <= limit:
        raise f.refuse("features", f"1 to {limit} rows of float16", f"{rows.dtype} {rows.shape}")
    put_number(out, rows.shape[0])
    put_number(out, rows.shape[1])
    if not isinstance(rows, np.ndarray):
        import torch

        _check_shape(rows, rows.nbytes)
        return rows.contiguous().view(torch.uint8).reshape(-1)
    frame = np.ascontiguousarray(rows, _HALF).data.cast("B")
    _check(rows, len(frame))
    return frame


def read_rows(reader: Reader, frame: Any, *, limit: int) -> HalfArray:
    """(n, size) read-only view, on a device if the frame came there; the shape comes from the reader.

    Raises:
        ProtocolError: the frame is not that of such rows.
    """
    count = reader.number("features: rows", high=limit)
    size = reader.number("features: size", high=MAX_FEATURES)
    if not count or len(frame) != count * size * _HALF.itemsize:
        raise f.refuse("features", f"{count} rows of {size} float16", len(frame))
    if not isinstance(frame, memoryview):
        import torch

        _check_shape(frame.view(torch.float16).reshape(count, size), len(frame))
        return frame.view(torch.float16).reshape(count, size)
    rows = np.frombuffer(frame, _HALF).reshape(count, size)
    _check(rows, len(frame))
    return rows


def host_rows(rows: Any) -> HalfArray:
    """The same rows in host memory; waits for a device that still computes them."""
    return rows if isinstance(rows, np.ndarray) else rows.cpu().numpy()


def _check_shape(rows: Any, num_bytes: int) -> None:
    """All that can be said of rows on a device without waiting for it."""
    if not rows.shape[1] or rows.shape[1] > MAX_FEATURES or num_bytes > f.MAX_FRAME_BYTES:
        raise f.refuse("features", f"1 to {MAX_FEATURES} wide, {f.MAX_FRAME_BYTES} bytes", tuple(rows.shape))


def _check(rows: HalfArray, num_bytes: int) -> None:
    """The exponent bits of an infinity or of what is no number are all set: an integer test is far quicker."""
    _check_shape(rows, num_bytes)
    if int((rows.view(np.uint16) & np.uint16(0x7FFF)).max()) >= 0x7C00:
        raise ProtocolError("features: not all of them are finite")
