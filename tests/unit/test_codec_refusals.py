"""The codec's refusals: wrong fields, broken trees and laws, limits, other versions."""

from __future__ import annotations

import zlib
from dataclasses import replace
from math import inf
from typing import Any

import msgpack
import numpy as np
import pytest

from dist_spec.core.law import LAW_TOTAL, DraftLaw
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
from dist_spec.errors import ProtocolError
from dist_spec.transports.codec import decode, encode
from tests.unit.message_cases import assert_same, propose

ENVELOPE = 6


@pytest.mark.parametrize(
    ("index", "wrong"),
    [
        (0, ""),
        (0, "r" * 129),
        (0, b"r1"),
        (0, 7),
        (1, -1),
        (1, True),
        (1, 1.0),
        (2, MAX_TOKENS + 1),
        (2, None),
    ],
)
def test_each_wrong_field_of_a_need_is_refused(index: int, wrong: object) -> None:
    [frame] = encode(Need(request="r1", generation=1, have_length=3))
    content = list(msgpack.unpackb(frame[ENVELOPE:]))
    decode([frame])
    content[index] = wrong
    with pytest.raises(ProtocolError):
        decode([bytes(frame[:ENVELOPE]) + msgpack.packb(content)])


BAD_PROPOSALS: list[dict[str, Any]] = [
    {"request": ""},
    {"request": "r" * 129},
    {"generation": -1},
    {"generation": True},
    {"generation": 2**63},
    {"base_length": MAX_TOKENS + 1},
    {"base_length": -1},
    {"base_digest": -5},
    {"base_digest": 2**64},
    {"serial": -1},
    {"parents": np.array([-1, 1, 0], np.int32)},  # its own parent
    {"parents": np.array([-1, 2, 0], np.int32)},  # a parent that comes later
    {"parents": np.array([-2, 0, 0], np.int32)},
    {"parents": np.array([-1], np.int32)},
    {"tokens": np.array([1, -1, 2], np.int32)},
    {"tokens": np.array([1, 2**31 - 1, 2], np.int32)},
    {"scores": np.array([0, np.nan, 0], np.float32)},
    {"scores": np.array([0, 0], np.float32)},
]


@pytest.mark.parametrize("changes", BAD_PROPOSALS)
def test_encode_refuses_what_no_proposal_is(changes: dict[str, Any]) -> None:
    encode(propose())
    with pytest.raises(ProtocolError):
        encode(propose(**changes))


def body_of(message: Propose) -> bytes:
    return bytes(encode(message)[0])


@pytest.mark.parametrize(("parent", "value"), [(0, 1), (1, 2), (2, 3), (0, 255)])
def test_parents_that_come_later_are_refused_on_arrival(parent: int, value: int) -> None:
    frame = bytearray(body_of(propose(parents=np.array([-1, -1, -1], np.int32))))
    at = len(frame) - 3 - 3 + parent  # parents, then scores, one byte each
    frame[at] = value
    with pytest.raises(ProtocolError, match="parent"):
        decode([frame])


def test_token_ids_beyond_the_vocabulary_are_refused() -> None:
    frames = encode(propose())
    decode(frames, vocab_size=49152)
    with pytest.raises(ProtocolError, match="49151"):
        decode(frames, vocab_size=49151)


def test_a_request_with_ids_beyond_the_vocabulary_gets_through_to_be_answered() -> None:
    """Dropped as garbage, it would be sent again and again by a frontend that waits for an answer."""
    message = Open(request="r", generation=0, prompt=propose().tokens, sampling=Sampling())
    assert_same(decode(encode(message), vocab_size=5), message)


def test_no_request_is_called_like_a_handle() -> None:
    """Its end would be taken for that of the request whose handle this is (`names`)."""
    message = Open(request="0000abcd", generation=0, prompt=np.ones(1, np.int32), sampling=Sampling())
    [frame] = encode(message)
    decode([frame])
    with pytest.raises(ProtocolError, match="'#'"):
        encode(replace(message, request="#000abcd"))
    with pytest.raises(ProtocolError, match="'#'"):
        decode([bytes(frame).replace(b"0000abcd", b"#000abcd")])


