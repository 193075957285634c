"""The codec: everything sent comes back the same, anything else is a ProtocolError, and messages stay small."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from dist_spec.core.messages import (
    MAX_NODES,
    MAX_TOKENS,
    MESSAGE_TYPES,
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
from dist_spec.errors import ProtocolError
from dist_spec.transports.codec import decode, encode

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=64)
REQUESTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=128)
COUNTS = st.integers(0, 2**63 - 1)
LENGTHS = st.integers(0, MAX_TOKENS)
DIGESTS = st.integers(0, 2**64 - 1)
SECONDS = st.floats(0, 1e9, allow_nan=False)


@st.composite
def token_arrays(draw: st.DrawFn, max_size: int = 40) -> np.ndarray:
    return np.array(draw(st.lists(st.integers(0, 2**31 - 2), max_size=max_size)), np.int32)


@st.composite
def proposals(draw: st.DrawFn) -> Propose:
    tokens = draw(token_arrays())
    parents = [draw(st.integers(-1, i - 1)) for i in range(len(tokens))]
    scores = draw(st.lists(st.floats(-1e4, 0.0, width=16), min_size=len(tokens), max_size=len(tokens)))
    return Propose(
        request=draw(REQUESTS),
        generation=draw(COUNTS),
        base_length=draw(LENGTHS),
        base_digest=draw(DIGESTS),
        tokens=tokens,
        parents=np.array(parents, np.int32),
        scores=np.array(scores, np.float32),
        serial=draw(COUNTS),
    )


@st.composite
def commits(draw: st.DrawFn) -> Commit:
    tokens = draw(token_arrays())
    return Commit(
        request=draw(REQUESTS),
        generation=draw(COUNTS),
        base_length=draw(LENGTHS),
        base_digest=draw(DIGESTS),
        tokens=tokens,
        num_accepted=draw(st.integers(0, MAX_NODES)),
        ask=draw(st.booleans()),
    )


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0, 100),
    seed=DIGESTS,
    sample_index=st.integers(0, 2**32 - 1),
    max_tokens=st.integers(1, MAX_TOKENS),
    stop_token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple),
    stop=st.lists(NAMES, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
)
OPENS = st.builds(
    Open,
    request=REQUESTS,
    generation=COUNTS,
    prompt=token_arrays(),
    sampling=SAMPLINGS,
    generated=token_arrays(),
    generated_offset=LENGTHS,
    ask=st.booleans(),
)
HELLOS = st.builds(
    Hello,
    role=st.sampled_from(["drafter", "frontend"]),
    name=NAMES,
    protocol=st.just(PROTOCOL_VERSION),
    vocabulary=st.binary(max_size=64),
    vocab_size=st.integers(0, 2**31 - 1),
    kind=st.sampled_from(["", "model", "ngram"]),
    step_s=SECONDS,
)
CLOSES = st.builds(
    Close,
    request=REQUESTS,
    generation=COUNTS,
    reason=NAMES,
    stats=st.dictionaries(NAMES, st.floats(allow_nan=False)),
    length=LENGTHS,
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    HELLOS,
    OPENS,
    commits(),
    proposals(),
    st.builds(Need, request=REQUESTS, generation=COUNTS, have_length=LENGTHS),
    CLOSES,
    st.builds(Ping, progress=COUNTS, busy_s=st.floats(0, 1e9), num_drafters=COUNTS),
    st.builds(Bye, reason=NAMES, fatal=st.booleans(), first_id=st.integers(0, 10**6), tokens=st.tuples(NAMES, NAMES)),
)


def assert_same(left: Message, right: Message) -> None:
    assert type(left) is type(right)
    for field in fields(left):
        one, other = getattr(left, field.name), getattr(right, field.name)
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype, field.name
            np.testing.assert_array_equal(one, other, err_msg=field.name)
        elif isinstance(one, dict):  # figures that were not measured are NaN, which equals nothing
            assert one.keys() == other.keys()
            np.testing.assert_array_equal(list(one.values()), list(other.values()), err_msg=field.name)
        else:
            assert one == other, field.name


def propose(**changes: Any) -> Propose:
    message = Propose(
        request="r1",
        generation=1,
        base_length=700,
        base_digest=2**63 + 5,
        tokens=np.array([11, 22, 49151], np.int32),
        parents=np.array([-1, 0, -1], np.int32),
        scores=np.array([-0.25, -1.5, -3.0], np.float32),
        serial=77,
    )
    return replace(message, **changes)


@pytest.mark.parametrize("kind", MESSAGE_TYPES)
def test_every_message_type_is_generated(kind: type[Message]) -> None:
    find(MESSAGES, lambda message: type(message) is kind)


@given(MESSAGES)
def test_round_trip(message: Message) -> None:
    assert_same(decode(encode(message)), message)


@given(MESSAGES)
def test_memoryviews_decode_like_bytes(message: Message) -> None:
    assert_same(decode([memoryview(bytes(frame)) for frame in encode(message)]), message)


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_arbitrary_bytes_never_raise_anything_else(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        decode(frames)


@settings(max_examples=200)
@given(MESSAGES, st.data())
def test_damaged_messages_decode_or_raise_protocol_error(message: Message, data: st.DataObject) -> None:
    frames = [bytearray(frame) for frame in encode(message)]
    victim = frames[data.draw(st.integers(0, len(frames) - 1))]
    for _ in range(data.draw(st.integers(1, 4))):
        if victim:
            victim[data.draw(st.integers(0, len(victim) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(victim)))
    if data.draw(st.booleans()):
        del victim[cut:]
    try:
        again = decode([bytes(frame) for frame in frames])
    except ProtocolError:
        return
    assert_same(decode(encode(again)), again)


JSONISH = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=9)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200)
@given(st.integers(0, 9), st.lists(JSONISH, max_size=8), st.none() | st.binary(max_size=64))
def test_well_formed_msgpack_of_wrong_content(tag: int, content: list[Any], body: bytes | None) -> None:
    header = msgpack.packb([tag, PROTOCOL_VERSION, *content])
    with suppress(ProtocolError):
        decode([header] if body is None else [header, body])


@pytest.mark.parametrize(
    ("index", "wrong"),
    [
        (2, ""),
        (2, "r" * 129),
        (2, b"r1"),
        (2, 7),
        (3, -1),
        (3, True),
        (3, 1.0),
        (4, MAX_TOKENS + 1),
        (5, -5),
        (6, None),
    ],
)
def test_each_wrong_field_of_a_proposal_is_refused(index: int, wrong: object) -> None:
    header, body = encode(propose())
    content = list(msgpack.unpackb(header))
    decode([header, body])
    content[index] = wrong
    with pytest.raises(ProtocolError):
        decode([msgpack.packb(content), body])


@pytest.mark.parametrize(
    "changes",
    [
        {"parents": np.array([-1, 1, 0], np.int32)},  # its own parent
        {"parents": np.array([-1, 2, 0], np.int32)},  # a parent that comes later
        {"parents": np.array([-2, 0, 0], np.int32)},
        {"tokens": np.array([1, -1, 2], np.int32)},
        {"scores": np.array([0, np.nan, 0], np.float32)},
        {"scores": np.array([0, 0], np.float32)},
        {"parents": np.array([-1], np.int32)},
    ],
)
def test_encode_refuses_broken_trees(changes: dict[str, np.ndarray]) -> None:
    with pytest.raises(ProtocolError):
        encode(propose(**changes))


@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E00, 0xFFFF])
def test_scores_that_are_no_numbers_are_refused_on_arrival(bits: int) -> None:
    header, body = encode(propose())
    with pytest.raises(ProtocolError, match="score"):
        decode([header, bytes(body)[:-2] + bits.to_bytes(2, "little")])


def test_scores_are_clipped_both_ways() -> None:
    got = decode(encode(propose(scores=np.array([3.0, -np.inf, -1e9], np.float32))))
    assert isinstance(got, Propose)
    np.testing.assert_array_equal(got.scores, np.array([0.0, -65504.0, -65504.0], np.float32))
    header, body = encode(propose())
    positive = np.array([2.0], "<f2").tobytes()
    got = decode([header, bytes(body)[:-2] + positive])
    assert isinstance(got, Propose)
    assert got.scores[-1] == 0.0


def test_token_ids_beyond_the_vocabulary_are_refused() -> None:
    frames = encode(propose())
    decode(frames, vocab_size=49152)
    with pytest.raises(ProtocolError, match="49151"):
        decode(frames, vocab_size=49151)


@pytest.mark.parametrize("size", [1, 7, 23, 25])
def test_body_of_another_length_is_refused(size: int) -> None:
    header, body = encode(propose())
    assert len(body) == 24
    with pytest.raises(ProtocolError):
        decode([header, bytes(body).ljust(size, b"\0")[:size]])


def test_frame_count_must_fit_the_kind() -> None:
    for frames in (encode(propose())[:1], [*encode(propose()), b""], [*encode(Ping(progress=1)), b""], []):
        with pytest.raises(ProtocolError):
            decode(frames)


def test_limits_on_nodes_and_tokens() -> None:
    count = MAX_NODES
    tree = {"tokens": np.zeros(count, np.int32), "scores": np.zeros(count, np.float32)}
    chain = np.arange(-1, count - 1, dtype=np.int32)
    assert_same(decode(encode(propose(parents=chain, **tree))), propose(parents=chain, **tree))
    with pytest.raises(ProtocolError, match="limit"):
        encode(propose(**{name: np.append(array, array[-1:]) for name, array in (*tree.items(), ("parents", chain))}))
    longest = Open(request="r", generation=0, prompt=np.ones(MAX_TOKENS, np.int32), sampling=Sampling())
    assert_same(decode(encode(longest)), longest)
    with pytest.raises(ProtocolError):
        encode(replace(longest, generated=np.ones(1, np.int32)))


def test_header_bombs_cost_nothing() -> None:
    deep = b"\x91" * 100_000
    wide = b"\xdd\xff\xff\xff\xff"
    nested_wide = b"\x93\x02\x01" + b"\xdc\xff\xff" * 1000
    for bomb in (deep, wide, nested_wide, b"\xc7\x08\x01" + b"x" * 8, b"\xd6\xff\0\0\0\0", b"\0" * (1 << 19)):
        with pytest.raises(ProtocolError):
            decode([bomb])


def test_another_protocol_version() -> None:
    header = msgpack.packb([7, PROTOCOL_VERSION + 1, 5])
    with pytest.raises(ProtocolError, match=f"version {PROTOCOL_VERSION + 1}") as caught:
        decode([header])
    assert caught.value.fix


def test_hello_of_another_version_keeps_role_and_name() -> None:
    got = decode([msgpack.packb([1, 9, "drafter", "d0", "fields", "of", "the", "future"]), b"and frames"])
    assert got == Hello(role="drafter", name="d0", protocol=9)
    own = Hello(role="drafter", name="d0", protocol=9, vocab_size=5)
    assert decode(encode(own)) == Hello(role="drafter", name="d0", protocol=9)


def test_long_reasons_are_shortened_not_refused() -> None:
    closed = decode(encode(Close(request="r", generation=0, reason="error: " + "x" * 5000, stats={"steps": 3})))
    assert isinstance(closed, Close)
    assert len(closed.reason) == 1024
    assert closed.stats == {"steps": 3.0}
    crowded = decode(encode(Close(request="r", generation=0, reason="", stats={f"{i:0700}": i for i in range(1500)})))
    assert isinstance(crowded, Close)
    assert len(crowded.stats) == 1
    crowded = decode(encode(Close(request="r", generation=0, reason="", stats={str(i): i for i in range(1500)})))
    assert isinstance(crowded, Close)
    assert len(crowded.stats) == 1024
    bye = decode(encode(Bye(reason="ä" * 5000, fatal=True, tokens=("t" * 999,) * 64)))
    assert isinstance(bye, Bye)
    assert len(bye.tokens) == 64


def test_what_cannot_be_encoded_is_a_protocol_error() -> None:
    for message in (
        propose(request="\ud800"),
        propose(generation=np.int64(3)),
        propose(tokens=np.array([0.5, 1, 2])),
        propose(base_digest=2**64),
        "hello",
    ):
        with pytest.raises(ProtocolError):
            encode(message)  # type: ignore[arg-type]


def test_decoded_arrays_do_not_alias_a_writable_buffer() -> None:
    message = decode(encode(propose()))
    assert isinstance(message, Propose)
    with pytest.raises(ValueError, match="read-only"):
        message.tokens[0] = 5


def test_size_budgets() -> None:
    assert sum(map(len, encode(propose()))) <= 50
    commit = Commit(
        request="r1", generation=1, base_length=700, base_digest=2**64 - 1, tokens=np.arange(3, dtype=np.int32)
    )
    assert sum(map(len, encode(commit))) <= 36
    assert sum(map(len, encode(Ping(progress=100_000, busy_s=12.5, num_drafters=2)))) <= 18
