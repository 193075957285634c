"""Two vocabularies side by side: which tokens of a drafter are tokens of the target, byte for byte, and whether that is
enough to draft with. It knows tokenizers and no models.

Token-level intersection and string-level match: Timor et al., arXiv 2502.05202; the choice between them:
docs/adr/0014-other-vocabularies.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dist_spec.errors import TokenizerMismatchError
from dist_spec.models.token_bytes import is_single_byte
from dist_spec.models.tokenizer import Tokenizer, first_difference

Way: TypeAlias = Literal["same", "intersection", "text"]

ENOUGH = 0.9
"""Share of a sample text's drafter tokens that must be tokens of the target for the intersection to be chosen."""

SAMPLE = """
The committee will meet again on Thursday, 14 March 2024, to decide whether the bridge should be repaired or replaced;
neither plan is cheap (about $2,350,000 and $4.1 million).

"It's not that we don't care," said Dr. Alvarez, "but we can't spend money we haven't got." She's right, I think.

1. Mix the flour, sugar and salt.
2. Add 3 eggs and 250 ml of milk, then stir until smooth.
3. Bake at 180 degrees for 35-40 minutes.

```python
def mean(values: list[float]) -> float:
    if not values:
        raise ValueError('no values')
    return sum(values) / len(values)
```

Let x be the number of apples. Then 3x + 7 = 22, so 3x = 15 and x = 5. **Answer:** 5

The capital of France is Paris. In French: « Où est la gare, s'il vous plaît ? » In German: Wo ist der Bahnhof, bitte?
"""
"""Prose, dialogue, lists, code, arithmetic and some words of other languages, as chat models write them."""


class Vocabularies:
    """A target's and a drafter's tokenizers.

    Attributes:
        to_target: (drafter's size,) int64, the target's id of each drafter id with the same bytes (end-of-sequence ids go
            to the target's); -1: none.
        to_drafter: (target's size,) int64, the other way.

    Raises:
        TokenizerMismatchError: one of them does not say what bytes its tokens stand for.
    """

    def __init__(self, target: Tokenizer, drafter: Tokenizer) -> None:
        self.target, self.drafter = target, drafter
        self.target_bytes = _bytes_of(target, "target")
        self.drafter_bytes = _bytes_of(drafter, "drafter")
        self.to_target = _mapped(self.drafter_bytes, _by_bytes(target, self.target_bytes))
        self.to_drafter = _mapped(self.target_bytes, _by_bytes(drafter, self.drafter_bytes))
        if target.eos_ids and drafter.eos_ids:
            self.to_target[list(drafter.eos_ids)] = self.target_end
            self.to_drafter[list(target.eos_ids)] = _end(drafter)
        self._pair_controls()

    @property
    def target_end(self) -> int:
        """The id with which the target ends an answer; -1: it has none."""
        return _end(self.target)

    def _pair_controls(self) -> None:
        """For the context alone: a control token that both spell alike is the same one."""
        spelled = {self.drafter.token(i): i for i, text in enumerate(self.drafter_bytes) if not text}
        spelled.pop("", None)
        for token_id, text in enumerate(self.target_bytes):
            if not text and (same := spelled.get(self.target.token(token_id))) is not None:
                self.to_drafter[token_id] = same

    @cached_property
    def share(self) -> float:
        """How many of the drafter's text tokens are tokens of the target."""
        texts = np.array([bool(text) for text in self.drafter_bytes])
        return float((self.to_target[texts] >= 0).mean()) if texts.any() else 0.0

    @cached_property
    def mass(self) -> float:
        """How many of the drafter's tokens in the sample text are tokens of the target."""
        ids = np.array(self.drafter.encode(SAMPLE, add_special=False), dtype=np.int64)
        return float((self.to_target[ids] >= 0).mean())

    def columns(self, width: int) -> Columns:
        """What a drafter restricted to common tokens chooses from.

        Args:
            width: of the drafter's logits; ids beyond its tokenizer never map.
        """
        ours = np.flatnonzero(self.to_target[:width] >= 0)
        theirs = self.to_target[ours]
        named = (
            self.to_drafter[theirs] == ours
        )  # of several ids with the same bytes, the one that stands in the context
        order = np.lexsort((ours, ~named, theirs))
        ours, theirs = ours[order], theirs[order]
        first = np.ones(len(theirs), dtype=np.bool_)
        first[1:] = theirs[1:] != theirs[:-1]
        column = np.cumsum(first) - 1
        place = np.arange(len(theirs)) - np.flatnonzero(first)[column]  # 0 for the first of a column, then 1, ...
        more = [(ours[place == i], column[place == i]) for i in range(1, int(place.max(initial=0)) + 1)]
        return Columns(target_ids=theirs[first], drafter_ids=ours[first], more=tuple(more))


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Tokens common to both vocabularies.

    Attributes:
        target_ids: (m,) ascending, all different.
        drafter_ids: (m,) a drafter id of each.
        more: further drafter ids with the same bytes, and which of the m they belong to, at most one of each per pair of
            arrays: their probabilities add up.
    """

    target_ids: npt.NDArray[np.int64]
    drafter_ids: npt.NDArray[np.int64]
    more: tuple[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], ...] = ()


def choose_way(both: Vocabularies) -> Way:
    """How a drafter with this vocabulary serves the target, where nobody said so."""
    if are_same(both.target, both.drafter):
        return "same"
    return "intersection" if both.mass >= ENOUGH else "text"


def are_same(target: Tokenizer, drafter: Tokenizer) -> bool:
    """Whether ids mean the same to both as far as both know them (padded vocabularies differ in length)."""
    return first_difference(target, drafter) is None


def _bytes_of(tokenizer: Tokenizer, whose: str) -> list[bytes]:
    found = tokenizer.token_bytes
    if found is None:
        raise TokenizerMismatchError(
            f"the {whose}'s tokenizer does not say what bytes its tokens stand for (neither byte-level nor SentencePiece)",
            fix="use a drafter with the target's own tokenizer, or kind: ngram or suffix, which fit every target",
        )
    return found


def _by_bytes(tokenizer: Tokenizer, texts: Sequence[bytes]) -> dict[bytes, int]:
    """The canonical id of each byte string: not a byte to fall back to where there is a token proper, then the first."""
    found: dict[bytes, int] = {}
    for token_id, text in enumerate(texts):
        if not text:
            continue
        other = found.setdefault(text, token_id)
        if other != token_id and len(text) == 1 and is_single_byte(tokenizer.token(other)):
            found[text] = token_id
    return found


def _mapped(texts: Sequence[bytes], ids: dict[bytes, int]) -> npt.NDArray[np.int64]:
    return np.array([ids.get(text, -1) if text else -1 for text in texts], dtype=np.int64)


def _end(tokenizer: Tokenizer) -> int:
    """Of several end-of-sequence ids the one that the chat template writes, else the first."""
    template = tokenizer.chat_template or ""
    ids = tokenizer.eos_ids
    return next((i for i in ids if (token := tokenizer.token(i)) and token in template), ids[0] if ids else -1)
