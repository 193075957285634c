"""The two messages that flow while text is being made, `Commit` and `Propose`, as compact binary frames and back; knows
nothing of sockets. docs/protocol.md has the tables.

Both begin with tag, version, time of sending, flags and the base's digest. A request is called by a 4-byte handle where
the receiver is known to know its name (`names`), else by name and generation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeAlias, get_args

import numpy as np

from dist_spec.core.messages import (
    MAX_NODES,
    MAX_REQUEST_ID,
    MAX_TOKENS,
    NO_FLOOR,
    PROTOCOL_VERSION,
    Commit,
    Features,
    LastKind,
    Propose,
    no_rows,
)
from dist_spec.core.score_grid import from_byte, from_bytes, to_byte, to_bytes
from dist_spec.core.types import FloatArray, IntArray
from dist_spec.errors import ProtocolError
from dist_spec.transports import fields as f
from dist_spec.transports.halves import put_rows, read_rows
from dist_spec.transports.laws import law_bytes, read_laws
from dist_spec.transports.octets import Reader, put_number, put_text, token_bytes

COMMIT_TAG = 3
PROPOSE_TAG = 4
MAX_TOP = 64

RequestName: TypeAlias = tuple[str, int]
"""(request, generation)"""
Resolve: TypeAlias = Callable[[int], RequestName]

_HEAD = struct.Struct("<BBIHQ")
_HEAD_AND_HANDLE = struct.Struct("<BBIHQI")
_FLAGS_AND_BASE = struct.Struct("<HQ")
_FLAGS_AT = 6

_NAMED = 1 << 0
_WIDTH = 1  # bits 1-2: code of the token ids' width
# Commit
_ASK = 1 << 3
_KIND = 4  # bits 4-5: what the last token is
_FLOOR = 1 << 6
_MARGINS = 1 << 7
_ONE_MARGIN = 1 << 8
_LOGPROBS = 1 << 9
_TOP = 1 << 10
_FEATURES = 1 << 11
_APART = 1 << 12
# Propose
_CHAIN = 1 << 3
_WIDE_PARENTS = 1 << 4
_CERTAIN = 1 << 5
_LAWS = 1 << 6
_LAW_WIDTH = 7  # bits 7-8

_KINDS: tuple[LastKind, ...] = get_args(LastKind)
_FLOAT, _WIDE = np.dtype("<f4"), np.dtype("<u2")
_INDEX = np.arange(MAX_NODES, dtype=np.int32)
_CHAIN_PARENTS = _INDEX - np.int32(1)
_NARROW_NODES = 256
_NO_FLOATS = np.empty(0, np.float32)
_NO_TOP: tuple[IntArray, FloatArray] = (np.empty((0, 0), np.int32), np.empty((0, 0), np.float32))


def begin(message: Commit | Propose | Features, tag: int, flags: int, sent_us: int, handle: int | None) -> bytearray:
    """What messages below a prefix have in common: tag, version, time of sending, flags, digest, request, base length."""
    if handle is not None:
        out = bytearray(_HEAD_AND_HANDLE.pack(tag, PROTOCOL_VERSION, sent_us, flags, message.base_digest, handle))
    else:
        out = bytearray(_HEAD.pack(tag, PROTOCOL_VERSION, sent_us, flags | _NAMED, message.base_digest))
        put_text(out, f.request_id(message.request))
        put_number(out, message.generation)
    put_number(out, message.base_length)
    return out


def read_begin(frame: memoryview, resolve: Resolve) -> tuple[Reader, int, RequestName, int, int]:
    """(reader behind what both have in common, flags, request, base length, base digest)"""
    reader = Reader(frame, _HEAD.size)
    if len(frame) < _HEAD.size:
        raise ProtocolError("the message ends in its header")
    flags, digest = _FLAGS_AND_BASE.unpack_from(frame, _FLAGS_AT)
    if flags & _NAMED:
        name = reader.text("request", limit=MAX_REQUEST_ID, empty=False), reader.number("generation")
    else:
        name = resolve(int.from_bytes(reader.take(4, "handle"), "little"))
    return reader, flags, name, reader.number("base_length", high=MAX_TOKENS), digest


def pack_commit(m: Commit, *, sent_us: int, handle: int | None) -> list[bytes | memoryview]:
    """One frame, and one for features. Of the fields, only those are checked that decoding relies on: they were made of
    what was checked on arrival, and this lies between two verifications.

    Raises:
        ProtocolError, ValueError, TypeError, struct.error: this cannot be a message.
    """
    count = len(m.tokens)
    code, tokens = token_bytes(m.tokens)
    flags = code << _WIDTH | (_ASK if m.ask else 0) | _KINDS.index(m.last_kind) << _KIND
    tail = bytearray()
    if m.floor != NO_FLOOR:
        flags |= _FLOOR
        tail.append(to_byte(m.floor))
    for marked, values in ((_MARGINS, m.margins), (_LOGPROBS, m.logprobs)):
        if len(values):
            flags |= marked
            values = np.asarray(values, _FLOAT)
            if values.shape != (count,):
                raise f.refuse("margins or logprobs", f"one per token ({count}), or none", len(values))
            if marked == _MARGINS and (values == values[0]).all():
                flags |= _ONE_MARGIN
                values = values[:1]
            tail += values.tobytes()
    if m.top_ids.size:
        flags |= _TOP
        tail += _top_bytes(m, count)
    rows: list[bytes | memoryview] = []
    flags |= _APART if m.apart else 0
    if len(m.features):
        flags |= _FEATURES
        rows = [put_rows(tail, m.features, limit=m.base_length + count - 1)]
    out = begin(m, COMMIT_TAG, flags, sent_us, handle)
    put_number(out, m.num_accepted)
    put_number(out, count)
    return [bytes(out + tokens + tail), *rows]


def _top_bytes(m: Commit, count: int) -> bytes:
    num_top = m.top_ids.shape[1]
    if m.top_ids.shape != (count, num_top) or m.top_logprobs.shape != m.top_ids.shape or num_top > MAX_TOP:
        raise f.refuse("top_ids and top_logprobs", f"of shape ({count}, k <= {MAX_TOP})", m.top_ids.shape)
    code, ids = token_bytes(m.top_ids.reshape(-1))
    return bytes((num_top, code)) + ids + np.ascontiguousarray(m.top_logprobs, _FLOAT).tobytes()


def read_commit(frames: Sequence[memoryview], *, vocab_size: int, resolve: Resolve) -> Commit:
    reader, flags, (request, generation), base_length, base_digest = read_begin(frames[0], resolve)
    if len(frames) != 1 + bool(flags & _FEATURES):
        raise ProtocolError(f"{len(frames)} frames where {1 + bool(flags & _FEATURES)} belong")
    num_accepted = reader.number("num_accepted", high=MAX_NODES)
    count = reader.number("number of tokens", high=MAX_TOKENS)
    tokens = reader.tokens(count, flags >> _WIDTH & 3, "commit", vocab_size=vocab_size)
    kind = flags >> _KIND & 3
    if kind >= len(_KINDS):
        raise f.refuse("last_kind", f"below {len(_KINDS)}", kind)
    floor = from_byte(reader.byte("floor")) if flags & _FLOOR else NO_FLOOR
    margins = logprobs = _NO_FLOATS
    if flags & _MARGINS:
        margins = reader.array(_FLOAT, 1 if flags & _ONE_MARGIN else count, "margins").astype(np.float32)
        margins = np.repeat(margins, count) if flags & _ONE_MARGIN else margins
    if flags & _LOGPROBS:
        logprobs = reader.array(_FLOAT, count, "logprobs").astype(np.float32)
    top_ids, top_logprobs = _read_top(reader, count, vocab_size) if flags & _TOP else _NO_TOP
    features = no_rows()
    if flags & _FEATURES:
        features = read_rows(reader, frames[1], limit=max(base_length + count - 1, 0))
    reader.end("commit")
    return Commit(
        request=request,
        generation=generation,
        base_length=base_length,
        base_digest=base_digest,
        tokens=tokens,
        num_accepted=num_accepted,
        ask=bool(flags & _ASK),
        margins=margins,
        last_kind=_KINDS[kind],
        logprobs=logprobs,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        floor=floor,
        features=features,
        apart=bool(flags & _APART),
    )


def _read_top(reader: Reader, count: int, vocab_size: int) -> tuple[IntArray, FloatArray]:
    num_top, code = reader.byte("top_ids"), reader.byte("top_ids")
    if not 1 <= num_top <= MAX_TOP or not count:
        raise f.refuse("top_ids", f"1 to {MAX_TOP} per token", num_top)
    ids = reader.tokens(count * num_top, code, "top_ids", vocab_size=vocab_size)
    logprobs = reader.array(_FLOAT, count * num_top, "top_logprobs").astype(np.float32)
    return ids.reshape(count, num_top), logprobs.reshape(count, num_top)


def pack_propose(m: Propose, *, sent_us: int, handle: int | None) -> list[bytes]:
    """One frame, and one per dense law.

    Raises:
        ProtocolError, ValueError, TypeError, struct.error: what `read_propose` would refuse.
    """
    count = len(m.tokens)
    if not count == len(m.parents) == len(m.scores) or len(m.laws) not in (0, count):
        lengths = f"{len(m.parents)} parents, {len(m.scores)} scores, {len(m.laws)} laws"
        raise ProtocolError(f"unequal lengths: {count} tokens, {lengths}")
    if count > MAX_NODES:
        raise ProtocolError(f"{count} nodes in one proposal; the limit is {MAX_NODES}")
    if m.base_length > MAX_TOKENS:
        raise f.refuse("base_length", f"at most {MAX_TOKENS}", m.base_length)
    code, tokens = token_bytes(m.tokens)
    mark, parents = _parent_bytes(m.parents)
    flags = code << _WIDTH | mark
    if np.isnan(m.scores).any():
        raise ProtocolError("scores: a score is not a number")
    marks = to_bytes(m.scores)
    scores = marks.tobytes() if marks.any() else b""
    flags |= 0 if scores or not count else _CERTAIN
    rows: list[bytes] = []
    laws = b""
    if m.laws:
        law_code, laws, rows = law_bytes(m.laws)
        flags |= _LAWS | law_code << _LAW_WIDTH
    out = begin(m, PROPOSE_TAG, flags, sent_us, handle)
    put_number(out, m.serial)
    put_number(out, count)
    return [bytes(out + tokens + parents + scores + laws), *rows]


def _parent_bytes(parents: IntArray) -> tuple[int, bytes]:
    """(flag, bytes): nothing for a chain, else the parent's index plus one in 1 or 2 bytes."""
    count = len(parents)
    if (parents == _CHAIN_PARENTS[:count]).all():
        return _CHAIN, b""
    if (parents > _CHAIN_PARENTS[:count]).any() or int(parents.min()) < -1:
        raise ProtocolError("parents: a node's parent must be -1 or come before it")
    if count <= _NARROW_NODES:
        return 0, (parents + 1).astype(np.uint8).tobytes()
    return _WIDE_PARENTS, (parents + 1).astype(_WIDE).tobytes()


