"""Two vocabularies side by side: same bytes and nothing else makes two tokens one."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Inner

from dist_spec.drafters.vocabularies import ENOUGH, Vocabularies, choose_way
from dist_spec.errors import TokenizerMismatchError
from dist_spec.models.random_models import byte_symbols
from dist_spec.models.tokenizer import Tokenizer, load_tokenizer
from tests.unit.vocabulary_cases import byte_bpe, made, piece_bpe, shipped, word_pieces

EVERY = made() | shipped()
PAIRS = [(a, b) for a in EVERY for b in EVERY if a != b]


@pytest.mark.parametrize(("target", "drafter"), PAIRS)
def test_mapped_tokens_are_the_same_bytes(target, drafter):
    both = Vocabularies(EVERY[target], EVERY[drafter])
    ends = set(EVERY[drafter].eos_ids)
    mapped = np.flatnonzero(both.to_target >= 0).tolist()
    for ours in mapped:
        if ours in ends:
            assert both.to_target[ours] == both.target_end
        else:
            assert both.drafter_bytes[ours] == both.target_bytes[both.to_target[ours]] != b""
    common = set(both.target_bytes) & set(both.drafter_bytes) - {b""}
    assert {both.drafter_bytes[ours] for ours in mapped if ours not in ends} == common
    assert 0.0 <= both.share <= 1.0
    assert 0.0 < both.mass <= 1.0


@pytest.mark.parametrize(("target", "drafter"), PAIRS)
def test_columns_name_every_common_token_once(target, drafter):
    both = Vocabularies(EVERY[target], EVERY[drafter])
    columns = both.columns(10**6)
    assert (np.diff(columns.target_ids) > 0).all()
    np.testing.assert_array_equal(both.to_target[columns.drafter_ids], columns.target_ids)
    named = [columns.drafter_ids, *(ids for ids, _ in columns.more)]
    assert sorted(np.concatenate(named).tolist()) == np.flatnonzero(both.to_target >= 0).tolist()
    for ids, places in columns.more:
        np.testing.assert_array_equal(both.to_target[ids], columns.target_ids[places])
        assert len(set(places.tolist())) == len(places)


def test_ids_beyond_the_logits_or_the_tokenizer_are_no_columns():
    both = Vocabularies(load_tokenizer("random:llama"), byte_bpe())
    assert both.columns(100).drafter_ids.max() < 100
    assert both.columns(10**6).drafter_ids.max() < byte_bpe().size


def tokenizer_of(tokens: list[str], *, specials: list[str], eos: list[str], template: str | None = None) -> Tokenizer:
    inner = Inner(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(text, special=True) for text in specials])
    return Tokenizer(inner, eos_ids=[inner.token_to_id(e) for e in eos], chat_template=template, specials={})


def test_a_space_and_a_special_tokens_spelling_make_a_difference():
    target = tokenizer_of(["a", "Ġa", "<", "x"], specials=["<s>", "</s>"], eos=["</s>"])
    drafter = tokenizer_of(["Ġa", "b", "x"], specials=["a", "<end>"], eos=["<end>"])
    both = Vocabularies(target, drafter)
    assert both.to_target.tolist() == [1, -1, 3, -1, 5]  # its "a" is a control token; its end is the target's


def test_of_several_ends_the_templates_is_meant():
    names = ["<text-end>", "<turn-end>"]
    target = tokenizer_of(["a"], specials=names, eos=names, template="{{ x }}<turn-end>")
    drafter = tokenizer_of(["a"], specials=["</s>", "<eot>"], eos=["</s>", "<eot>"])
    both = Vocabularies(target, drafter)
    assert both.target_end == 2
    columns = both.columns(3)
    assert columns.target_ids.tolist() == [0, 2]
    assert [ids.tolist() for ids, _ in columns.more] == [[2]]


def test_of_two_target_ids_with_the_same_bytes_the_token_proper_is_meant():
    pieces = piece_bpe()
    both = Vocabularies(pieces, byte_bpe())
    [ours] = [i for i, text in enumerate(both.drafter_bytes) if text == b"a"]
    assert pieces.token(int(both.to_target[ours])) == "a"
    theirs = [i for i, text in enumerate(both.target_bytes) if text == b"a"]
    assert len(theirs) == 2
    assert both.to_drafter[theirs].tolist() == [ours, ours]


def test_the_way_is_chosen_by_what_a_text_needs():
    rand, bpe = load_tokenizer("random:llama"), byte_bpe()
    assert choose_way(Vocabularies(rand, load_tokenizer("random:qwen2"))) == "same"
    assert choose_way(Vocabularies(bpe, rand)) == "intersection"  # all bytes are tokens of every byte-level vocabulary
    wide = Vocabularies(rand, bpe)
    assert wide.mass < ENOUGH
    assert choose_way(wide) == "text"


def test_a_vocabulary_without_bytes_is_refused():
    with pytest.raises(TokenizerMismatchError, match="drafter's tokenizer"):
        Vocabularies(byte_bpe(), word_pieces())
    with pytest.raises(TokenizerMismatchError, match="target's tokenizer"):
        Vocabularies(word_pieces(), byte_bpe())


def test_byte_symbols_are_all_bytes():
    assert len(set(byte_symbols())) == 256
