"""A target's committed ids as a drafter with another tokenizer reads them. Derived data: what it gets wrong costs
acceptance, never output, and the target's ids are never made from it.

The text is encoded from a recent place on, bytes of an unfinished character are held back, control tokens separate
texts. It knows no models and no trees.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from dist_spec.drafters.vocabularies import Vocabularies

_SETTLE_ABOVE = 96
_SETTLE_AT = 24
"""Ids left in the open tail when the rest is settled; what is encoded per commit is between the two."""


class DerivedContext:
    """The drafter's ids of one request.

    Attributes:
        ids: of all whole characters; may be empty while there are none.
        held: bytes at the end that are no whole character yet.
        held_in_ids: whether `ids` ends with ids of exactly these bytes all the same.
    """

    def __init__(self, both: Vocabularies) -> None:
        self._both = both
        self.ids: list[int] = _opening(both)
        self._characters = codecs.getincrementaldecoder("utf-8")("strict")
        self._holding: list[int] = []  # tokens that end within the bytes held back
        self._start = len(self.ids)
        self._tail = ""
        self._at_start = True
        self._settle_above = _SETTLE_ABOVE

    @property
    def held(self) -> bytes:
        return self._characters.getstate()[0]

    @property
    def held_in_ids(self) -> bool:
        return bool(self.held) and self._exact(self.held) is not None

    def extend(self, tokens: Sequence[int]) -> int:
        """Take in committed target ids; returns how many of the ids before are unchanged."""
        before = self.ids
        known = before[: self._start]
        changed = len(known)
        fresh: list[str] = []
        for token in tokens:
            text = self._both.target_bytes[token] if 0 <= token < len(self._both.target_bytes) else b""
            try:
                more = self._characters.decode(text, final=not text)
            except UnicodeDecodeError:
                self._separate(known, fresh, self._broken(token if text else None))
            else:
                fresh.append(more)
                if more:
                    self._holding = []
                if self.held:
                    self._holding.append(token)
            if not text:
                self._separate(known, fresh, self._control(token))
                self._at_start = True
        self.ids = [*known, *self._encode("".join(fresh), start=len(known))]
        if self.held_in_ids:
            self.ids += self._exact(self.held) or []
        return changed + _common(before[changed:], self.ids[changed:])

    def _exact(self, text: bytes) -> list[int] | None:
        """The drafter's ids of the tokens held back, where they are these very bytes and all of them are its own."""
        ids: list[int] = self._both.to_drafter[self._holding].tolist()
        whole = b"".join(self._both.target_bytes[token] for token in self._holding) == text
        return ids if whole and -1 not in ids else None

    def _broken(self, token: int | None) -> list[int]:
        """Ids of bytes that turned out to be no character; `token` is the one that showed it."""
        text = self.held
        if token is not None:
            text += self._both.target_bytes[token]
            self._holding.append(token)
        ids = self._exact(text)
        return self._both.drafter.encode_inside(text.decode("utf-8", "replace")) if ids is None else ids

    def _control(self, token: int) -> list[int]:
        """The drafter's id of a control token, or its spelling."""
        same = int(self._both.to_drafter[token]) if 0 <= token < len(self._both.to_drafter) else -1
        return [same] if same >= 0 else self._both.drafter.encode_inside(self._both.target.token(token))

    def _separate(self, known: list[int], fresh: list[str], ids: Sequence[int]) -> None:
        """Put `ids` behind the text so far, which is settled by that."""
        known += self._encode("".join(fresh), start=len(known), settle=False)
        known += ids
        fresh.clear()
        self._characters.reset()
        self._holding = []
        self._start, self._tail = len(known), ""

    def _encode(self, fresh: str, *, start: int, settle: bool = True) -> list[int]:
        """Ids of the open tail with `fresh` at its end."""
        if self._at_start and fresh:
            fresh = fresh[1:] if self._both.target.adds_space and fresh[0] == " " else fresh
            self._at_start = False
        self._start = start
        self._tail += fresh
        if not self._tail:
            return []
        ids, begins = self._both.drafter.pieces(self._tail)
        if settle and len(ids) > self._settle_above:
            self._settle(ids, begins)
        return ids

    def _settle(self, ids: list[int], begins: list[int]) -> None:
        """Leave only the last part of the tail open, cut where that part alone is encoded as it is within the whole."""
        for at in range(len(ids) - _SETTLE_AT, len(ids) - _SETTLE_AT - 4, -1):
            for cut in (begins[at], begins[at] - 1, begins[at] + 1):  # with or without the space before a word
                if 0 < cut < len(self._tail) and self._both.drafter.pieces(self._tail[cut:])[0] == ids[at:]:
                    self._start += at
                    self._tail = self._tail[cut:]
                    self._settle_above = _SETTLE_ABOVE
                    return
        self._settle_above = 2 * len(ids)


def _opening(both: Vocabularies) -> list[int]:
    """What the drafter's tokenizer puts before a text."""
    with_all = both.drafter.encode("a")
    alone = both.drafter.encode("a", add_special=False)
    first = next((i for i in range(len(with_all)) if with_all[i : i + len(alone)] == alone), 0)
    return with_all[:first]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    shorter = min(len(a), len(b))
    return next((i for i in range(shorter) if a[i] != b[i]), shorter)
