"""One request as a drafter knows it: the committed prefix, the draft tree below it, and what is asked of the drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dist_spec.core.prefix import Prefix
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Sampling


@dataclass(kw_only=True, slots=True)
class Draft:
    """State of one request at the drafter.

    Attributes:
        prefix: committed tokens; `tree`'s root stands for the last of them.
        slots: parallel to the prefix, the tree `slot` a token had when it was committed (-1: none).
        asked: the leader waits for a proposal at the present head.
        steps_since_ask: draft steps taken for this request since then.
        trunk: tokens of the chain last delivered from this very head (fan_out prepares its outcomes).
    """

    request: str
    generation: int
    prefix: Prefix
    slots: list[int]
    prompt_length: int
    generated_offset: int
    sampling: Sampling
    tree: DraftTree
    asked: bool = False
    steps_since_ask: int = 0
    trunk: list[int] = field(default_factory=list)
    needed_s: float = float("-inf")

    @property
    def key(self) -> tuple[str, int]:
        return self.request, self.generation

    def commit(self, tokens: Sequence[int]) -> None:
        """Follow the target: drop what became impossible, keep what survives below the new head."""
        if not tokens:
            return
        self.slots.extend(self.tree.advance(tokens))
        self.prefix.extend(tokens)
        self.asked = False
        self.trunk = []

    def ask(self) -> None:
        self.asked = True
        self.steps_since_ask = 0
