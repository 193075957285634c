"""Messages for the codec's tests: random ones of every kind, a fixed proposal, and what it means that two are the same."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dist_spec.core.law import DraftLaw
from dist_spec.core.messages import (
    MAX_NODES,
    MAX_TOKENS,
    PROTOCOL_VERSION,
    Bye,
    Close,
    Commit,
    Features,
    FeatureWish,
    Forget,
    Hello,
    Link,
    Message,
    Need,
    Open,
    Ping,
    Propose,
    no_rows,
)
from dist_spec.core.score_grid import from_bytes
from dist_spec.core.types import Sampling

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=64)
REQUESTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=128)
COUNTS = st.integers(0, 2**63 - 1)
LENGTHS = st.integers(0, MAX_TOKENS)
DIGESTS = st.integers(0, 2**64 - 1)
SECONDS = st.floats(0, 1e9, allow_nan=False)


IDS = st.integers(0, 2**16 - 1) | st.integers(0, 2**24 - 1) | st.integers(0, 2**31 - 2)


@st.composite
def token_arrays(draw: st.DrawFn, max_size: int = 40) -> np.ndarray:
    ids = draw(st.sampled_from([st.integers(0, 2**16 - 1), st.integers(0, 2**24 - 1), st.integers(0, 2**31 - 2)]))
    return np.array(draw(st.lists(ids, max_size=max_size)), np.int32)


@st.composite
def sparse_laws(draw: st.DrawFn) -> DraftLaw:
    ids = draw(st.lists(IDS, min_size=1, max_size=6, unique=True))
    return DraftLaw.sparse(ids, draw(st.lists(st.floats(0.01, 1.0), min_size=len(ids), max_size=len(ids))))


DENSE_LAWS = st.lists(st.floats(0.0, 1.0, width=32), min_size=1, max_size=9).filter(any).map(DraftLaw.dense)
LAWS = st.none() | sparse_laws() | DENSE_LAWS
FLOATS = st.floats(width=32, allow_nan=False)


@st.composite
def proposals(draw: st.DrawFn) -> Propose:
    tokens = draw(token_arrays())
    parents = [draw(st.integers(-1, i - 1)) for i in range(len(tokens))]
    if draw(st.booleans()):
        parents = list(range(-1, len(tokens) - 1))
    marks = draw(st.lists(st.integers(0, 255), min_size=len(tokens), max_size=len(tokens)))
    marks = [0] * len(tokens) if draw(st.booleans()) else marks
    laws = draw(st.just(()) | st.lists(LAWS, min_size=len(tokens), max_size=len(tokens)).map(tuple))
    return Propose(
        request=draw(REQUESTS),
        generation=draw(COUNTS),
        base_length=draw(LENGTHS),
        base_digest=draw(DIGESTS),
        tokens=tokens,
        parents=np.array(parents, np.int32),
        scores=from_bytes(np.array(marks, np.uint8)),
        serial=draw(COUNTS),
        laws=laws,
    )


@st.composite
def float_arrays(draw: st.DrawFn, size: int) -> np.ndarray:
    return np.array(draw(st.lists(FLOATS, min_size=size, max_size=size)), np.float32)


@st.composite
def halves(draw: st.DrawFn, *, most: int) -> np.ndarray:
    """Rows of features, at most so many."""
    count, size = draw(st.integers(1, min(most, 4))), draw(st.integers(1, 5))
    numbers = draw(st.lists(st.floats(width=16, allow_nan=False, allow_infinity=False), min_size=size, max_size=size))
    return np.tile(np.array(numbers, np.float16), (count, 1))


@st.composite
def features(draw: st.DrawFn) -> Features:
    length = draw(st.integers(1, MAX_TOKENS))
    name = {"request": draw(REQUESTS), "generation": draw(COUNTS)}
    return Features(**name, base_length=length, base_digest=draw(DIGESTS), rows=draw(halves(most=length)))


@st.composite
def commits(draw: st.DrawFn) -> Commit:
    tokens = draw(token_arrays())
    size = len(tokens)
    base = draw(LENGTHS)
    read = base + size - 1
    num_top = draw(st.integers(1, 4)) if size and draw(st.booleans()) else 0
    margins = draw(float_arrays(size * draw(st.booleans())))
    top_ids = draw(st.lists(IDS, min_size=size * num_top, max_size=size * num_top))
    shape = (size * bool(num_top), num_top)
    return Commit(
        request=draw(REQUESTS),
        generation=draw(COUNTS),
        base_length=base,
        base_digest=draw(DIGESTS),
        tokens=tokens,
        features=draw(halves(most=read)) if read > 0 and draw(st.booleans()) else no_rows(),
        num_accepted=draw(st.integers(0, MAX_NODES)),
        ask=draw(st.booleans()),
        apart=draw(st.booleans()),
        margins=np.full(size, 0.5, np.float32) if draw(st.booleans()) else margins,
        last_kind=draw(st.sampled_from(["plain", "recovered", "bonus"])),
        logprobs=draw(float_arrays(size * draw(st.booleans()))),
        top_ids=np.array(top_ids, np.int32).reshape(shape),
        top_logprobs=draw(float_arrays(size * num_top)).reshape(shape),
        floor=float(from_bytes(np.array([draw(st.integers(0, 255))], np.uint8))[0]),
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
    top_k=st.integers(0, 1000),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.5, 2),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    logit_bias=st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-100, 100)), max_size=3).map(tuple),
    bad_words=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**31 - 1)), max_size=3).map(tuple),
    min_tokens=st.integers(0, 1),
    logprobs=st.integers(-1, 64),
)
OPENS = st.builds(
    Open,
    request=REQUESTS.filter(lambda name: not name.startswith("#")),
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
    features=st.none()
    | st.builds(
        FeatureWish,
        layers=st.lists(st.integers(0, 99), max_size=4).map(tuple),
        hidden_size=st.integers(1, 2**17),
        num_layers=st.integers(1, 200),
        window=st.integers(1, MAX_TOKENS),
    ),
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
    st.builds(
        Ping,
        progress=COUNTS,
        busy_s=SECONDS,
        num_drafters=COUNTS,
        sent_s=SECONDS,
        echo_s=SECONDS,
        share_index=st.integers(0, 2),
        share_count=st.integers(3, 9),
    ),
    st.builds(Bye, reason=NAMES, fatal=st.booleans(), first_id=st.integers(0, 10**6), tokens=st.tuples(NAMES, NAMES)),
    st.builds(Forget),
    features(),
    st.builds(
        Link,
        state=st.sampled_from(["wanted", "offered", "broken"]),
        carries=st.sampled_from(["tensors", "messages"]),
        address=st.text(max_size=64),
        reason=st.text(max_size=64),
    ),
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
        elif field.name == "laws":
            assert_same_laws(one, other)
        else:
            assert one == other, field.name


def assert_same_laws(left: tuple[DraftLaw | None, ...], right: tuple[DraftLaw | None, ...]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        if one is None or other is None:
            assert one is other
            continue
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.weights, other.weights)
        assert one.weights.dtype == other.weights.dtype
        assert one.total == other.total


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