def read_propose(frames: Sequence[memoryview], *, vocab_size: int, resolve: Resolve) -> Propose:
    reader, flags, (request, generation), base_length, base_digest = read_begin(frames[0], resolve)
    serial = reader.number("serial")
    count = reader.number("number of nodes", high=MAX_NODES)
    tokens = reader.tokens(count, flags >> _WIDTH & 3, "tokens", vocab_size=vocab_size)
    parents = _read_parents(reader, flags, count)
    scores = (
        np.zeros(count, np.float32)
        if flags & _CERTAIN
        else from_bytes(np.frombuffer(reader.take(count, "scores"), np.uint8))
    )
    laws: tuple = ()
    if flags & _LAWS:
        code = flags >> _LAW_WIDTH & 3
        laws = read_laws(reader, frames[1:], num_nodes=count, code=code, vocab_size=vocab_size)
    elif len(frames) != 1:
        raise ProtocolError(f"{len(frames)} frames where 1 belongs")
    reader.end("propose")
    return Propose(
        request=request,
        generation=generation,
        base_length=base_length,
        base_digest=base_digest,
        tokens=tokens,
        parents=parents,
        scores=scores,
        serial=serial,
        laws=laws,
    )


def _read_parents(reader: Reader, flags: int, count: int) -> IntArray:
    if flags & _CHAIN:
        return _CHAIN_PARENTS[:count].copy()
    kind = _WIDE if flags & _WIDE_PARENTS else np.dtype(np.uint8)
    parents = reader.array(kind, count, "parents").astype(np.int32)
    if (parents > _INDEX[:count]).any():
        raise ProtocolError("parents: a node's parent must be -1 or come before it")
    return parents - np.int32(1)
