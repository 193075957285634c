"""Tokenizers: byte-level round trips, incremental text, chat templates, comparison of two maps; and no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from dist_spec.errors import ModelError
from dist_spec.models.random_models import EOS_ID, byte_tokenizer
from dist_spec.models.tokenizer import IncrementalDetokenizer, Tokenizer, first_difference, load_tokenizer

BYTES = load_tokenizer("random:llama")
# Hypothesis tries constants of the code base too, and the names of special tokens are no text.
TEXTS = st.text().filter(lambda text: not any(name in text for name in ("<bos>", "<eos>", "<pad>")))


def folder(path: Path, *, extra: str | None = None, **config: object) -> Path:
    inner = byte_tokenizer()
    if extra is not None:
        inner.add_special_tokens([AddedToken(extra, special=True)])
    inner.save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 257}))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", "bos_token": "<bos>"} | config))
    return path


@given(TEXTS)
def test_text_survives_the_round_trip(text):
    assert BYTES.decode(BYTES.encode(text)) == text


@given(TEXTS)
def test_incremental_text_is_the_whole_text(text):
    stream = IncrementalDetokenizer(BYTES)
    pieces = [stream.push(i) for i in BYTES.encode(text)]
    assert "".join(pieces) + stream.flush() == text
    if "�" not in text:
        assert not any("�" in piece for piece in pieces)


def test_an_incomplete_character_is_held_back_and_flushed_as_a_replacement():
    stream = IncrementalDetokenizer(BYTES)
    assert [stream.push(b) for b in "é".encode()] == ["", "é"]
    assert stream.push("é".encode()[0]) == ""
    assert stream.flush() == "�"
    assert stream.flush() == ""


def test_a_stream_of_broken_bytes_still_moves():
    stream = IncrementalDetokenizer(BYTES)
    shown = "".join(stream.push(0xFF) for _ in range(20))
    assert shown.count("�") >= 12


def test_special_tokens_and_unknown_ids_give_no_text():
    stream = IncrementalDetokenizer(BYTES)
    assert [stream.push(i) for i in (104, EOS_ID, 105, 100_000)] == ["h", "", "i", ""]
    assert BYTES.decode([104, EOS_ID], skip_special=False) == "h<eos>"


def test_settings_come_from_the_folder(tmp_path):
    made = load_tokenizer(str(folder(tmp_path)))
    assert made.eos_ids == (257,)
    assert made.size == 259
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [257, 258]}))
    assert load_tokenizer(str(tmp_path)).eos_ids == (257, 258)


def test_a_chat_template_is_rendered_with_the_answers_beginning(tmp_path):
    turns = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    template = "{{ bos_token }}" + turns + "{% if add_generation_prompt %}[A]{% endif %}"
    made = load_tokenizer(str(folder(tmp_path, chat_template=template)))
    messages = [{"role": "user", "content": "hi"}]
    assert made.render_chat(messages) == "<bos>[user]hi[A]"
    assert made.apply_chat(messages) == [256, *b"[user]hi[A]"]


def test_a_missing_or_failing_chat_template_is_a_clear_error(tmp_path):
    with pytest.raises(ModelError, match="no chat template"):
        load_tokenizer(str(folder(tmp_path))).apply_chat([])
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ModelError, match="roles must alternate"):
        load_tokenizer(str(tmp_path)).apply_chat([])
    (tmp_path / "chat_template.jinja").write_text("{{ ''.__class__.__mro__ }}")  # the sandbox holds
    with pytest.raises(ModelError, match="failed"):
        load_tokenizer(str(tmp_path)).apply_chat([])


def test_a_folder_without_a_tokenizer_is_a_clear_error(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(str(tmp_path))


def test_the_first_id_that_differs_is_named(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    a = load_tokenizer(str(folder(tmp_path / "a", extra="<one>")))
    b = load_tokenizer(str(folder(tmp_path / "b", extra="<two>")))
    assert first_difference(a, b) == (259, "<one>", "<two>")
    assert first_difference(a, BYTES) is None  # one is longer: padding is no difference
    assert first_difference(a, a) is None


def test_hashes_differ_exactly_in_the_block_that_differs(tmp_path):
    (tmp_path / "a").mkdir()
    other = load_tokenizer(str(folder(tmp_path / "a", extra="<one>")))
    left, right = BYTES.vocabulary_hashes(), other.vocabulary_hashes()
    assert len(left) == len(right) == 4 * 5  # 259 and 260 ids in blocks of 64
    assert left[:16] == right[:16]
    assert left[16:] != right[16:]


def test_no_torch_is_imported():
    code = (
        "import sys; from dist_spec.models.tokenizer import load_tokenizer as l;"
        "t = l('random:llama'); t.apply_chat([{'role': 'user', 'content': 'x'}]);"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_tokenizer_object_needs_only_its_inner_one():
    made = Tokenizer(byte_tokenizer(), eos_ids=[3, 3, 1], chat_template=None, specials={})
    assert made.eos_ids == (1, 3)
    assert made.token(65) == "A"
