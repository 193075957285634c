"""Which leaves are whose when several drafters of one kind grow the same tree: a function of the text, so that nothing has
to be agreed on."""

from __future__ import annotations

from dataclasses import dataclass

from dist_spec.core.prefix import extend_digest
from dist_spec.core.tree import DraftTree


@dataclass(kw_only=True, slots=True)
class Share:
    """This drafter is number `index` of `count`."""

    index: int = 0
    count: int = 1

    def takes(self, tree: DraftTree, node: int) -> bool:
        """Whether a leaf is ours: it lies on the best chain, which all grow, or on a branch off it that is ours, by the
        branch's position and its first token.

        Whole branches and not single leaves, as nobody can grow below what only another has expanded.
        """
        branch, parent, children, root = -1, tree.parent, tree.children, tree.root
        while node != root:
            above = parent[node]
            if children[above][0] != node:
                branch = node
            node = above
        if branch < 0:
            return True
        digest = extend_digest(extend_digest(tree.length[branch], tree.token[parent[branch]]), tree.token[branch])
        return (digest >> 32) % self.count == self.index
