"""The codec: everything sent comes back the same, whatever else arrives is a ProtocolError, and messages stay small."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from dist_spec.core.messages import (
    MESSAGE_TYPES,
    NO_FLOOR,
    PROTOCOL_VERSION,
    Commit,
    Hello,
    Message,
    Ping,
    Propose,
)
from dist_spec.core.score_grid import rounded
from dist_spec.errors import ProtocolError
from dist_spec.transports.codec import decode, encode, sent_us
from tests.unit.message_cases import MESSAGES, assert_same, propose


@pytest.mark.parametrize("kind", MESSAGE_TYPES)
def test_every_message_type_is_generated(kind: type[Message]) -> None:
    find(MESSAGES, lambda message: type(message) is kind, settings=settings(phases=[Phase.generate], max_examples=500))


@settings(max_examples=150)
@given(MESSAGES, st.integers(0, 2**32 - 1))
def test_round_trip(message: Message, time_us: int) -> None:
    frames = encode(message, sent_us=time_us)
    assert_same(decode(frames), message)
    assert sent_us(frames) == (None if isinstance(message, Hello) else time_us)


@given(MESSAGES, st.integers(0, 2**32 - 1))
def test_a_handle_stands_for_the_name(message: Message, handle: int) -> None:
    frames = encode(message, handle=handle)
    name = (getattr(message, "request", ""), getattr(message, "generation", 0))
    assert_same(decode(frames, resolve=lambda found: name if found == handle else ("wrong", 0)), message)


def test_a_handle_without_a_name_is_a_name_of_its_own() -> None:
    got = decode(encode(propose(), handle=0xAB))
    assert isinstance(got, Propose)
    assert (got.request, got.generation) == ("#000000ab", 0)


@given(MESSAGES)
def test_memoryviews_decode_like_bytes(message: Message) -> None:
    assert_same(decode([memoryview(bytes(frame)) for frame in encode(message)]), message)


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_arbitrary_bytes_never_raise_anything_else(frames: list[bytes]) -> None:
    with suppress(ProtocolError):
        decode(frames)


@settings(max_examples=200)
@given(MESSAGES, st.data())
def test_damaged_messages_decode_or_raise_protocol_error(message: Message, data: st.DataObject) -> None:
    """What decodes all the same is a message that can be sent on."""
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


@settings(max_examples=100)
@given(st.integers(0, 11), st.lists(JSONISH, max_size=9), st.booleans())
def test_well_formed_msgpack_of_wrong_content(tag: int, content: list[Any], greeting: bool) -> None:
    head = b"" if greeting else bytes([tag, PROTOCOL_VERSION, 0, 0, 0, 0])
    with suppress(ProtocolError):
        decode([head + msgpack.packb([tag, PROTOCOL_VERSION, *content] if greeting else content)])


def test_scores_are_rounded_and_clipped_both_ways() -> None:
    got = decode(encode(propose(scores=np.array([3.0, -np.inf, -0.7], np.float32))))
    assert isinstance(got, Propose)
    np.testing.assert_array_equal(got.scores, np.array([0.0, -65504.0, rounded([-0.7])[0]], np.float32))


def test_decoded_arrays_do_not_alias_the_frame() -> None:
    for top in (500, 70_000, 2**31 - 2):
        frame = bytearray(encode(propose(tokens=np.array([1, 2, top], np.int32)))[0])
        message = decode([frame])
        assert isinstance(message, Propose)
        kept = bytes(frame)
        with suppress(ValueError):  # read-only
            message.tokens[0] = 5
        assert frame == kept or top == 2**31 - 2


def hot(count: int, parents: list[int], **changes: Any) -> Propose:
    tokens = np.full(count, 49_151, np.int32)
    scores = rounded(np.linspace(-3, -0.01, count))
    return propose(tokens=tokens, parents=np.array(parents, np.int32), scores=scores, serial=300, **changes)


def commit(count: int, **changes: Any) -> Commit:
    tokens = np.full(count, 49_151, np.int32)
    return Commit(request="r1", generation=0, base_length=700, base_digest=2**64 - 1, tokens=tokens, **changes)


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (commit(2), 28),
        (commit(4, num_accepted=1, floor=-3.0), 33),
        (commit(2, margins=np.full(2, 0.5, np.float32)), 32),
        (hot(8, list(range(-1, 7))), 49),
        (hot(16, list(range(-1, 15))), 73),
        (hot(24, [-1] * 4 + [i // 4 for i in range(20)]), 121),
        (hot(128, [-1] * 4 + [i // 4 for i in range(124)]), 538),
        (Ping(progress=100_000, busy_s=12.5, num_drafters=2, sent_s=1e4, echo_s=1e4), 42),
    ],
)
def test_size_budgets(message: Message, size: int) -> None:
    """The table in docs/protocol.md, to the byte; a handle takes as much as the name "r1"."""
    assert sum(map(len, encode(message))) == size
    if isinstance(message, Propose | Commit):
        assert sum(map(len, encode(message, handle=7))) == sum(map(len, encode(message)))
        assert message.request == "r1"


def test_larger_vocabularies_take_a_byte_more_per_token() -> None:
    plain, wide = hot(8, list(range(-1, 7))), np.full(8, 128_000, np.int32)
    assert len(encode(propose(tokens=wide, parents=plain.parents, scores=plain.scores))[0]) <= 49 + 8


def test_no_floor_costs_nothing() -> None:
    assert len(encode(commit(2, floor=NO_FLOOR))[0]) == len(encode(commit(2))[0])
