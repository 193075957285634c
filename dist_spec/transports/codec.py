"""Messages to frames and back, checked both ways; knows nothing of sockets, peers or what a message is for.

Frame 0 is one msgpack array: [type tag, protocol version, fields by position]. Kinds that carry arrays have a second,
raw frame (little end first): tokens as int32 and, for `Propose`, parents as int16 and scores as 16-bit floats. Never
pickle. What `decode` would refuse, `encode` refuses too (but for `Commit`), so a bad message shows up where it was made.

A `Hello` is read whatever its version (then by role and name only), so that the leader can refuse it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from itertools import islice
from typing import Any, TypeAlias

import msgpack
import numpy as np

from dist_spec.core.messages import (
    MAX_NODES,
    MAX_TOKENS,
    PROTOCOL_VERSION,
    Bye,
    Close,
    Commit,
    Hello,
    Message,
    Need,
    Open,
    Ping,
    Propose,
)
from dist_spec.core.types import Sampling
from dist_spec.errors import ProtocolError, RequestError
from dist_spec.transports import fields as f

__all__ = ["MAX_FRAME_BYTES", "Frame", "decode", "encode", "kind_of"]

Frame: TypeAlias = bytes | memoryview

MAX_HEADER_BYTES = 1 << 20
MAX_FRAME_BYTES = 4 * MAX_TOKENS
"""The largest frame a peer may send: the prompt of the longest request."""
_MAX_VOCABULARY_BYTES = 1 << 17
_MAX_STRING_BYTES = 4 * f.MAX_REASON
_ROLES = ("drafter", "frontend")

Fields: TypeAlias = tuple[Any, ...]
_Packed: TypeAlias = tuple[Fields, bytes | None]
_NO_BODY = memoryview(b"")


def _pack_hello(m: Hello) -> _Packed:
    return (m.role, m.name, m.vocabulary, m.vocab_size, m.kind, float(m.step_s)), None


def _hello(fields: Fields, protocol: int) -> Hello:
    role, name, vocabulary, vocab_size, kind, step_s = fields
    return Hello(
        role=_role(role),
        name=f.text(name, "name", limit=f.MAX_NAME, empty=False),
        protocol=protocol,
        vocabulary=f.octets(vocabulary, "vocabulary", limit=_MAX_VOCABULARY_BYTES),
        vocab_size=f.integer(vocab_size, "vocab_size", high=f.MAX_VOCABULARY),
        kind=f.text(kind, "kind", limit=f.MAX_NAME),
        step_s=f.seconds(step_s, "step_s"),
    )


def _role(value: object) -> str:
    if value not in _ROLES:
        raise f.refuse("role", f"one of {_ROLES}", value)
    return str(value)


def _foreign_hello(fields: Fields, protocol: int) -> Hello:
    """Of another version only the first two fields are certain."""
    if len(fields) < 2:
        raise ProtocolError(f"a Hello of protocol version {protocol} without role and name")
    return Hello(role=_role(fields[0]), name=f.text(fields[1], "name", limit=f.MAX_NAME), protocol=protocol)


def _pack_open(m: Open) -> _Packed:
    sampling = astuple(m.sampling)
    head = (m.request, m.generation, len(m.prompt), m.generated_offset, m.ask, sampling)
    return head, f.token_bytes(m.prompt) + f.token_bytes(m.generated)


def _open(fields: Fields, body: memoryview, vocab_size: int) -> Open:
    request, generation, prompt_length, offset, ask, sampling = fields
    tokens = f.read_tokens(body, "prompt", vocab_size=vocab_size)
    cut = f.integer(prompt_length, "prompt length", high=len(tokens))
    return Open(
        request=f.request_id(request),
        generation=f.integer(generation, "generation"),
        prompt=tokens[:cut],
        sampling=_sampling(f.items(sampling, "sampling")),
        generated=tokens[cut:],
        generated_offset=f.length(offset, "generated_offset"),
        ask=f.boolean(ask, "ask"),
    )


def _sampling(fields: tuple[object, ...]) -> Sampling:
    if len(fields) != 17:
        raise f.refuse("sampling", "17 fields", len(fields))
    temperature, seed, sample_index, max_tokens, stop_ids, stop, ignore_eos = fields[:7]
    top_k, top_p, min_p, repetition, presence, frequency, bias, bad_words, min_tokens, logprobs = fields[7:]
    try:
        return Sampling(
            temperature=f.seconds(temperature, "temperature"),
            seed=f.integer(seed, "seed", high=f.UINT64),
            sample_index=f.integer(sample_index, "sample_index"),
            max_tokens=f.length(max_tokens, "max_tokens"),
            stop_token_ids=tuple(
                f.integer(one, "stop token id", high=f.MAX_VOCABULARY) for one in f.items(stop_ids, "stop_token_ids")
            ),
            stop=tuple(f.text(one, "stop string", limit=f.MAX_STOP) for one in f.items(stop, "stop")),
            ignore_eos=f.boolean(ignore_eos, "ignore_eos"),
            top_k=f.integer(top_k, "top_k"),
            top_p=f.seconds(top_p, "top_p"),
            min_p=f.seconds(min_p, "min_p"),
            repetition_penalty=f.seconds(repetition, "repetition_penalty"),
            presence_penalty=f.number(presence, "presence_penalty"),
            frequency_penalty=f.number(frequency, "frequency_penalty"),
            logit_bias=tuple(_bias(one) for one in f.items(bias, "logit_bias")),
            bad_words=tuple(_ids(one, "bad_words") for one in f.items(bad_words, "bad_words")),
            min_tokens=f.length(min_tokens, "min_tokens"),
            logprobs=f.integer(logprobs, "logprobs", low=-1, high=64),
        )
    except RequestError as error:  # the record's own ranges
        raise ProtocolError(error.message) from error


def _ids(value: object, name: str) -> tuple[int, ...]:
    return tuple(f.integer(one, f"{name}: token id", high=f.MAX_VOCABULARY) for one in f.items(value, name))


def _bias(value: object) -> tuple[int, float]:
    pair = f.items(value, "logit_bias", limit=2)
    if len(pair) != 2:
        raise f.refuse("logit_bias", "pairs of token id and bias", value)
    return f.integer(pair[0], "logit_bias: token id", high=f.MAX_VOCABULARY), f.number(pair[1], "logit_bias")


def _pack_commit(m: Commit) -> _Packed:
    head = (m.request, m.generation, m.base_length, m.base_digest, m.num_accepted, m.ask)
    return (*head, tuple(map(float, m.margins))), f.token_bytes(m.tokens)


def _commit(fields: Fields, body: memoryview, vocab_size: int) -> Commit:
    request, generation, base_length, base_digest, num_accepted, ask, margins = fields
    tokens = f.read_tokens(body, "commit", vocab_size=vocab_size)
    if len(f.items(margins, "margins")) not in (0, len(tokens)):
        raise f.refuse("margins", f"one per token ({len(tokens)}), or none", len(margins))
    return Commit(
        request=f.request_id(request),
        generation=f.integer(generation, "generation"),
        base_length=f.length(base_length, "base_length"),
        base_digest=f.integer(base_digest, "base_digest", high=f.UINT64),
        tokens=tokens,
        num_accepted=f.integer(num_accepted, "num_accepted", high=MAX_NODES),
        ask=f.boolean(ask, "ask"),
        margins=np.array([f.number(one, "margin") for one in margins], np.float32),
    )


def _pack_propose(m: Propose) -> _Packed:
    head = (m.request, m.generation, m.base_length, m.base_digest, m.serial)
    return head, f.node_bytes(m.tokens, m.parents, m.scores)


def _propose(fields: Fields, body: memoryview, vocab_size: int) -> Propose:
    request, generation, base_length, base_digest, serial = fields
    tokens, parents, scores = f.read_nodes(body, vocab_size=vocab_size)
    return Propose(
        request=f.request_id(request),
        generation=f.integer(generation, "generation"),
        base_length=f.length(base_length, "base_length"),
        base_digest=f.integer(base_digest, "base_digest", high=f.UINT64),
        tokens=tokens,
        parents=parents,
        scores=scores,
        serial=f.integer(serial, "serial"),
    )


def _pack_need(m: Need) -> _Packed:
    return (m.request, m.generation, m.have_length), None


def _need(fields: Fields, body: memoryview, vocab_size: int) -> Need:
    request, generation, have_length = fields
    return Need(
        request=f.request_id(request),
        generation=f.integer(generation, "generation"),
        have_length=f.length(have_length, "have_length"),
    )


def _pack_close(m: Close) -> _Packed:
    # A report is shortened rather than refused: the end of a request must get through.
    stats = {key[: f.MAX_KEY]: float(value) for key, value in islice(m.stats.items(), f.MAX_ITEMS)}
    return (m.request, m.generation, m.reason[: f.MAX_REASON], stats, m.length), None


def _close(fields: Fields, body: memoryview, vocab_size: int) -> Close:
    request, generation, reason, stats, length = fields
    if type(stats) is not dict:
        raise f.refuse("stats", "a map", stats)
    return Close(
        request=f.request_id(request),
        generation=f.integer(generation, "generation"),
        reason=f.text(reason, "reason", limit=f.MAX_REASON),
        stats={f.text(key, "stats key", limit=f.MAX_KEY): f.number(one, "stats") for key, one in stats.items()},
        length=f.length(length, "length"),
    )


def _pack_ping(m: Ping) -> _Packed:
    return (m.progress, float(m.busy_s), m.num_drafters), None


def _ping(fields: Fields, body: memoryview, vocab_size: int) -> Ping:
    progress, busy_s, num_drafters = fields
    return Ping(
        progress=f.integer(progress, "progress"),
        busy_s=f.seconds(busy_s, "busy_s"),
        num_drafters=f.integer(num_drafters, "num_drafters"),
    )


def _pack_bye(m: Bye) -> _Packed:
    return (m.reason[: f.MAX_REASON], m.fatal, m.first_id, tuple(one[: f.MAX_TOKEN_TEXT] for one in m.tokens)), None


def _bye(fields: Fields, body: memoryview, vocab_size: int) -> Bye:
    reason, fatal, first_id, tokens = fields
    return Bye(
        reason=f.text(reason, "reason", limit=f.MAX_REASON),
        fatal=f.boolean(fatal, "fatal"),
        first_id=f.integer(first_id, "first_id", high=f.MAX_VOCABULARY),
        tokens=tuple(f.text(one, "token", limit=f.MAX_TOKEN_TEXT) for one in f.items(tokens, "tokens")),
    )


_HELLO_TAG = 1
_PACK: dict[type[Message], tuple[int, Callable[[Any], _Packed]]] = {
    Hello: (_HELLO_TAG, _pack_hello),
    Open: (2, _pack_open),
    Commit: (3, _pack_commit),
    Propose: (4, _pack_propose),
    Need: (5, _pack_need),
    Close: (6, _pack_close),
    Ping: (7, _pack_ping),
    Bye: (8, _pack_bye),
}
_UNPACK: dict[int, tuple[str, int, int, Callable[[Fields, memoryview, int], Message]]] = {
    # tag: (kind, number of fields, number of frames, reader)
    2: ("open", 6, 2, _open),
    3: ("commit", 7, 2, _commit),
    4: ("propose", 5, 2, _propose),
    5: ("need", 3, 1, _need),
    6: ("close", 5, 1, _close),
    7: ("ping", 3, 1, _ping),
    8: ("bye", 4, 1, _bye),
}


def kind_of(message: Message) -> str:
    """The name under which the ledger counts a message: "propose", "commit", ..."""
    return type(message).__name__.lower()


def encode(message: Message) -> list[Frame]:
    """Frames of one message; the header first.

    Raises:
        ProtocolError: a field is out of range, too long, of another type, or the arrays do not fit together.
    """
    try:
        tag, pack = _PACK[type(message)]
        fields, body = pack(message)
        version = message.protocol if isinstance(message, Hello) else PROTOCOL_VERSION
        header: bytes = msgpack.packb((tag, version, *fields), use_bin_type=True)
        if len(header) > MAX_HEADER_BYTES:
            raise ProtocolError(f"the header has {len(header)} bytes; the limit is {MAX_HEADER_BYTES}")
        if not isinstance(message, Commit):  # made of what was checked on arrival, and sent between two verifications
            _read(tag, version, fields, _NO_BODY if body is None else memoryview(body), f.MAX_VOCABULARY)
    except ProtocolError:
        raise
    except (ValueError, TypeError, OverflowError, KeyError) as error:
        raise ProtocolError(f"a {kind_of(message)} message cannot be encoded: {error}") from error
    return [header] if body is None else [header, body]


def decode(frames: Sequence[Frame], *, vocab_size: int = f.MAX_VOCABULARY) -> Message:
    """The message in `frames`; arrays are read-only where they are views of a frame.

    Args:
        frames: header and, for kinds with arrays, the raw frame.
        vocab_size: token ids must be smaller than this.

    Raises:
        ProtocolError: for anything that is no message of this protocol version. No other exception, whatever the bytes.
    """
    if not 1 <= len(frames) <= 2:
        raise ProtocolError(f"a message has one or two frames, not {len(frames)}")
    tag, version, *fields = _header(memoryview(frames[0]))
    if type(tag) is not int or type(version) is not int:
        raise ProtocolError("the header must begin with a type tag and the protocol version")
    if tag != _HELLO_TAG:
        expected = _UNPACK[tag][2] if tag in _UNPACK else 1
        if len(frames) != expected and version == PROTOCOL_VERSION:
            raise ProtocolError(f"{len(frames)} frames where {expected} belong")
    return _read(tag, version, tuple(fields), memoryview(frames[1]) if len(frames) == 2 else _NO_BODY, vocab_size)


def _header(frame: memoryview) -> tuple[Any, ...]:
    if frame.nbytes > MAX_HEADER_BYTES:
        raise ProtocolError(f"the header has {frame.nbytes} bytes; the limit is {MAX_HEADER_BYTES}")
    try:
        header = msgpack.unpackb(
            frame,
            use_list=False,
            raw=False,
            strict_map_key=True,
            max_str_len=_MAX_STRING_BYTES,
            max_bin_len=_MAX_VOCABULARY_BYTES,
            max_array_len=f.MAX_ITEMS,
            max_map_len=f.MAX_ITEMS,
            max_ext_len=0,
        )
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolError(f"the header is no msgpack: {error}") from error
    if type(header) is not tuple or len(header) < 2:
        raise ProtocolError("the header must be a list that begins with a type tag and the protocol version")
    return header


def _read(tag: int, version: int, fields: Fields, body: memoryview, vocab_size: int) -> Message:
    if tag == _HELLO_TAG:
        if version != PROTOCOL_VERSION:
            return _foreign_hello(fields, f.integer(version, "protocol"))
        if len(fields) != 6:
            raise f.refuse("a hello", "6 fields", len(fields))
        return _hello(fields, version)
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"the peer speaks protocol version {version}, this is version {PROTOCOL_VERSION}",
            fix="run the same release of dist_spec on both ends",
        )
    entry = _UNPACK.get(tag)
    if entry is None:
        raise ProtocolError(f"there is no message type {tag}")
    kind, count, _, read = entry
    if len(fields) != count:
        raise f.refuse(f"a {kind}", f"{count} fields", len(fields))
    return read(fields, body, vocab_size)
