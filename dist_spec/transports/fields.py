"""Checks of single header fields, shared by all message kinds; knows nothing of frames, sockets or their meaning.

Each function returns its argument with a narrowed type, or raises ProtocolError that names the field. `type(x) is int`
rather than isinstance: a bool is an int in Python but not on the wire.
"""

from __future__ import annotations

import math

import numpy as np

from dist_spec.core.messages import MAX_NODES, MAX_REQUEST_ID, MAX_TOKENS
from dist_spec.core.types import FloatArray, IntArray
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

_NODE_BYTES = 4 + 2 + 2
_LOWEST_SCORE = -65504.0  # the most negative finite 16-bit float
_EXPONENT = np.uint16(0x7C00)  # all ones in a 16-bit float: infinite or not a number
_INDEX = np.arange(MAX_NODES, dtype=np.int32)
_TOKEN, _PARENT, _SCORE, _BITS = np.dtype("<i4"), np.dtype("<i2"), np.dtype("<f2"), np.dtype("<u2")


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


def token_bytes(tokens: IntArray) -> bytes:
    """(n,) int32 as 4 n bytes, little end first."""
    return np.asarray(tokens).astype(_TOKEN, casting="same_kind", copy=False).tobytes()


def read_tokens(body: memoryview, name: str, *, vocab_size: int, limit: int = MAX_TOKENS) -> IntArray:
    """A read-only (n,) int32 view of `body`, every id in [0, vocab_size)."""
    if body.nbytes % _TOKEN.itemsize or body.nbytes > limit * _TOKEN.itemsize:
        raise refuse(f"{name} frame", f"4 bytes for each of at most {limit} tokens", body.nbytes)
    tokens = np.frombuffer(body, _TOKEN)
    # Seen as unsigned, a negative id is larger than any vocabulary: one pass checks both ends.
    if len(tokens) and int(tokens.view(np.uint32).max()) >= vocab_size:
        raise ProtocolError(f"{name}: a token id lies outside [0, {vocab_size})")
    return tokens


def node_bytes(tokens: IntArray, parents: IntArray, scores: FloatArray) -> bytes:
    """Tokens, parents (16-bit) and scores (16-bit floats, clipped to the finite range), one after the other."""
    if not len(tokens) == len(parents) == len(scores):
        raise ProtocolError(f"unequal lengths: {len(tokens)} tokens, {len(parents)} parents, {len(scores)} scores")
    if len(tokens) > MAX_NODES:
        raise ProtocolError(f"{len(tokens)} nodes in one proposal; the limit is {MAX_NODES}")
    narrow = np.minimum(np.maximum(scores, _LOWEST_SCORE), 0.0).astype(_SCORE)
    return token_bytes(tokens) + np.asarray(parents).astype(_PARENT).tobytes() + narrow.tobytes()


def read_nodes(body: memoryview, *, vocab_size: int) -> tuple[IntArray, IntArray, FloatArray]:
    """Tokens (n,) int32, parents (n,) int32 and scores (n,) float32 of a proposal, checked as a whole."""
    count, rest = divmod(body.nbytes, _NODE_BYTES)
    if rest or count > MAX_NODES:
        raise refuse("nodes frame", f"{_NODE_BYTES} bytes for each of at most {MAX_NODES} nodes", body.nbytes)
    tokens = read_tokens(body[: 4 * count], "tokens", vocab_size=vocab_size)
    parents = np.frombuffer(body[4 * count : 6 * count], _PARENT).astype(np.int32)
    if count and ((parents >= _INDEX[:count]).any() or int(parents.min()) < -1):
        raise ProtocolError("parents: a node's parent must be -1 or come before it")
    wire = body[6 * count :]
    if ((np.frombuffer(wire, _BITS) & _EXPONENT) == _EXPONENT).any():
        raise ProtocolError("scores: a score is infinite or not a number")
    return tokens, parents, np.minimum(np.frombuffer(wire, _SCORE).astype(np.float32), np.float32(0.0))
