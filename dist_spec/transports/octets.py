"""Reading and writing what a binary message is made of: numbers of any length, texts, arrays of token ids. It knows no
message and no frame.

Everything is little end first. A number takes 7 bits per byte, lowest first, the top bit saying that more follow. Token
ids of one array share a width: 2, 3 or 4 bytes, by the largest among them.
"""

from __future__ import annotations

import struct
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from dist_spec.core.types import IntArray
from dist_spec.errors import ProtocolError
from dist_spec.transports import fields as f

WIDTHS = (2, 3, 4)
"""Bytes per token id, by its code."""

_INT, _UINT, _SHORT = np.dtype("<i4"), np.dtype("<u4"), np.dtype("<u2")
_FEW = 16
"""Token ids up to which single numbers are cheaper than arrays; a commit holds so many."""
_SHORTS = [struct.Struct(f"<{count}H") for count in range(_FEW + 1)]


def put_number(out: bytearray, value: int) -> None:
    """Append a number; raises ProtocolError unless it is a plain int in [0, 2^63)."""
    if type(value) is not int or not 0 <= value <= f.INT64:
        raise f.refuse("a number", f"an integer in [0, {f.INT64}]", value)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_text(out: bytearray, text: str) -> None:
    """Append a text with its length in bytes before it."""
    encoded = text.encode()
    put_number(out, len(encoded))
    out += encoded


def token_bytes(tokens: IntArray) -> tuple[int, bytes]:
    """(n,) token ids as (code of their width, n * width bytes).

    Raises:
        ProtocolError: an id is negative or 2^31 - 1.
        TypeError: these are no integers.
    """
    if len(tokens) <= _FEW and getattr(tokens, "dtype", None) == _INT:
        ids = tokens.tolist()
        if not ids or 0 <= min(ids) <= max(ids) < 1 << 16:
            return 0, _SHORTS[len(ids)].pack(*ids)
    wide = np.asarray(tokens).astype(_INT, casting="same_kind", copy=False)
    highest = int(wide.view(_UINT).max()) if len(wide) else 0
    if highest < 1 << 16:
        return 0, wide.astype(_SHORT).tobytes()
    if highest < 1 << 24:
        return 1, np.ascontiguousarray(wide).view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    if highest >= f.MAX_VOCABULARY:
        raise ProtocolError(f"a token id lies outside [0, {f.MAX_VOCABULARY})")
    return 2, wide.tobytes()


class Reader:
    """A position in a frame. Every method moves it on, or raises ProtocolError at the end of the frame."""

    __slots__ = ("at", "body")

    def __init__(self, body: memoryview, at: int) -> None:
        self.body = body
        self.at = at

    def take(self, size: int, name: str) -> memoryview:
        start, self.at = self.at, self.at + size
        if self.at > len(self.body):
            self._short(name)
        return self.body[start : self.at]

    def byte(self, name: str) -> int:
        at, self.at = self.at, self.at + 1
        if at >= len(self.body):
            self._short(name)
        return self.body[at]

    def number(self, name: str, *, high: int = f.INT64) -> int:
        value = shift = 0
        while (byte := self.byte(name)) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 56:
                break
        value |= (byte & 0x7F) << shift
        if byte & 0x80 or value > high:
            raise f.refuse(name, f"an integer in [0, {high}]", value)
        return value

    def text(self, name: str, *, limit: int, empty: bool = True) -> str:
        """A text of at most `limit` characters."""
        raw = self.take(self.number(name, high=4 * limit), name)
        try:
            return f.text(str(raw, "utf-8"), name, limit=limit, empty=empty)
        except UnicodeDecodeError as error:
            raise f.refuse(name, "text in UTF-8", bytes(raw)) from error

    def array(self, dtype: npt.DTypeLike, count: int, name: str) -> npt.NDArray[np.generic]:
        """A read-only (count,) view."""
        kind = np.dtype(dtype)
        return np.frombuffer(self.take(count * kind.itemsize, name), kind)

    def tokens(self, count: int, code: int, name: str, *, vocab_size: int) -> IntArray:
        """(count,) int32, every id in [0, vocab_size)."""
        if code >= len(WIDTHS):
            raise f.refuse(f"{name}: width of token ids", f"a code below {len(WIDTHS)}", code)
        raw = self.take(count * WIDTHS[code], name)
        if code == 0:
            tokens = np.frombuffer(raw, _SHORT).astype(np.int32)
        elif code == 1:
            wide = np.zeros((count, 4), np.uint8)
            wide[:, :3] = np.frombuffer(raw, np.uint8).reshape(count, 3)
            tokens = wide.reshape(-1).view(_INT)
        else:
            tokens = np.frombuffer(raw, _INT)
        # Seen as unsigned, a negative id is larger than any vocabulary: one pass checks both ends.
        if count and int(tokens.view(np.uint32).max()) >= vocab_size:
            raise ProtocolError(f"{name}: a token id lies outside [0, {vocab_size})")
        return tokens

    def end(self, name: str) -> None:
        """Nothing may follow."""
        if self.at != len(self.body):
            raise ProtocolError(f"{name}: {len(self.body) - self.at} bytes too many")

    def _short(self, name: str) -> NoReturn:
        raise ProtocolError(f"{name}: the frame ends in the middle of it")
