"""What a user picks from: expected tokens per verification, seconds and speed for chains and trees of several sizes, from
measured ranks and measured seconds. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dist_spec.bench.score.ranks import Trail, Tree, chain_length, tree_lengths
from dist_spec.core.control.costs import VerifyCost

CHAINS = (1, 2, 3, 4, 6, 8)
TREES = (4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Seconds:
    """Measured on one core (or the configured devices), nothing else running.

    Attributes:
        target_token_s: the target's forward of one token.
        draft_token_s: one step of the drafter with one leaf (a further guess of a chain).
        draft_first_s: its step below the committed text, with what was committed since.
        draft_wide_s: one step with `width` leaves.
        verify: whole verifications by number of nodes.
    """

    target_token_s: float
    draft_token_s: float
    draft_first_s: float
    draft_wide_s: float
    width: int
    verify: VerifyCost

    @property
    def cost_ratio(self) -> float:
        """A drafted token against a one-token forward of the target."""
        return self.draft_token_s / self.target_token_s

    def draft_s(self, leaves: int) -> float:
        """One step with so many leaves, on a line through the two that were measured."""
        if self.width <= 1:
            return self.draft_token_s
        slope = max(self.draft_wide_s - self.draft_token_s, 0.0) / (self.width - 1)
        return self.draft_token_s + slope * (leaves - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One line of the table.

    Attributes:
        nodes, depth: of the tree (of a chain they are equal).
        length: expected tokens per verification, over all positions alike.
        verify_s: one verification.
        draft_s: drafting all of it from nothing.
        ahead: tokens per second if guesses are always ready (drafted during verifications); never above what drafting
            token by token allows.
        asked: tokens per second if each is drafted when it is needed.
        speedup_ahead, speedup_asked: over plain decoding, 1 / seconds of a verification without nodes.
    """

    shape: Literal["chain", "tree"]
    nodes: int
    depth: int
    length: float
    verify_s: float
    draft_s: float
    ahead: float
    asked: float
    speedup_ahead: float
    speedup_asked: float


def choices(
    texts: Sequence[Sequence[Trail]],
    seconds: Seconds,
    *,
    chains: Sequence[int] = CHAINS,
    trees: Sequence[int] = TREES,
    one_by_one: bool = True,
) -> list[Choice]:
    """Chains, then trees, smallest first.

    Args:
        one_by_one: the drafter makes one token of depth per step (models do; lookups make chains).
    """
    everything = [trail for text in texts for trail in text]
    rows: list[Choice] = []
    for depth in chains:
        drafting = seconds.draft_first_s + (depth - 1) * seconds.draft_token_s if one_by_one else seconds.draft_first_s
        rows.append(
            _choice("chain", depth, depth, chain_length(everything, depth), drafting, seconds, one_by_one=one_by_one)
        )
    for size, (tree, length) in zip(trees, tree_lengths(texts, trees), strict=True):
        nodes = len(tree.paths)
        if not nodes or (nodes < size and rows and rows[-1].shape == "tree" and rows[-1].nodes >= nodes):
            break  # the drafter's guesses make no larger tree
        drafting = _tree_s(tree, seconds) if one_by_one else seconds.draft_first_s
        rows.append(_choice("tree", nodes, tree.depth, length, drafting, seconds, one_by_one=one_by_one))
    return rows


def _tree_s(tree: Tree, seconds: Seconds) -> float:
    first = seconds.draft_first_s - seconds.draft_token_s
    return first + sum(seconds.draft_s(leaves) for leaves in tree.expanded())


def _choice(
    shape: Literal["chain", "tree"],
    nodes: int,
    depth: int,
    length: float,
    draft_s: float,
    seconds: Seconds,
    *,
    one_by_one: bool,
) -> Choice:
    verify_s, plain = seconds.verify.seconds(1, nodes), 1.0 / seconds.verify.seconds(1, 0)
    ahead, asked = length / verify_s, length / (verify_s + draft_s)
    if one_by_one:
        ahead = min(ahead, 1.0 / seconds.draft_token_s)
    return Choice(
        shape=shape,
        nodes=nodes,
        depth=depth,
        length=length,
        verify_s=verify_s,
        draft_s=draft_s,
        ahead=ahead,
        asked=asked,
        speedup_ahead=ahead / plain,
        speedup_asked=asked / plain,
    )
