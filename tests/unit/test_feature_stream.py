"""The leader's side of feeding draft heads: who may be fed, what is kept, what travels when; and the drafter's inbox."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_spec.core.admission import FeatureFacts
from dist_spec.core.draft import Draft
from dist_spec.core.draft_session import DraftSession
from dist_spec.core.feature_inbox import FeatureInbox
from dist_spec.core.features import CHUNK_BYTES, STEP_BYTES, FeatureStream
from dist_spec.core.live import Live
from dist_spec.core.messages import MAX_FEATURES, Commit, Features, FeatureWish, Hello, Open, no_rows
from dist_spec.core.prefix import Prefix
from dist_spec.core.sequence import Sequence
from dist_spec.core.settings import Speculation
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import HalfArray, Sampling

FACTS = FeatureFacts(hidden_size=8, num_layers=4)
WISH = FeatureWish(layers=(0, 2), hidden_size=8, num_layers=4, window=12)


def hello(**changes: object) -> Hello:
    wish = replace(WISH, **changes)  # type: ignore[arg-type]
    return Hello(role="drafter", name="head", kind="head", features=wish)


def live_of(length: int, *, request: str = "r") -> Live:
    sequence = Sequence(
        request,
        0,
        prompt=[7 * i % 50 for i in range(length)],
        generated=[],
        generated_offset=0,
        sampling=Sampling(max_tokens=4000),
        max_model_len=5000,
        eos_ids=(),
        decode=None,
    )
    return Live.start(sequence, owner="", now=0.0)


def rows_of(first: int, last: int, *, size: int = 16) -> HalfArray:
    """Every number says which position it is of."""
    return np.repeat(np.arange(first, last, dtype=np.float16)[:, None], size, axis=1)


def commit_to(stream: FeatureStream, live: Live, *, peer: str = "d0", num_tokens: int = 1) -> Commit:
    """The target read up to the last token but `num_tokens`, and commits so many more."""
    prefix = live.sequence.prefix
    base, digest = len(prefix), prefix.digest
    tokens = list(range(num_tokens))
    end = base + num_tokens - 1
    stream.computed(live, rows_of(base - 1, end), end=end)
    live.sequence.accept(tuple(tokens))
    commit = Commit(request="r", generation=0, base_length=base, base_digest=digest, tokens=np.array(tokens, np.int32))
    return stream.with_commit(peer, live.sequence.key, commit, num_tokens=num_tokens)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": 16}, "hidden_size 16"),
        ({"num_layers": 5}, "num_layers 5"),
        ({"layers": (1, 4)}, r"layers \(1, 4\)"),
        ({"layers": ()}, "layers"),
    ],
)
def test_a_head_of_another_target_is_refused_by_name(changes: dict[str, object], named: str) -> None:
    bye = FeatureStream(FACTS).refusal("d0", hello(**changes))
    assert bye is not None
    assert bye.fatal
    assert re.search(named, bye.reason)


def test_whoever_wants_nothing_is_never_refused_and_gets_nothing() -> None:
    stream = FeatureStream(None)
    plain = Hello(role="drafter", name="d", kind="model")
    assert stream.refusal("d", plain) is None
    assert stream.refusal("d", hello()) is not None
    stream = FeatureStream(FACTS)
    stream.join("d", plain)
    assert stream.layers == ()
    live = live_of(6)
    assert not len(commit_to(stream, live, peer="d").features)
    assert stream.due({live.sequence.key: live}, ["d"]) == []


def test_two_heads_must_want_the_same_layers() -> None:
    stream = FeatureStream(FACTS)
    stream.join("d0", hello())
    assert stream.refusal("d1", hello()) is None
    assert stream.refusal("d1", hello(layers=(1, 2))) is not None
    assert stream.refusal("d0", hello(layers=(1, 2))) is None  # it is the only one
    stream.leave("d0")
    assert stream.layers == (0, 2), "it may come back in the middle of a text"
    assert stream.refusal("d1", hello(layers=(1, 2))) is None


def test_a_commit_carries_what_the_verification_read() -> None:
    stream, live = FeatureStream(FACTS), live_of(6)
    stream.join("d0", hello())
    stream.computed(live, rows_of(0, 5), end=5)
    first = commit_to(stream, live, num_tokens=3)
    assert first.features[:, 0].tolist() == [5, 6, 7]
    second = commit_to(stream, live, num_tokens=1)
    assert second.features[:, 0].tolist() == [8]
    assert not len(commit_to(stream, live, peer="other").features)


def sent(stream: FeatureStream, live: Live, *, peer: str = "d0") -> list[int]:
    """Positions of the chunks due now, in order, each checked against the name it travels under."""
    positions: list[int] = []
    for to, message in stream.due({live.sequence.key: live}, [peer]):
        assert to == peer
        assert isinstance(message, Features)
        assert live.sequence.prefix.matches(message.base_length, message.base_digest)
        first = message.base_length - len(message.rows)
        assert message.rows[:, 0].tolist() == list(range(first, message.base_length))
        positions += range(first, message.base_length)
    return positions


def test_what_commits_did_not_carry_follows_once() -> None:
    stream, live = FeatureStream(FACTS), live_of(30)
    stream.join("d0", hello())
    stream.computed(live, rows_of(0, 29), end=29)
    told = commit_to(stream, live)
    assert told.features[:, 0].tolist() == [29]
    assert sorted(sent(stream, live)) == list(range(18, 29)), "the window of 12, less what the commit carried"
    assert sent(stream, live) == []
    commit_to(stream, live, num_tokens=2)
    assert sent(stream, live) == []
    stream.tell_again("d0")
    assert sorted(sent(stream, live)) == list(range(20, 32))


def test_a_step_sends_so_much_and_the_nearest_first() -> None:
    size, window = 4096, 400
    stream, live = FeatureStream(FACTS), live_of(500)
    stream.join("d0", hello(window=window))
    stream.computed(live, rows_of(100, 500, size=size), end=500)
    per_step: list[list[int]] = []
    while positions := sent(stream, live):
        per_step.append(positions)
    chunk, row = CHUNK_BYTES // (2 * size), 2 * size
    assert all(len(positions) * row <= STEP_BYTES + CHUNK_BYTES for positions in per_step)
    assert len(per_step) >= window * row // (STEP_BYTES + CHUNK_BYTES)
    flat = [one for positions in per_step for one in positions]
    assert sorted(flat) == list(range(100, 500))
    assert flat[:chunk] == list(range(500 - chunk, 500))


def test_the_beginning_of_a_long_prompt_is_not_kept() -> None:
    stream, live = FeatureStream(FACTS), live_of(100)
    stream.join("d0", hello())
    for first in range(0, 100, 25):
        stream.computed(live, rows_of(first, first + 25), end=first + 25)
        if first < 75:
            assert sent(stream, live) == []
    assert sorted(sent(stream, live)) == list(range(88, 100))


def test_ended_requests_leave_nothing() -> None:
    stream, live = FeatureStream(FACTS), live_of(20)
    stream.join("d0", hello())
    stream.computed(live, rows_of(0, 20), end=20)
    sent(stream, live)
    assert stream.due({}, ["d0"]) == []
    assert not stream._windows
    assert not stream._sent


def test_nor_do_those_that_end_after_the_last_head_is_gone() -> None:
    """The target goes on telling features then, as the head may come back in the middle of a text."""
    stream = FeatureStream(FACTS)
    stream.join("d0", hello())
    stream.leave("d0")
    for number in range(20):
        live = live_of(20, request=f"r{number}")
        stream.computed(live, rows_of(0, 20), end=20)
        assert stream.due({live.sequence.key: live}, []) == []
        assert list(stream._windows) == [live.sequence.key]
    stream.join("d0", hello())
    assert sorted(sent(stream, live)) == list(range(8, 20))


def test_rows_that_no_message_can_carry_are_refused() -> None:
    """Else sending them would end the leader."""
    stream = FeatureStream(FeatureFacts(hidden_size=MAX_FEATURES // 2, num_layers=4))
    assert stream.refusal("d0", hello(hidden_size=MAX_FEATURES // 2)) is None
    bye = stream.refusal("d0", hello(hidden_size=MAX_FEATURES // 2, layers=(0, 1, 2)))
    assert bye is not None
    assert bye.fatal


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(3, 17))
def test_the_window_holds_the_latest_rows_whatever_the_steps(steps: list[int], window: int) -> None:
    stream, live = FeatureStream(FACTS), live_of(4)
    stream.join("d0", hello(window=window))
    stream.computed(live, rows_of(0, 3), end=3)
    for count in steps:
        told = commit_to(stream, live, num_tokens=count)
        end = len(live.sequence.prefix) - 1
        carried = min(count, window)
        assert told.features[:, 0].tolist() == list(range(end - carried, end))
    stream.tell_again("d0")
    assert sorted(sent(stream, live)) == list(range(max(0, end - window), end))


# ---- the drafter's inbox ----------------------------------------------------------------------------------------------


def draft_of(tokens: list[int]) -> Draft:
    return Draft(
        request="r",
        generation=0,
        prefix=Prefix(tokens),
        slots=[-1] * len(tokens),
        prompt_length=len(tokens),
        generated_offset=0,
        sampling=Sampling(),
        tree=DraftTree(len(tokens), tokens[-1]),
    )


TEXT = [5, 9, 2, 8, 8, 1, 3, 7]


def features(length: int, count: int, *, text: list[int] = TEXT) -> Features:
    digest, rows = Prefix(text[:length]).digest, rows_of(length - count, length)
    return Features(request="r", generation=0, base_length=length, base_digest=digest, rows=rows)


def positions(inbox: FeatureInbox) -> list[int]:
    found: list[int] = []
    for key, first, rows in inbox.take():
        assert key == ("r", 0)
        assert rows[:, 0].tolist() == list(range(first, first + len(rows)))
        found += range(first, first + len(rows))
    return found


def test_features_wait_until_their_text_is_known() -> None:
    inbox, draft = FeatureInbox(), draft_of(TEXT[:3])
    inbox.came(draft, features(3, 2))
    inbox.came(draft, features(6, 3))
    assert positions(inbox) == [1, 2]
    draft.commit(TEXT[3:5])
    inbox.grew(draft)
    assert positions(inbox) == []
    draft.commit(TEXT[5:])
    inbox.grew(draft)
    inbox.grew(draft)
    assert positions(inbox) == [3, 4, 5]


def test_features_of_another_text_are_dropped() -> None:
    inbox, draft = FeatureInbox(), draft_of(TEXT[:3])
    other = [1, *TEXT[1:]]
    inbox.came(draft, features(2, 2, text=other))
    inbox.came(draft, features(5, 2, text=other))
    draft.commit(TEXT[3:])
    inbox.grew(draft)
    assert positions(inbox) == []


@pytest.mark.parametrize("known", [3, 5, 8])
def test_features_that_rode_on_a_commit_in_time_late_or_early(known: int) -> None:
    """The commit of tokens 3 and 4: its features are those of positions 2 and 3."""
    inbox, draft = FeatureInbox(), draft_of(TEXT[: min(known, 3)])
    draft.commit(TEXT[3:known])
    commit = Commit(
        request="r",
        generation=0,
        base_length=3,
        base_digest=Prefix(TEXT[:3]).digest,
        tokens=np.array(TEXT[3:5], np.int32),
        features=rows_of(2, 4),
    )
    inbox.rode(draft, commit)
    inbox.rode(draft, replace(commit, features=no_rows()))
    if known < 5:
        assert positions(inbox) == []
        draft.commit(TEXT[known:5])
        inbox.grew(draft)
    assert positions(inbox) == [2, 3]


def test_a_flood_of_features_for_unknown_text_keeps_the_latest() -> None:
    inbox, draft = FeatureInbox(), draft_of(TEXT[:1])
    for _ in range(100):
        inbox.came(draft, features(3, 1))
    inbox.came(draft, features(6, 1))
    draft.commit(TEXT[1:])
    inbox.grew(draft)
    assert positions(inbox) == [2] * 7 + [5]


def test_features_that_overtake_the_opening_of_their_request_wait_for_it() -> None:
    session = DraftSession(Speculation())
    assert session.receive(features(3, 3), now=0.0) == []
    assert session.take_features() == []
    opening = Open(
        request="r",
        generation=0,
        prompt=np.array(TEXT[:4], np.int32),
        generated=np.empty(0, np.int32),
        sampling=Sampling(),
    )
    session.receive(opening, now=0.0)
    [(key, first, rows)] = session.take_features()
    assert (key, first, rows[:, 0].tolist()) == (("r", 0), 0, [0, 1, 2])


def test_a_request_that_begins_anew_under_its_name_is_not_given_features_of_the_text_before() -> None:
    """Both messages came between two looks."""
    session = DraftSession(Speculation())
    opening = Open(
        request="r",
        generation=0,
        prompt=np.array(TEXT[:4], np.int32),
        generated=np.empty(0, np.int32),
        sampling=Sampling(),
    )
    session.receive(opening, now=0.0)
    session.receive(features(3, 3), now=0.0)
    other = [1, *TEXT[1:4]]
    session.receive(replace(opening, prompt=np.array(other, np.int32)), now=0.0)
    session.receive(features(2, 1, text=other), now=0.0)
    assert [(first, len(rows)) for _, first, rows in session.take_features()] == [(1, 1)]


def test_features_of_requests_that_never_come_are_dropped_in_the_end() -> None:
    inbox = FeatureInbox()
    for number in range(100):
        inbox.early(replace(features(3, 1), request=f"r{number}"))
    inbox.early(features(3, 1))
    inbox.grew(draft_of(TEXT[:3]))
    assert positions(inbox) == [2]
    for number in range(99):
        inbox.early(replace(features(3, 1), request=f"r{number}"))
    inbox.grew(replace(draft_of(TEXT[:3]), request="r0"))
    assert inbox.take() == []


def test_rows_of_a_device_stay_there() -> None:
    """A target on a GPU hands over tensors: what is kept and sent are tensors of the same numbers."""
    arrays, tensors = FeatureStream(FACTS), FeatureStream(FACTS)
    live = live_of(40)
    for stream, convert in ((arrays, np.asarray), (tensors, torch.from_numpy)):
        stream.join("d0", hello())
        for first in range(0, 39, 3):  # more than the window holds: its ring moves
            stream.computed(live, convert(rows_of(first, first + 3)), end=first + 3)
    request, generation = live.sequence.key
    commit = Commit(request=request, generation=generation, base_length=39, base_digest=1, tokens=np.zeros(1, np.int32))
    told = [stream.with_commit("d0", live.sequence.key, commit, num_tokens=3) for stream in (arrays, tensors)]
    assert len(told[0].features) == 3
    chunks = [[message for _, message in stream.due({live.sequence.key: live}, ["d0"])] for stream in (arrays, tensors)]
    assert isinstance(told[1].features, torch.Tensor)
    np.testing.assert_array_equal(told[0].features, np.asarray(told[1].features))
    assert len(chunks[0]) == len(chunks[1]) > 0
    for one, other in zip(*chunks, strict=True):
        assert isinstance(one, Features)
        assert isinstance(other, Features)
        assert isinstance(other.rows, torch.Tensor)
        assert one.base_digest == other.base_digest
        np.testing.assert_array_equal(one.rows, np.asarray(other.rows))
