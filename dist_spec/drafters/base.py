"""What every drafter looks like to the drafting loop. A drafter turns leaves of a draft tree into guesses; it knows
nothing of messages, peers or time. Which leaves to expand is decided by the growth policy, not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from dist_spec.core.prefix import EMPTY_DIGEST, extend_digest
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Expansion, HalfArray, Sampling

RequestKey: TypeAlias = tuple[str, int]
"""(request id, generation)"""


@dataclass(kw_only=True, slots=True)
class ExpandRow:
    """Leaves of one request to expand in one draft step.

    Attributes:
        key: the request.
        history: committed token ids as this drafter knows them (prompt, then generated); only ever grows for one key.
            The tree's root stands for its last token.
        history_slots: parallel to `history`: the `slot` that the token's tree node had when it was committed, or -1 when
            it was not a node or not yet fed. Values >= 0 come before -1 among the tokens added by one commit.
        prompt_length: how many of `history` are prompt.
        generated_offset: added to a generated token's index to get its noise index.
        sampling: the request's sampling record (drafters rank guesses with the target's own noise).
        tree: the drafter's tree. A drafter may write `tree.slot[node]` (a column of ints that travels with the node
            through pruning and renumbering, -1 at birth) and reads `token`, `parent`, `root`; it changes nothing else.
        leaves: node ids to expand; `tree.root` among them means: guess what follows the committed text.
        width: guesses wanted directly below each leaf.
        digest: names `history` (see `core.prefix`).
    """

    key: RequestKey
    history: list[int]
    history_slots: list[int]
    prompt_length: int
    generated_offset: int
    sampling: Sampling
    tree: DraftTree
    leaves: list[int]
    width: int
    digest: int = EMPTY_DIGEST

    def noise_index(self, node: int) -> int:
        """Noise index of the token that follows `node`."""
        return len(self.history) - self.prompt_length + self.generated_offset + self.tree.depth(node)

    def digest_before(self, node: int) -> int:
        """Digest of the text up to and including `node`: it names the prefix that the token after it is drawn for."""
        digest = self.digest
        for token in self.tree.path_tokens(node):
            digest = extend_digest(digest, token)
        return digest


class Drafter(Protocol):
    """One kind of drafter. `expand` is one draft step: at most one forward pass of its model."""

    kind: str

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        """Guesses for every leaf of every row, in order. A leaf without a guess gets `Expansion.empty()`.

        A request is new when its key was not seen before; catching up on `history` (prefill) is the drafter's business
        and may be done in the same step.
        """
        ...

    def close(self, key: RequestKey) -> None:
        """Forget a request (unknown keys are ignored)."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A drafter that keeps something of ended requests."""

    def forget(self) -> None:
        """Drop what ended requests left; running ones stay as they are."""
        ...


@runtime_checkable
class Featured(Protocol):
    """A drafter that reads the target's hidden features."""

    def features(self, key: RequestKey, first_position: int, rows: HalfArray) -> None:
        """What the target computed when it read the tokens at `first_position`, `first_position` + 1, ... of a request.

        They belong to the text that the next `expand` shows as `history`. They may be missing, come late, twice or in any
        order, also for a request that `expand` has not shown yet.

        Args:
            rows: (n, size) float16; not to be written to.
        """
        ...
