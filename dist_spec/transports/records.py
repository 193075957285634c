"""Messages made of single fields (all but `Commit` and `Propose`) to msgpack and back, checked; knows nothing of frames.

Fields go by position. Token ids of an `Open` are binary fields. What reading would refuse, packing refuses too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import astuple
from itertools import islice
from math import copysign
from typing import Any, get_args

import msgpack

from dist_spec.core.messages import (
    MAX_TOKENS,
    PROTOCOL_VERSION,
    Bye,
    Close,
    Forget,
    Hello,
    Link,
    LinkCargo,
    LinkState,
    Message,
    Need,
    Open,
    Ping,
)
from dist_spec.core.types import IntArray, Sampling
from dist_spec.errors import ProtocolError, RequestError
from dist_spec.transports import fields as f
from dist_spec.transports.greeting import Fields, foreign_hello, hello_fields, hello_of
from dist_spec.transports.octets import WIDTHS, Reader, token_bytes

_MAX_STRING_BYTES = 4 * f.MAX_REASON
_QUICK = 1
"""Compression level: a request's end lies between two verifications of others."""
_EXACT = 2.0**53
_LINK_STATES: tuple[LinkState, ...] = get_args(LinkState)
_LINK_CARGOES: tuple[LinkCargo, ...] = get_args(LinkCargo)


def _pack_open(m: Open) -> Fields:
    if len(m.prompt) + len(m.generated) > MAX_TOKENS:
        raise ProtocolError(f"{len(m.prompt) + len(m.generated)} tokens in one message; the limit is {MAX_TOKENS}")
    head = (m.request, m.generation, *token_bytes(m.prompt), *token_bytes(m.generated))
    return (*head, m.generated_offset, m.ask, astuple(m.sampling))


def _open(fields: Fields, vocab_size: int) -> Open:
    """Ids beyond the vocabulary pass: a request that cannot be served is answered (admission), not dropped as garbage."""
    request, generation, prompt_code, prompt, generated_code, generated, offset, ask, sampling = fields
    if f.request_id(request).startswith("#"):  # such a name is a handle's: the end of one would end the other
        raise f.refuse("request", "a name that does not begin with '#'", request)
    opening = Open(
        request=f.request_id(request),
        generation=f.integer(generation, "generation"),
        prompt=_tokens(prompt, prompt_code, "prompt", f.MAX_VOCABULARY),
        sampling=_sampling(f.items(sampling, "sampling")),
        generated=_tokens(generated, generated_code, "generated", f.MAX_VOCABULARY),
        generated_offset=f.length(offset, "generated_offset"),
        ask=f.boolean(ask, "ask"),
    )
    if len(opening.prompt) + len(opening.generated) > MAX_TOKENS:
        raise f.refuse("prompt and generated tokens", f"at most {MAX_TOKENS}", len(opening.prompt))
    return opening


