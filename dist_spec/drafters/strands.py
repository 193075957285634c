"""Strings that a model of another vocabulary drafts below leaves of the target's tree, token by token of its own. It knows
no model: whoever has one tells it what may follow a node.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dist_spec.core.types import Expansion
from dist_spec.drafters.base import ExpandRow
from dist_spec.drafters.follower import Follower
from dist_spec.drafters.reencode import continuation
from dist_spec.drafters.trie import Trie
from dist_spec.drafters.vocabularies import Vocabularies


@dataclass(frozen=True, kw_only=True, slots=True)
class Next:
    """What may follow a node of the drafter's tree: its own ids and their log probabilities, best first."""

    tokens: list[int]
    scores: list[float]


@dataclass(kw_only=True, slots=True)
class Strand:
    """One string under way.

    Attributes:
        wanted: bytes below the drafter's context that lead to the leaf; the string must begin with them.
        start: node where drafting begins, and `text`, the bytes down to it; it may lie beyond the leaf.
        chain: nodes drafted below it, with the bytes down to each.
        ended: the last of them ends the answer.
    """

    row: ExpandRow
    leaf: int
    follower: Follower
    wanted: bytes
    start: int
    text: bytes
    chain: list[tuple[int, bytes]] = field(default_factory=list)
    ended: bool = False

    @property
    def tip(self) -> int:
        return self.chain[-1][0] if self.chain else self.start

    def grow(self, both: Vocabularies, *, length: int) -> bool:
        """Go down along what is known; returns whether what follows the tip must be asked for."""
        while not self.ended and len(self.chain) < length:
            known: Next | None = self.follower.tree.features.get(self.tip)
            if known is None:
                return True
            if not known.tokens:
                return False
            self._step(both, known.tokens[0], known.scores[0])
        return False

    def _step(self, both: Vocabularies, token: int, score: float) -> None:
        before = self.chain[-1][1] if self.chain else self.text
        node = self.follower.step_down(self.tip, token, score=score)
        self.ended = token in both.drafter.eos_ids
        self.chain.append((node, before if self.ended else before + both.drafter_bytes[token]))

    def expansion(self, both: Vocabularies) -> Expansion:
        """The strings as the target would write them: the one drafted, and those that begin with another token."""
        trie = Trie()
        self._offer(trie, both, self.chain, ended=self.ended, open_end=True)
        known: Next | None = self.follower.tree.features.get(self.start)
        if known is not None:
            for token, score in list(zip(known.tokens, known.scores, strict=True))[1 : self.row.width]:
                node = self.follower.step_down(self.start, token, score=score)
                ended = token in both.drafter.eos_ids
                text = self.text if ended else self.text + both.drafter_bytes[token]
                self._offer(trie, both, [(node, text)], ended=ended, open_end=False)
        return trie.expansion()

    def _offer(
        self, trie: Trie, both: Vocabularies, chain: list[tuple[int, bytes]], *, ended: bool, open_end: bool
    ) -> None:
        """Add one string's ids with their log probabilities: that of the drafter's first token that covers each."""
        text = chain[-1][1] if chain else self.text
        if not text.startswith(self.wanted):
            return
        tree, draft = self.follower.tree, text[len(self.wanted) :]
        before = [*self.row.history, *self.row.tree.path_tokens(self.leaf)]
        found = continuation(both, before, draft, open_end=open_end and not ended)
        ends = [(len(self.text) - len(self.wanted), 0.0)]
        ends += [(len(covered) - len(self.wanted), tree.path[node] - tree.path[self.start]) for node, covered in chain]
        scores = [next((score for end, score in ends if end >= wanted), ends[-1][1]) for wanted in found.ends]
        if ended and both.target_end >= 0 and (not draft or found.ends[-1:] == [len(draft)]):
            trie.add([*found.tokens, both.target_end], [*scores, ends[-1][1]])
        else:
            trie.add(found.tokens, scores)


def begin_strand(both: Vocabularies, row: ExpandRow, leaf: int, follower: Follower) -> Strand | None:
    """Find the place of a leaf among the drafter's own nodes, by its bytes; None where there is none (control tokens)."""
    texts = [both.target_bytes[token] for token in row.tree.path_tokens(leaf)]
    if not all(texts) or not follower.context.ids:
        return None
    context = follower.context
    wanted = (b"" if context.held_in_ids else context.held) + b"".join(texts)
    node, text = _descend(both, follower, wanted)
    return Strand(row=row, leaf=leaf, follower=follower, wanted=wanted, start=node, text=text)


def _descend(both: Vocabularies, follower: Follower, wanted: bytes) -> tuple[int, bytes]:
    """The node that covers `wanted`, or goes beyond it, and its bytes; whole characters that no node has are encoded. What
    is left uncovered is part of a character."""
    tree, node, text = follower.tree, follower.tree.root, b""
    while len(text) < len(wanted):
        rest = wanted[len(text) :]
        below = [(both.drafter_bytes[tree.token[child]], child) for child in tree.children[node]]
        inside = [(part, child) for part, child in below if part and (rest.startswith(part) or part.startswith(rest))]
        if not inside:
            for token in both.drafter.encode_inside(rest.decode("utf-8", "ignore")):
                node, text = follower.step_down(node, token), text + both.drafter_bytes[token]
            return node, text
        part, node = max(inside, key=lambda one: (one[0] == rest, tree.path[one[1]]))
        text += part
    return node, text
