"""A drafter's context made from the target's ids: what its own tokenizer would make of the text, however it arrives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_spec.drafters.derived_context import DerivedContext
from dist_spec.drafters.vocabularies import SAMPLE, Vocabularies
from dist_spec.models.tokenizer import load_tokenizer
from tests.unit.vocabulary_cases import AWKWARD, byte_bpe, in_bytes, made, piece_bpe, shipped

EVERY = made() | shipped()
PAIRS = [(a, b) for a in EVERY for b in EVERY if a != b and a != "Claude 2"]  # whose ids are of a normalised text


def fed(context: DerivedContext, ids: list[int], *, steps: tuple[int, ...] = (1, 3, 2)) -> None:
    """Feed ids a few at a time; what is said to be unchanged is."""
    at = turn = 0
    while at < len(ids):
        before, size = list(context.ids), steps[turn % len(steps)]
        kept = context.extend(ids[at : at + size])
        assert context.ids[:kept] == before[:kept]
        assert kept == len(before) or context.ids[kept : kept + 1] != before[kept : kept + 1]
        at, turn = at + size, turn + 1


@pytest.mark.parametrize("text", [*AWKWARD, "long"])
@pytest.mark.parametrize(("target", "drafter"), PAIRS)
def test_it_is_the_drafters_own_encoding_of_the_text(target, drafter, text):
    whole = " ".join(AWKWARD.values()) + SAMPLE * 2 if text == "long" else AWKWARD[text]
    if target == "piece unigram":
        whole = whole.lstrip()  # a space that it would have put there is none of the text
    theirs, ours = EVERY[target], EVERY[drafter]
    context = DerivedContext(Vocabularies(theirs, ours))
    fed(context, theirs.encode(whole, add_special=False))
    assert not context.held
    assert context.ids == ours.encode(whole)


def test_what_is_encoded_per_commit_stays_small():
    both = Vocabularies(byte_bpe(), piece_bpe())
    context = DerivedContext(both)
    sizes = []
    for token in both.target.encode(SAMPLE * 8, add_special=False):
        context.extend([token])
        sizes.append(len(context._tail))
    assert max(sizes) < 600


def test_parts_of_a_character_wait_unless_the_drafter_has_them():
    rand = load_tokenizer("random:llama")
    fox = list("🦊".encode())
    both = Vocabularies(rand, byte_bpe())
    context = DerivedContext(both)
    assert context.extend(fox[:3]) == 0
    assert context.held == "🦊".encode()[:3]
    assert context.held_in_ids == all(both.to_drafter[fox[:3]] >= 0)
    context.extend(fox[3:])
    assert context.held == b""
    assert context.ids == both.drafter.encode("🦊")


def test_bytes_that_are_no_text_are_kept_as_they_are():
    both = Vocabularies(load_tokenizer("random:llama"), byte_bpe())
    context = DerivedContext(both)
    broken = [*b"ab", 0xE3, *b"c", 0xFF, 0x80, *b"d"]
    fed(context, broken, steps=(1,))
    assert in_bytes(both.drafter, context.ids) == bytes(broken)


def test_control_tokens_separate_texts():
    both = Vocabularies(piece_bpe(), byte_bpe())
    turn, end = both.target.token_map.index("<turn>"), both.target.eos_ids[0]
    context = DerivedContext(both)
    fed(
        context,
        [*both.target.encode("one", add_special=False), end, turn, *both.target.encode("two", add_special=False)],
    )
    ours = both.drafter
    assert context.ids == [
        *ours.encode("one"),
        *ours.eos_ids,
        ours.token_map.index("<turn>"),
        *ours.encode("two", add_special=False),
    ]


def test_an_unknown_control_token_is_spelled():
    both = Vocabularies(load_tokenizer("random:llama"), byte_bpe())
    context = DerivedContext(both)
    context.extend([256, *b"hi"])
    assert context.ids == [*both.drafter.encode("<bos>"), *both.drafter.encode("hi")]


@given(st.lists(st.integers(0, 258), max_size=60), st.lists(st.integers(1, 5), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_ids_in_any_portions_give_the_same_context(ids, steps):
    both = Vocabularies(load_tokenizer("random:llama"), byte_bpe())
    once, often = DerivedContext(both), DerivedContext(both)
    once.extend(ids)
    fed(often, ids, steps=tuple(steps))
    assert once.ids == often.ids
