"""The byte string that each id of a tokenizer stands for, read off its description. It encodes nothing and runs no model.

Byte-level BPE writes bytes as printable stand-ins; SentencePiece-like vocabularies write a space as U+2581 and single
bytes as `<0xNN>`. Others (WordPiece, ...) do not say how their tokens join, so they have no byte strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dist_spec.models.random_models import byte_symbols

_SPACE = "▁"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes(description: Mapping[str, Any], tokens: Sequence[str]) -> list[bytes] | None:
    """The bytes of each id, b"" for ids that stand for no text (control tokens, unused ids); None: it cannot be told.

    Args:
        description: tokenizer.json as an object.
        tokens: raw token strings by id.
    """
    kinds = {part["type"] for key in ("decoder", "pre_tokenizer") for part in _parts(description.get(key))}
    added = {int(one["id"]): one for one in description.get("added_tokens") or ()}
    model = description.get("model") or {}
    unknown = model.get("unk_token") or _unigram_unknown(model)
    if "ByteLevel" in kinds:
        byte_of = {symbol: bytes([byte]) for byte, symbol in enumerate(byte_symbols())}
        found = [_byte_level(token, byte_of) for token in tokens]
    elif _is_metaspace(description):
        falls_back = bool(model.get("byte_fallback")) or "ByteFallback" in kinds
        found = [_piece(token, falls_back=falls_back) for token in tokens]
    else:
        return None
    for token_id, one in added.items():
        if token_id < len(found):
            found[token_id] = b"" if one.get("special") else str(one["content"]).encode()
    if isinstance(unknown, str) and unknown in tokens:
        found[list(tokens).index(unknown)] = b""
    return found


def is_single_byte(token: str) -> bool:
    """Whether a raw token is a byte that a SentencePiece-like tokenizer falls back to."""
    return _BYTE.fullmatch(token) is not None


def _parts(one: Any) -> Iterator[Mapping[str, Any]]:
    """A component and, where it is a sequence, its members."""
    if isinstance(one, Mapping) and "type" in one:
        yield one
        for name in ("decoders", "pretokenizers", "normalizers"):
            for inner in one.get(name) or ():
                yield from _parts(inner)


def _is_metaspace(description: Mapping[str, Any]) -> bool:
    """Whether spaces are written as U+2581."""
    for key in ("decoder", "pre_tokenizer", "normalizer"):
        for part in _parts(description.get(key)):
            if part["type"] == "Metaspace":
                return True
            if part["type"] == "Replace" and _SPACE in (part.get("content"), (part.get("pattern") or {}).get("String")):
                return True
    return False


def _unigram_unknown(model: Mapping[str, Any]) -> str | None:
    at, vocab = model.get("unk_id"), model.get("vocab")
    return str(vocab[at][0]) if isinstance(at, int) and isinstance(vocab, list) and at < len(vocab) else None


def _byte_level(token: str, byte_of: Mapping[str, bytes]) -> bytes:
    try:
        return b"".join(byte_of[symbol] for symbol in token)
    except KeyError:
        return b""


def _piece(token: str, *, falls_back: bool) -> bytes:
    match = _BYTE.fullmatch(token) if falls_back else None
    return bytes([int(match[1], 16)]) if match else token.replace(_SPACE, " ").encode("utf-8", "surrogatepass")