def _tokens(value: object, code: object, name: str, vocab_size: int) -> IntArray:
    raw = f.octets(value, name, limit=f.MAX_FRAME_BYTES)
    width = f.integer(code, f"{name}: width code", high=len(WIDTHS) - 1)
    reader = Reader(memoryview(raw), 0)
    tokens = reader.tokens(len(raw) // WIDTHS[width], width, name, vocab_size=vocab_size)
    reader.end(name)
    return tokens


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


def _pack_need(m: Need) -> Fields:
    return (m.request, m.generation, m.have_length)


def _need(fields: Fields, vocab_size: int) -> Need:
    request, generation, have_length = fields
    return Need(
        request=f.request_id(request),
        generation=f.integer(generation, "generation"),
        have_length=f.length(have_length, "have_length"),
    )


def _pack_close(m: Close) -> Fields:
    # A report is shortened rather than refused: the end of a request must get through.
    return (m.request, m.generation, m.reason[: f.MAX_REASON], _pack_stats(m.stats), m.length)


def _pack_stats(stats: dict[str, float]) -> bytes:
    """A compressed map, whole numbers as such: keys are long and alike, and most figures are counts."""
    if not stats:
        return b""
    figures = {key[: f.MAX_KEY]: _short(float(value)) for key, value in islice(stats.items(), f.MAX_ITEMS)}
    return zlib.compress(msgpack.packb(figures), _QUICK)


def _short(value: float) -> float:
    return int(value) if value.is_integer() and abs(value) < _EXACT and (value or copysign(1, value) > 0) else value


def _close(fields: Fields, vocab_size: int) -> Close:
    request, generation, reason, packed, length = fields
    stats = _stats(f.octets(packed, "stats", limit=f.MAX_HEADER_BYTES))
    return Close(
        request=f.request_id(request),
        generation=f.integer(generation, "generation"),
        reason=f.text(reason, "reason", limit=f.MAX_REASON),
        stats={f.text(key, "stats key", limit=f.MAX_KEY): f.number(one, "stats") for key, one in stats.items()},
        length=f.length(length, "length"),
    )


def _stats(packed: bytes) -> dict[Any, Any]:
    if not packed:
        return {}
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(packed, f.MAX_HEADER_BYTES)  # no more, whatever it claims to hold
    except zlib.error as error:
        raise ProtocolError(f"stats: {error}") from error
    stats = _unpacked(memoryview(raw)) if inflate.eof and not inflate.unused_data else None
    if type(stats) is not dict:
        raise f.refuse("stats", f"a compressed map of at most {f.MAX_HEADER_BYTES} bytes", stats)
    return stats


def _pack_ping(m: Ping) -> Fields:
    head = (m.progress, float(m.busy_s), m.num_drafters, float(m.sent_s), float(m.echo_s))
    return (*head, m.share_index, m.share_count)


def _ping(fields: Fields, vocab_size: int) -> Ping:
    progress, busy_s, num_drafters, sent_s, echo_s, share_index, share_count = fields
    count = f.integer(share_count, "share_count", low=1)
    return Ping(
        progress=f.integer(progress, "progress"),
        busy_s=f.seconds(busy_s, "busy_s"),
        num_drafters=f.integer(num_drafters, "num_drafters"),
        sent_s=f.seconds(sent_s, "sent_s"),
        echo_s=f.seconds(echo_s, "echo_s"),
        share_index=f.integer(share_index, "share_index", high=count - 1),
        share_count=count,
    )


def _pack_bye(m: Bye) -> Fields:
    return (m.reason[: f.MAX_REASON], m.fatal, m.first_id, tuple(one[: f.MAX_TOKEN_TEXT] for one in m.tokens))


def _bye(fields: Fields, vocab_size: int) -> Bye:
    reason, fatal, first_id, tokens = fields
    return Bye(
        reason=f.text(reason, "reason", limit=f.MAX_REASON),
        fatal=f.boolean(fatal, "fatal"),
        first_id=f.integer(first_id, "first_id", high=f.MAX_VOCABULARY),
        tokens=tuple(f.text(one, "token", limit=f.MAX_TOKEN_TEXT) for one in f.items(tokens, "tokens")),
    )


def _pack_forget(m: Forget) -> Fields:
    return ()


def _forget(fields: Fields, vocab_size: int) -> Forget:
    return Forget()


def _pack_link(m: Link) -> Fields:
    return (m.state, m.carries, m.address, m.reason[: f.MAX_REASON])


def _link(fields: Fields, vocab_size: int) -> Link:
    state, carries, address, reason = fields
    if state not in _LINK_STATES or carries not in _LINK_CARGOES:
        raise f.refuse("link", f"one of {_LINK_STATES} that carries one of {_LINK_CARGOES}", (state, carries))
    return Link(
        state=state,
        carries=carries,
        address=f.text(address, "address", limit=f.MAX_REASON),
        reason=f.text(reason, "reason", limit=f.MAX_REASON),
    )


HELLO_TAG = 1
_PACK: dict[type[Message], tuple[int, Callable[[Any], Fields]]] = {
    Hello: (HELLO_TAG, hello_fields),
    Open: (2, _pack_open),
    Need: (5, _pack_need),
    Close: (6, _pack_close),
    Ping: (7, _pack_ping),
    Bye: (8, _pack_bye),
    Forget: (9, _pack_forget),
    Link: (11, _pack_link),
}
_READ: dict[int, tuple[str, int, Callable[[Fields, int], Message]]] = {
    # tag: (kind, number of fields, reader)
    2: ("open", 9, _open),
    5: ("need", 3, _need),
    6: ("close", 5, _close),
    7: ("ping", 7, _ping),
    8: ("bye", 4, _bye),
    9: ("forget", 0, _forget),
    11: ("link", 4, _link),
}


def pack_record(message: Message) -> tuple[int, bytes]:
    """(tag, fields as a msgpack array); a `Hello`'s array begins with its tag and version.

    Raises:
        ProtocolError, ValueError, TypeError, OverflowError, KeyError: this cannot be a message.
    """
    tag, pack = _PACK[type(message)]
    fields = pack(message)
    if isinstance(message, Hello):
        _read_hello(fields, message.protocol)
        fields = (tag, message.protocol, *fields)
    else:
        _read_fields(tag, fields, f.MAX_VOCABULARY)
    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    return tag, packed


def read_record(tag: int, body: memoryview, *, vocab_size: int) -> Message:
    """The message of a tag from its fields."""
    return _read_fields(tag, _fields(body), vocab_size)


def read_hello(body: memoryview) -> Hello:
    """A greeting of any protocol version; of another only role and name are read.

    Raises:
        ProtocolError: it is none; names the version if it is another message of another version.
    """
    content = _fields(body)
    tag, version = content[:2] if len(content) > 1 else (None, None)
    if type(tag) is not int or type(version) is not int:
        raise ProtocolError("the header must begin with a type tag and the protocol version")
    if tag != HELLO_TAG and version != PROTOCOL_VERSION:
        raise wrong_version(version)
    if tag != HELLO_TAG:
        raise ProtocolError(f"message type {tag} in the form of a greeting")
    return _read_hello(content[2:], f.integer(version, "protocol"))


def wrong_version(version: int) -> ProtocolError:
    return ProtocolError(
        f"the peer speaks protocol version {version}, this is version {PROTOCOL_VERSION}",
        fix="run the same release of dist_spec on both ends",
    )


def _read_hello(fields: Fields, version: int) -> Hello:
    if version != PROTOCOL_VERSION:
        return foreign_hello(fields, version)
    return hello_of(fields, version)


def _read_fields(tag: int, fields: Fields, vocab_size: int) -> Message:
    entry = _READ.get(tag)
    if entry is None:
        raise ProtocolError(f"there is no message type {tag}")
    kind, count, read = entry
    if len(fields) != count:
        raise f.refuse(f"a {kind}", f"{count} fields", len(fields))
    return read(fields, vocab_size)


def _fields(body: memoryview) -> Fields:
    fields = _unpacked(body)
    if type(fields) is not tuple:
        raise ProtocolError("the message must be a list of fields")
    return fields


def _unpacked(body: memoryview) -> object:
    try:
        return msgpack.unpackb(
            body,
            use_list=False,
            raw=False,
            strict_map_key=True,
            max_str_len=_MAX_STRING_BYTES,
            max_bin_len=f.MAX_FRAME_BYTES,
            max_array_len=f.MAX_ITEMS,
            max_map_len=f.MAX_ITEMS,
            max_ext_len=0,
        )
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolError(f"the message is no msgpack: {error}") from error