def test_frames_of_another_length_are_refused() -> None:
    tops = {"top_ids": np.ones((1, 2), np.int32), "top_logprobs": np.zeros((1, 2), np.float32)}
    commit = Commit(
        request="r", generation=0, base_length=1, base_digest=1, tokens=np.ones(1, np.int32), floor=-1.0, **tops
    )
    for message in (propose(), propose(laws=(DraftLaw.sparse([1, 2], [1, 1]), None, None)), commit):
        frame = bytes(encode(message)[0])
        for cut in range(len(frame)):
            with pytest.raises(ProtocolError):
                decode([frame[:cut]])
        with pytest.raises(ProtocolError):
            decode([frame + b"\0"])


def test_frame_count_must_fit_the_kind() -> None:
    dense = propose(laws=(DraftLaw.dense([0.5, 0.5]), None, None))
    assert len(encode(dense)) == 2
    for frames in (encode(dense)[:1], [*encode(dense), b"\0\0\0\0"], [*encode(propose()), b""], [*encode(Ping()), b""]):
        with pytest.raises(ProtocolError):
            decode(frames)
    with pytest.raises(ProtocolError):
        decode([])


def counted(ids: list[int], weights: list[int], total: float = LAW_TOTAL) -> DraftLaw:
    return DraftLaw(ids=np.array(ids, np.int32), weights=np.array(weights, np.int64), total=total)


def whole(weights: list[float]) -> DraftLaw:
    return DraftLaw(ids=np.empty(0, np.int32), weights=np.array(weights, np.float32), total=1.0)


