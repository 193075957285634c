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
        missed: nothing had survived when it asked.
        steps_since_ask: draft steps taken for this request since then.
        held: new nodes not published yet (see `DraftSession.expanded`).
        trunk: tokens of the chain last delivered from this very head (`fan_out` prepares its outcomes).
        heard_s, needed_s: when the leader last spoke of this request; when it was last asked for what is missing.
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
    missed: bool = False
    steps_since_ask: int = 0
    held: list[int] = field(default_factory=list)
    trunk: list[int] = field(default_factory=list)
    heard_s: float = 0.0
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
        self.needed_s = float("-inf")  # a new gap may be asked about at once

    def ask(self) -> None:
        self.asked = True
        self.missed = self.tree.is_empty()
        self.steps_since_ask = 0
