"""Takes a drafter's guesses into its draft trees, with calibrated scores, and says which of them are worth sending now. It
knows no messages and no time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dist_spec.core.control.scoring import Scorer, labels
from dist_spec.core.draft import Draft
from dist_spec.core.messages import NO_FLOOR
from dist_spec.core.settings import Speculation
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Expansion, FloatArray

_OUT_OF_REACH = math.log(1e-4)


class Guesses:
    """What all requests of one drafter have in common.

    Attributes:
        scorer: learns from every commit what the drafter's scores mean; unused where choices are blind (law 5).
        floor: log probability of acceptance below which the leader would not verify a node at present. A node whose own
            edge lies below it is kept back in `tree.withheld`, with what hangs on it, as no head that may come would make
            it worth verifying (docs/adr/0011-price-and-floor.md). Growth does not look at it.
    """

    def __init__(self, settings: Speculation) -> None:
        self.settings = settings
        self.scorer = Scorer()
        self.floor = NO_FLOOR

    def take(
        self, drafts: Sequence[Draft], leaves: Sequence[Sequence[int]], expansions: Sequence[Sequence[Expansion]]
    ) -> list[list[int]]:
        """Graft one draft step's guesses; returns the new nodes per request, withheld ones included."""
        if self.settings.blind:
            return [
                [node for leaf, one in zip(some, below, strict=True) for node in _graft_blind(draft.tree, leaf, one)]
                for draft, some, below in zip(drafts, leaves, expansions, strict=True)
            ]
        flat = [one for below in expansions for one in below]
        depths = [draft.tree.depth(leaf) for draft, some in zip(drafts, leaves, strict=True) for leaf in some]
        scored = zip(*self.scorer.score(flat, depths), strict=True)
        fresh: list[list[int]] = []
        for draft, some, below in zip(drafts, leaves, expansions, strict=True):
            nodes: list[int] = []
            for leaf, one in zip(some, below, strict=True):
                scores, serial = next(scored)
                nodes += _graft(draft.tree, leaf, one, scores=scores, serial=serial)
            fresh.append(nodes)
        return fresh

    def worth_sending(self, draft: Draft, nodes: Sequence[int]) -> list[int]:
        """Those of these nodes (parents first) that may be published, pushed or asked for; the others wait."""
        tree, floor = draft.tree, self.floor
        path, parent, withheld = tree.path, tree.parent, tree.withheld
        withheld.discard(tree.root)
        reach = self._reach(tree)
        worth: list[int] = []
        for node in nodes:
            above = parent[node]
            if path[node] < reach or path[node] - path[above] < floor or above in withheld:
                withheld.add(node)
            else:
                withheld.discard(node)
                worth.append(node)
        return worth

    def lifted(self, draft: Draft) -> list[int]:
        """Withheld nodes that a commit, or a lower floor, made worth sending."""
        tree, floor = draft.tree, self.floor
        path, parent, withheld, root = tree.path, tree.parent, tree.withheld, tree.root
        withheld.discard(root)
        reach = self._reach(tree)
        lifted: list[int] = []
        for node in sorted(withheld):
            above = parent[node]
            if (
                path[node] >= reach
                and path[node] - path[above] >= floor
                and above not in withheld
                and _is_below(tree, node)
            ):
                withheld.discard(node)
                lifted.append(node)
        return lifted

    def _reach(self, tree: DraftTree) -> float:
        """Least path score of a node that some text may lead to before the next commit is heard of."""
        return tree.path[tree.root] + _OUT_OF_REACH if self.settings.adaptive else -math.inf

    def committed(self, draft: Draft, tokens: Sequence[int]) -> None:
        """Learn from committed tokens; to be told before the root moves along them."""
        if draft.tree.features:
            for serials, hits in labels(draft.tree, tokens).values():
                self.scorer.learn(serials, hits, num_tokens=len(tokens))


def _is_below(tree: DraftTree, node: int) -> bool:
    """Whether a node still hangs below the root."""
    top = tree.length[tree.root]
    while tree.length[node] > top:
        node = tree.parent[node]
    return node == tree.root


def _graft(tree: DraftTree, leaf: int, expansion: Expansion, *, scores: FloatArray, serial: int) -> list[int]:
    """Graft guesses below a leaf; inner nodes of a sub-tree count as expanded. Returns the nodes that are new."""
    before = len(tree)
    ids = tree.graft(leaf, expansion.tokens, expansion.parents, scores, laws=expansion.laws)
    new = [node for node in ids if node >= before]
    if len(new) == len(ids):
        tree.features.update(zip(ids, range(serial, serial + len(ids)), strict=True))
    else:
        tree.features.update((node, serial + i) for i, node in enumerate(ids) if node >= before)
    _mark_expanded(tree, ids, expansion)
    return new


def _graft_blind(tree: DraftTree, leaf: int, expansion: Expansion) -> list[int]:
    """The same where the first draw below a prefix is the only one, and no score is looked at."""
    before = len(tree)
    scores = np.zeros_like(expansion.scores)
    ids = tree.graft(leaf, expansion.tokens, expansion.parents, scores, laws=expansion.laws, first_counts=True)
    _mark_expanded(tree, ids, expansion)
    return [node for node in ids if node >= before]


def _mark_expanded(tree: DraftTree, ids: Sequence[int], expansion: Expansion) -> None:
    for parent in set(np.asarray(expansion.parents).tolist()):
        if parent >= 0 and ids[parent] >= 0:
            tree.expanded[ids[parent]] = True