@pytest.mark.parametrize(
    "law",
    [
        counted([1, 1], [LAW_TOTAL // 2, LAW_TOTAL // 2]),
        counted([1, 2], [LAW_TOTAL // 2, LAW_TOTAL // 2 - 1]),
        counted([1, 2], [LAW_TOTAL, 0]),
        counted([1, 2], [LAW_TOTAL + 1, -1]),
        counted([1, -2], [LAW_TOTAL - 1, 1]),
        counted([1, 2, 3], [LAW_TOTAL - 1, 1]),
        counted(list(range(4097)), [LAW_TOTAL - 4096] + [1] * 4096),
        whole([]),
        whole([0.0, 0.0]),
        whole([0.5, -0.5]),
        whole([0.5, float("nan")]),
        whole([0.5, float("inf")]),
    ],
)
def test_laws_that_are_none_are_refused_where_they_are_made(law: DraftLaw) -> None:
    with pytest.raises(ProtocolError):
        encode(propose(laws=(None, law, None)))


def test_laws_must_be_one_per_node() -> None:
    with pytest.raises(ProtocolError):
        encode(propose(laws=(None, None)))


def test_damaged_laws_are_refused_on_arrival() -> None:
    """A changed count, a repeated id, an id beyond the vocabulary, a row longer than it."""
    law = DraftLaw.sparse([3, 4], [1, 3])
    frame = body_of(propose(tokens=np.array([1, 2, 3], np.int32), laws=(None, law, law)))
    assert_same(decode([frame], vocab_size=5), decode([frame]))
    with pytest.raises(ProtocolError, match="outside"):
        decode([frame], vocab_size=4)
    with pytest.raises(ProtocolError, match="sum"):
        decode([frame[:-2] + b"\1\0"])
    ids = len(frame) - 8 - 8  # 4 ids, 4 counts, two bytes each
    with pytest.raises(ProtocolError, match="twice"):
        decode([frame[:ids] + frame[ids + 2 : ids + 4] + frame[ids + 2 :]])
    rows = encode(propose(tokens=np.zeros(3, np.int32), laws=(DraftLaw.dense([0.5] * 5), None, None)))
    decode(rows, vocab_size=5)
    for bad in (rows[1] + b"\0\0\0\0", rows[1][:-1], b"", b"\0" * 20, np.array([np.nan], "<f4").tobytes()):
        with pytest.raises(ProtocolError):
            decode([rows[0], bad], vocab_size=5)


def test_commits_that_do_not_fit_together_are_refused() -> None:
    good = Commit(request="r", generation=0, base_length=0, base_digest=0, tokens=np.arange(2, dtype=np.int32))
    ids, logs = np.zeros((2, 3), np.int32), np.zeros((2, 3), np.float32)
    for changes in (
        {"margins": np.zeros(1, np.float32)},
        {"logprobs": np.zeros(3, np.float32)},
        {"top_ids": ids[:1], "top_logprobs": logs[:1]},
        {"top_ids": ids, "top_logprobs": logs[:, :2]},
        {"top_ids": np.zeros((2, 65), np.int32), "top_logprobs": np.zeros((2, 65), np.float32)},
        {"last_kind": "best"},
    ):
        with pytest.raises(ProtocolError):
            encode(replace(good, **changes))  # type: ignore[arg-type]


def test_limits_on_nodes_and_tokens() -> None:
    count = MAX_NODES
    tree = {"tokens": np.zeros(count, np.int32), "scores": np.zeros(count, np.float32)}
    for parents in (np.arange(-1, count - 1, dtype=np.int32), np.arange(count, dtype=np.int32) // 2 - 1):
        assert_same(decode(encode(propose(parents=parents, **tree))), propose(parents=parents, **tree))
    with pytest.raises(ProtocolError, match="limit"):
        encode(propose(**{name: np.append(array, array[-1:]) for name, array in (*tree.items(), ("parents", parents))}))
    longest = Open(request="r", generation=0, prompt=np.full(MAX_TOKENS, 2**31 - 2, np.int32), sampling=Sampling())
    assert_same(decode(encode(longest)), longest)
    with pytest.raises(ProtocolError):
        encode(replace(longest, generated=np.ones(1, np.int32)))


def test_bombs_cost_nothing() -> None:
    deep = b"\x91" * 100_000
    wide = b"\xdd\xff\xff\xff\xff"
    nested_wide = b"\x93\x02\x01" + b"\xdc\xff\xff" * 1000
    for bomb in (deep, wide, nested_wide, b"\xc7\x08\x01" + b"x" * 8, b"\xd6\xff\0\0\0\0", b"\0" * (1 << 19)):
        for head in (b"", bytes([2, PROTOCOL_VERSION, 0, 0, 0, 0])):
            with pytest.raises(ProtocolError):
                decode([head + bomb])
    endless = body_of(propose())[:16] + b"\xff" * 40
    with pytest.raises(ProtocolError):
        decode([endless])


def test_another_protocol_version() -> None:
    """In the form of this version and in that of the first."""
    for frame in (bytes([7, PROTOCOL_VERSION + 1]) + b"\0" * 9, msgpack.packb([7, PROTOCOL_VERSION + 1, 5])):
        with pytest.raises(ProtocolError, match=f"version {PROTOCOL_VERSION + 1}") as caught:
            decode([frame])
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


def test_stats_are_compressed_and_nothing_inflates_without_end() -> None:
    stats = {f"link_lookup_in_{kind}_bytes": number for kind in ("ping", "propose", "need") for number in (3.0, 0.25)}
    stats |= {f"depth_{depth}_tokens": float(depth) for depth in range(64)} | {
        "zero": -0.0,
        "huge": 2.0**60,
        "none": inf,
    }
    [frame] = encode(Close(request="r", generation=0, reason="stop", stats=stats))
    got = decode([frame])
    assert isinstance(got, Close)
    assert {key: str(value) for key, value in got.stats.items()} == {key: str(value) for key, value in stats.items()}
    assert len(frame) < 500 < len(msgpack.packb(stats))
    for bad in (
        b"no zlib",
        zlib.compress(b"\x91\x01"),
        zlib.compress(bytes(1 << 24)),
        zlib.compress(b"\x80") + b"more",
    ):
        content = msgpack.packb(["r", 0, "stop", bad, 0])
        with pytest.raises(ProtocolError):
            decode([bytes(frame[:ENVELOPE]) + content])


@pytest.mark.parametrize(
    "message",
    [
        propose(request="\ud800"),
        propose(generation=np.int64(3)),
        propose(tokens=np.array([0.5, 1, 2])),
        propose(base_digest=2**64),
        Ping(share_index=1, share_count=1),
        Ping(progress=-1),
        Ping(sent_s=float("nan")),
        "hello",
    ],
)
def test_what_cannot_be_encoded_is_a_protocol_error(message: Message) -> None:
    with pytest.raises(ProtocolError):
        encode(message)
