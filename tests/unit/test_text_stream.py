"""Text as it is committed: whatever the cuts between commits, the parts are the text, and no stop string shows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_spec.models.random_models import EOS_ID
from dist_spec.models.tokenizer import load_tokenizer
from dist_spec.server.detokenizer import TextStream

TOKENIZER = load_tokenizer("random:llama")


def parts_of(commits: Sequence[Sequence[int]], stream: TextStream, reason: str) -> tuple[list[str], int | str | None]:
    parts = [stream.push(commit) for commit in commits]
    ending = stream.finish(reason)
    return [*parts, ending.text], ending.stop_reason


def cut(data: bytes, sizes: Sequence[int]) -> list[list[int]]:
    commits, rest = [], list(data)
    for size in sizes:
        commits.append(rest[:size])
        rest = rest[size:]
    return [*commits, rest]


@given(st.text(max_size=20), st.lists(st.integers(1, 4), max_size=8))
def test_parts_are_the_text(text: str, sizes: list[int]) -> None:
    parts, reason = parts_of(cut(text.encode(), sizes), TextStream(TOKENIZER, stops=["zz"]), "length")
    assert "".join(parts) == text
    assert reason is None


@given(st.text("abé", max_size=12), st.lists(st.integers(1, 4), max_size=8), st.sampled_from(["ab", "éa", "aab", "b"]))
def test_a_stop_string_and_what_follows_never_shows(text: str, sizes: list[int], stop: str) -> None:
    """The target ends at the token that completes the stop string: the last byte of it."""
    place = text.find(stop)
    if place < 0:
        text, place = text + stop, (text + stop).find(stop)
    data = text[: place + len(stop)].encode()
    parts, reason = parts_of(cut(data, sizes), TextStream(TOKENIZER, stops=[stop, "never"]), "stop")
    assert "".join(parts) == text[:place]
    assert reason == stop
    shown, _ = parts_of(cut(data, sizes), TextStream(TOKENIZER, stops=[stop], include_stop=True), "stop")
    assert "".join(shown) == text[: place + len(stop)]


def test_a_stop_string_that_did_not_end_the_text_is_text() -> None:
    """As with `min_tokens`: the target went on, so it was none."""
    stream = TextStream(TOKENIZER, stops=["stop"])
    parts, reason = parts_of([list(b"a stop"), list(b" and stop")], stream, "stop")
    assert "".join(parts) == "a stop and "
    assert reason == "stop"


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    stream = TextStream(TOKENIZER, stops=["###", "ab"])
    assert [stream.push(list(data)) for data in (b"x#", b"#y", b"a", b"c")] == ["x", "##y", "", "ac"]


@pytest.mark.parametrize("include", [False, True])
def test_ids_that_end_a_text(include: bool) -> None:
    stream = TextStream(TOKENIZER, ends=(88, EOS_ID), reported=(88,), include_stop=include)
    parts, reason = parts_of([list(b"text"), [88]], stream, "stop")
    assert ("".join(parts), reason) == ("textX" if include else "text", 88)
    stream = TextStream(TOKENIZER, ends=(88, EOS_ID), reported=(88,), skip_special=False, include_stop=include)
    parts, reason = parts_of([[*b"text", EOS_ID]], stream, "stop")
    assert ("".join(parts), reason) == ("text", None)


def test_special_tokens_show_when_asked_for() -> None:
    assert TextStream(TOKENIZER).push([EOS_ID, 65]) == "A"
    assert TextStream(TOKENIZER, skip_special=False).push([EOS_ID, 65]) == "<eos>A"


def test_half_a_character_at_the_end_is_shown_as_broken() -> None:
    parts, _ = parts_of([[65], [0xC3]], TextStream(TOKENIZER), "length")
    assert "".join(parts) == "A�"
