"""Checks of single fields, shared by all message kinds; knows nothing of frames, sockets or their meaning.

Each function returns its argument with a narrowed type, or raises ProtocolError that names the field. `type(x) is int`
rather than isinstance: a bool is an int in Python but not on the wire.
"""

from __future__ import annotations

import math

from dist_spec.core.messages import MAX_REQUEST_ID, MAX_TOKENS
from dist_spec.errors import ProtocolError

MAX_NAME = 64
MAX_KEY = 640
"""A statistic's name; it may contain a peer's."""
MAX_REASON = 1024
MAX_STOP = 1024
MAX_TOKEN_TEXT = 256
MAX_ITEMS = 1024
"""Stop ids, stop strings, statistics or token texts in one message, at most."""

UINT64 = 2**64 - 1
INT64 = 2**63 - 1
MAX_VOCABULARY = 2**31 - 1

MAX_HEADER_BYTES = 1 << 20
"""What a message may hold beside token ids."""
MAX_FRAME_BYTES = MAX_HEADER_BYTES + 4 * MAX_TOKENS
"""The largest frame a peer may send: the longest request."""


def refuse(name: str, wanted: str, value: object) -> ProtocolError:
    """The error to raise for a field that is not what it must be."""
    return ProtocolError(f"{name} must be {wanted}, got {value!r:.60}")


def integer(value: object, name: str, *, low: int = 0, high: int = INT64) -> int:
    if type(value) is not int or not low <= value <= high:
        raise refuse(name, f"an integer in [{low}, {high}]", value)
    return value


def number(value: object, name: str) -> float:
    """A finite number or, for statistics that were not measured, NaN or an infinity."""
    if type(value) is not float and type(value) is not int:
        raise refuse(name, "a number", value)
    return float(value)


def seconds(value: object, name: str) -> float:
    value = number(value, name)
    if not (math.isfinite(value) and value >= 0.0):
        raise refuse(name, "finite and not negative", value)
    return value


def boolean(value: object, name: str) -> bool:
    if type(value) is not bool:
        raise refuse(name, "true or false", value)
    return value


def text(value: object, name: str, *, limit: int, empty: bool = True) -> str:
    if type(value) is not str or len(value) > limit or not (value or empty):
        raise refuse(name, f"a string of {0 if empty else 1} to {limit} characters", value)
    return value


def octets(value: object, name: str, *, limit: int) -> bytes:
    if type(value) is not bytes or len(value) > limit:
        raise refuse(name, f"at most {limit} bytes", value)
    return value


def items(value: object, name: str, *, limit: int = MAX_ITEMS) -> tuple[object, ...]:
    if type(value) is not tuple or len(value) > limit:
        raise refuse(name, f"a list of at most {limit}", value)
    return value


def request_id(value: object) -> str:
    return text(value, "request", limit=MAX_REQUEST_ID, empty=False)


def length(value: object, name: str) -> int:
    """A number of tokens."""
    return integer(value, name, high=MAX_TOKENS)
