"""A drafted text as ids of the target that continue given ids. Those ids are never encoded again: they are only looked at
to see that the encoding of what follows does not depend on them differently. It knows tokenizers, no models and no trees.

String-level exact match: Timor et al., arXiv 2502.05202.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dist_spec.drafters.vocabularies import Vocabularies

_TAILS = (6, 2)
"""Ids before the draft that are encoded along with it, the first number that works."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Continuation:
    """Ids of the target, and for each how many bytes of the draft lie behind when it ends."""

    tokens: list[int]
    ends: list[int]


def continuation(both: Vocabularies, before: Sequence[int], draft: bytes, *, open_end: bool) -> Continuation:
    """How the target would write `draft` after the ids `before`.

    Args:
        draft: bytes; what is no whole character at the end is left out.
        open_end: the draft may go on within a word: then the last id is dropped, as it may merge with what follows
            (unless it is the only one).
    """
    tokens = _encoded(both, before, draft)
    if open_end and len(tokens) > 1:
        tokens = tokens[:-1]
    ends: list[int] = []
    for token in tokens:
        ends.append((ends[-1] if ends else 0) + len(both.target_bytes[token]))
    return Continuation(tokens=tokens, ends=ends)


def _encoded(both: Vocabularies, before: Sequence[int], draft: bytes) -> list[int]:
    """Ids of the draft; encoded alone where every encoding merges it with what stands before."""
    for tail in _tails(both, before):
        text = _characters(b"".join(both.target_bytes[token] for token in tail) + draft)
        ids = both.target.encode_inside(text)
        if ids[: len(tail)] == tail and len(ids) > len(tail):
            return ids[len(tail) :]
    ids = both.target.encode_inside(_characters(draft))
    return ids if draft.startswith(b"".join(both.target_bytes[token] for token in ids)) else []


def _tails(both: Vocabularies, before: Sequence[int]) -> Iterator[list[int]]:
    """Last ids of the text that `before` ends with, in several lengths, each beginning with a whole character."""
    longest: list[int] = []
    for token in reversed(before[-2 * _TAILS[0] :]):
        if token >= len(both.target_bytes) or not both.target_bytes[token]:  # padding of the vocabulary, control tokens
            break
        longest.append(token)
    longest.reverse()
    for size in _TAILS:
        tail = longest[-size:]
        while tail and _is_inside(both.target_bytes[tail[0]]):
            tail = tail[1:]
        if tail:
            yield tail


def _is_inside(text: bytes) -> bool:
    """Whether it begins within a character."""
    return text[0] & 0xC0 == 0x80


def _characters(text: bytes) -> str:
    """All but what is no whole character at the end; nothing where there is no character elsewhere."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start].decode() if error.reason == "unexpected end of data" else ""
