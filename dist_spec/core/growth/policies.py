"""The four growth policies. `none` drafts when asked; `optimistic` runs one chain ahead; `best_first` grows a tree by
path probability; `fan_out` prepares a continuation for every likely outcome of the verification in flight."""

from __future__ import annotations

import math
from functools import partial
from typing import assert_never

from dist_spec.core.draft import Draft
from dist_spec.core.growth.base import Growth, best_leaves, chain_tip
from dist_spec.core.growth.pace import Pace
from dist_spec.core.growth.share import Share
from dist_spec.core.settings import Speculation
from dist_spec.core.tree import DraftTree

_LIKELY = math.log(0.5)
"""Path score from which on a leaf is expanded although enough is ready."""


class OnDemand:
    """`none`: nothing is drafted before it is asked for; then `num_draft_tokens` steps (synchronous speculation)."""

    name = "none"

    def __init__(self, settings: Speculation) -> None:
        chain = settings.verify_shape == "chain"
        self.num_leaves = 1 if chain else settings.num_leaves
        self.num_children = 1 if chain else settings.num_children
        self._steps = settings.num_draft_tokens

    def leaves(self, draft: Draft, limit: int) -> list[int]:
        if not draft.asked or draft.steps_since_ask >= self._steps:
            return []
        return best_leaves(draft.tree, limit=min(limit, self.num_leaves), max_depth=self._steps)

    def ready(self, draft: Draft) -> bool:
        return draft.steps_since_ask >= self._steps or not self.leaves(draft, 1)


class BestFirst:
    """`best_first`: the leaves of highest path probability below the last known head, which covers the outcomes of the
    verification in flight and what lies beyond them by itself. `optimistic` is the same with one leaf and one child.

    Args:
        pace: caps the depth.
        share: which leaves are left to other drafters.
    """

    def __init__(self, settings: Speculation, *, chain: bool, pace: Pace, share: Share) -> None:
        self.name = "optimistic" if chain else "best_first"
        self.num_leaves = 1 if chain else settings.num_leaves
        self.num_children = 1 if chain else settings.num_children
        self._settings = settings
        self._pace = pace
        self._share = share

    def leaves(self, draft: Draft, limit: int) -> list[int]:
        if len(draft.tree) >= self._settings.max_nodes:
            return []
        tree, settings = draft.tree, self._settings
        leaves = best_leaves(
            tree,
            limit=min(limit, self.num_leaves),
            max_depth=self._pace.depth_cap(settings.num_draft_tokens),
            takes=partial(self._share.takes, tree) if self._share.count > 1 else None,
        )
        if 0 < settings.lookahead <= tree.size():
            return [leaf for leaf in leaves if tree.score(leaf) > _LIKELY]
        return leaves

    def ready(self, draft: Draft) -> bool:
        """What survived is delivered as it stands; on a miss `wait` delivers after one step, `draft` after
        `num_draft_tokens` of them."""
        if not draft.missed or not self.leaves(draft, 1):
            return True
        match self._settings.on_miss:
            case "plain":
                return True
            case "wait":
                return not draft.tree.is_empty()
            case "draft":
                return draft.steps_since_ask >= self._settings.num_draft_tokens
            case _:
                assert_never(self._settings.on_miss)


class FanOut:
    """`fan_out` (SSD/Saguaro, arXiv 2603.03251): while the delivered chain is verified, `fan_out` likely next tokens
    after every number of accepted tokens are each continued by a chain. Served by a question after the verdict; before
    the first one, and after a plain step, the outcomes are those of one token."""

    name = "fan_out"

    def __init__(self, settings: Speculation) -> None:
        self.num_leaves = settings.num_leaves
        self.num_children = settings.fan_out + 1
        self._settings = settings

    def leaves(self, draft: Draft, limit: int) -> list[int]:
        tree, depth = draft.tree, self._settings.num_draft_tokens
        if draft.asked:
            tip = chain_tip(tree, tree.root, max_depth=depth)
            return [] if tip is None else [tip]
        tips: list[int] = []
        for trunk, candidates in _outcomes(tree, draft.trunk, self._settings.fan_out):
            if not tree.expanded[trunk]:
                tips.append(trunk)
            for candidate in candidates:
                tip = chain_tip(tree, candidate, max_depth=tree.depth(candidate) + depth)
                if tip is not None:
                    tips.append(tip)
        return tips[:limit]

    def ready(self, draft: Draft) -> bool:
        tree = draft.tree
        if self._settings.on_miss == "plain" and tree.is_empty():
            return True
        return _drafted(draft, self._settings.num_draft_tokens)


def _drafted(draft: Draft, depth: int) -> bool:
    """The best chain is `depth` long, or cannot get longer."""
    return chain_tip(draft.tree, draft.tree.root, max_depth=depth) is None


def _outcomes(tree: DraftTree, trunk: list[int], fan_out: int) -> list[tuple[int, list[int]]]:
    """Per trunk node (the root first): the node and its `fan_out` best children off the trunk."""
    outcomes: list[tuple[int, list[int]]] = []
    node: int | None = tree.root
    for token in [*trunk, -1]:
        if node is None:
            break
        off = [child for child in tree.children[node] if tree.token[child] != token]
        outcomes.append((node, off[:fan_out]))
        node = tree.child(node, token) if token >= 0 else None
    return outcomes


def build_growth(settings: Speculation, *, pace: Pace | None = None, share: Share | None = None) -> Growth:
    """The policy that `settings.growth` names.

    Args:
        pace, share: told to it from outside while it works; without them nothing is known and nothing shared.
    """
    pace, share = pace or Pace(), share or Share()
    match settings.growth:
        case "none":
            return OnDemand(settings)
        case "optimistic":
            return BestFirst(settings, chain=True, pace=pace, share=share)
        case "best_first":
            return BestFirst(settings, chain=False, pace=pace, share=share)
        case "fan_out":
            return FanOut(settings)
        case _:
            assert_never(settings.growth)
