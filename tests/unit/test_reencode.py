"""A drafted text in the target's ids: the ids before it stay as they are, and what is added spells the draft."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_spec.drafters.derived_context import DerivedContext
from dist_spec.drafters.reencode import continuation
from dist_spec.drafters.trie import Trie
from dist_spec.drafters.vocabularies import Vocabularies
from tests.unit.vocabulary_cases import AWKWARD, byte_bpe, in_bytes, made, piece_bpe, shipped

TARGETS = {name: one for name, one in (made() | shipped()).items() if name != "Claude 2"}


@pytest.mark.parametrize("text", AWKWARD)
@pytest.mark.parametrize("name", TARGETS)
def test_after_its_own_encoding_it_goes_on_as_the_whole_would(name, text):
    """Cut anywhere between ids: what the target itself would write next is proposed."""
    target = TARGETS[name]
    both = Vocabularies(target, byte_bpe())
    ids = target.encode(AWKWARD[text], add_special=False)
    agreed = 0
    for cut in range(1, len(ids)):
        before, rest = ids[:cut], in_bytes(target, ids[cut:])
        found = continuation(both, before, rest, open_end=False)
        spelled = in_bytes(target, found.tokens)
        assert rest.startswith(spelled)
        assert found.ends == [len(in_bytes(target, found.tokens[: i + 1])) for i in range(len(found.tokens))]
        agreed += found.tokens == ids[cut:]
    assert agreed >= 0.8 * (len(ids) - 1)


def test_ids_that_its_encoding_would_not_give_are_left_alone():
    """The target wrote "t", "he" where its tokenizer writes "the": what follows is appended all the same."""
    target = byte_bpe()
    both = Vocabularies(target, piece_bpe())
    at = {text: i for i, text in enumerate(both.target_bytes) if text}
    assert target.encode("the", add_special=False) != [at[b"t"], at[b"h"], at[b"e"]]
    before = [*target.encode("In the end, ", add_special=False), at[b"t"], at[b"h"], at[b"e"]]
    found = continuation(both, before, b" committee", open_end=False)
    assert in_bytes(target, found.tokens) == b" committee"
    encoded_again = target.encode("In the end, the committee", add_special=False)
    assert encoded_again[len(before) :] != found.tokens  # what a drafter that forgets the ids would send


def test_an_open_end_gives_up_the_last_id_unless_it_is_the_only_one():
    target = byte_bpe()
    both = Vocabularies(target, piece_bpe())
    before = target.encode("the", add_special=False)
    whole = continuation(both, before, b" bridge is", open_end=False).tokens
    assert len(whole) > 1
    assert continuation(both, before, b" bridge is", open_end=True).tokens == whole[:-1]
    assert len(continuation(both, before, b" ", open_end=True).tokens) == 1


@pytest.mark.parametrize("beyond", [0, 5, 10_000])
def test_an_id_beyond_the_targets_tokenizer_is_no_text(beyond):
    """Vocabularies are padded, and nothing forbids a target to choose such an id."""
    target = byte_bpe()
    both = Vocabularies(target, piece_bpe())
    before = [*target.encode("the", add_special=False), target.size + beyond]
    assert in_bytes(target, continuation(both, before, b" bridge", open_end=False).tokens) == b" bridge"
    context = DerivedContext(both)
    context.extend([*before, *target.encode(" bridge", add_special=False)])
    assert in_bytes(both.drafter, context.ids).split() == [b"the", b"bridge"]


def test_half_a_character_at_the_end_is_left_out():
    target = byte_bpe()
    both = Vocabularies(target, piece_bpe())
    draft = "x🦊".encode()
    found = continuation(both, target.encode("a", add_special=False), draft[:-1], open_end=False)
    assert in_bytes(target, found.tokens) == b"x"
    assert continuation(both, [], b"\x80", open_end=False).tokens == []


# Hypothesis tries constants of the code base too: names of special tokens are no text, and to pieces this mark is a blank.
TEXTS = st.text(max_size=20).filter(lambda text: not re.search(r"</?\w+>|\u2581", text))


@given(TEXTS, TEXTS.filter(bool), st.booleans())
@settings(max_examples=150, deadline=None)
def test_whatever_the_text_only_the_draft_is_spelled(before, draft, open_end):
    for target in (byte_bpe(), piece_bpe()):
        both = Vocabularies(target, byte_bpe())
        found = continuation(both, target.encode(before, add_special=False), draft.encode(), open_end=open_end)
        assert draft.encode().startswith(in_bytes(target, found.tokens))


def test_a_trie_shares_beginnings_and_sorts_siblings():
    trie = Trie()
    trie.add([5, 6], [-1.0, -3.0])
    trie.add([7], [-0.5])
    trie.add([5, 8], [-2.0, -2.5])
    found = trie.expansion()
    assert found.tokens.tolist() == [7, 5, 8, 6]
    assert found.parents.tolist() == [-1, -1, 1, 1]
    assert found.scores.tolist() == [-0.5, -1.0, -1.5, -2.0]
    assert not len(Trie().expansion().tokens)
