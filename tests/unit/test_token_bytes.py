"""The bytes of tokens: joined they are the text, whatever the family; what stands for no text has none."""

from __future__ import annotations

import pytest

from dist_spec.models.token_bytes import is_single_byte
from dist_spec.models.tokenizer import load_tokenizer
from tests.unit.vocabulary_cases import AWKWARD, in_bytes, made, piece_bpe, piece_unigram, shipped, word_pieces

EVERY = made() | shipped()
NORMALISING = {"Claude 2"}  # NFKC: the ids are of another text


@pytest.mark.parametrize("text", AWKWARD)
@pytest.mark.parametrize("name", EVERY)
def test_joined_bytes_are_the_text(name, text):
    if name in NORMALISING and text != "prose":
        pytest.skip("encodes another text than it was given")
    tokenizer = EVERY[name]
    found = in_bytes(tokenizer, tokenizer.encode(AWKWARD[text], add_special=False)).decode()
    adds_space = in_bytes(tokenizer, tokenizer.encode("a", add_special=False)) == b" a"
    assert found == (" " if adds_space and not AWKWARD[text].startswith(" ") else "") + AWKWARD[text] or (
        adds_space and found == " " + AWKWARD[text]
    )


@pytest.mark.slow
@pytest.mark.parametrize("text", AWKWARD)
def test_the_embedded_model_too(text):
    tokenizer = load_tokenizer("smollm2")
    assert in_bytes(tokenizer, tokenizer.encode(AWKWARD[text], add_special=False)).decode() == AWKWARD[text]


@pytest.mark.parametrize("name", EVERY)
def test_control_tokens_stand_for_no_text(name):
    tokenizer = EVERY[name]
    assert tokenizer.token_bytes is not None
    assert len(tokenizer.token_bytes) == tokenizer.size
    for token in tokenizer.eos_ids:
        assert tokenizer.token_bytes[token] == b""


@pytest.mark.parametrize("tokenizer", [piece_bpe(), piece_unigram()])
def test_bytes_to_fall_back_to(tokenizer):
    at = tokenizer.token_map.index("<0xE2>")
    assert is_single_byte(tokenizer.token(at))
    assert tokenizer.token_bytes[at] == b"\xe2"
    assert tokenizer.token_bytes[tokenizer.token_map.index("▁the")] == b" the"
    assert tokenizer.token_bytes[tokenizer.token_map.index("<unk>")] == b""


def test_word_pieces_do_not_say_how_they_join():
    assert word_pieces().token_bytes is None
