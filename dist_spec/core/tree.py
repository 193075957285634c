"""The draft tree: a trie of guesses below one prefix, as parallel arrays. It knows nothing of who made the guesses.

Used at both ends: the drafter grows one, the leader mirrors it. Node ids are positions in the arrays, parents come
before children, and path scores are sums of edge scores (log probabilities, <= 0), so a parent never scores below its
child and the best n nodes are closed under ancestors by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dist_spec.core.types import FloatArray, IntArray

_SHIFT = 32
_COMPACT_ABOVE = 512
_HOPELESS = -65504.0
"""Lowest edge score: the lowest finite 16-bit float, so that no score and no sum of scores is ever infinite."""


class DraftTree:
    """Trie whose root stands for the last token of a prefix of `length` tokens.

    Attributes (parallel lists, indexed by node id):
        token, parent: parent of the root is -1.
        path: cumulative log score; only differences mean something.
        length: prefix length once the node is committed.
        slot: a column of ints that belongs to the drafter (-1 at birth) and follows the node through renumbering.
        expanded: whether guesses below the node were asked for.
        children: ids of children, best path score first.

    Args:
        compact_above: nodes in the arrays beyond which `advance` drops those that are no longer below the root.
    """

    __slots__ = (
        "_compact_above",
        "_index",
        "children",
        "expanded",
        "length",
        "parent",
        "path",
        "root",
        "slot",
        "token",
    )

    def __init__(self, length: int, token: int = -1, *, compact_above: int = _COMPACT_ABOVE) -> None:
        self._compact_above = compact_above
        self._restart(length, token)

    def _restart(self, length: int, token: int) -> None:
        self.token: list[int] = [token]
        self.parent: list[int] = [-1]
        self.path: list[float] = [0.0]
        self.length: list[int] = [length]
        self.slot: list[int] = [-1]
        self.expanded: list[bool] = [False]
        self.children: list[list[int]] = [[]]
        self._index: dict[int, int] = {}
        self.root = 0

    def __len__(self) -> int:
        """Nodes in the arrays, the root and nodes no longer below it included; see `nodes` for those that count."""
        return len(self.token)

    @property
    def base_length(self) -> int:
        return self.length[self.root]

    def depth(self, node: int) -> int:
        """Edges between the root and `node` (which must be below it)."""
        return self.length[node] - self.length[self.root]

    def score(self, node: int) -> float:
        """Log of the estimated probability that everything from the root to `node` is committed."""
        return self.path[node] - self.path[self.root]

    def edge(self, node: int) -> float:
        return self.path[node] - self.path[self.parent[node]]

    def child(self, node: int, token: int) -> int | None:
        return self._index.get(node << _SHIFT | token)

    def path_tokens(self, node: int) -> list[int]:
        """Tokens from below the root down to and including `node`; empty for the root."""
        tokens: list[int] = []
        token, parent, root = self.token, self.parent, self.root
        while node != root:
            tokens.append(token[node])
            node = parent[node]
        tokens.reverse()
        return tokens

    def nodes(self) -> list[int]:
        """Ids from the root down, parents before children."""
        order = [self.root]
        children = self.children
        for node in order:
            order.extend(children[node])
        return order

    def size(self) -> int:
        """Number of nodes below the root."""
        return len(self.nodes()) - 1

    def is_empty(self) -> bool:
        return not self.children[self.root]

    def _add(self, above: int, token: int, score: float) -> int:
        """A new node; a score above 0 counts as 0, one that is no number or too low as hopeless."""
        path = self.path[above] + (score if _HOPELESS < score < 0.0 else 0.0 if score >= 0.0 else _HOPELESS)
        node = len(self.token)
        self.token.append(token)
        self.parent.append(above)
        self.path.append(path)
        self.length.append(self.length[above] + 1)
        self.slot.append(-1)
        self.expanded.append(False)
        self.children.append([])
        self._index[above << _SHIFT | token] = node
        siblings = self.children[above]
        if siblings and self.path[siblings[-1]] < path:
            at = next(i for i, sibling in enumerate(siblings) if self.path[sibling] < path)
            siblings.insert(at, node)
        else:
            siblings.append(node)
        return node

    def graft(self, anchor: int, tokens: IntArray, parents: IntArray, scores: FloatArray) -> list[int]:
        """Merge a sub-tree below `anchor` (edge scores, parents relative, -1 = anchor); repeated nodes are harmless.

        A node that is there keeps its first score: guesses from one drafter repeat themselves exactly, and law 5 forbids
        preferring one draw over another. Returns the node id of every entry.
        """
        ids: list[int] = []
        index = self._index
        for token, parent, score in zip(tokens.tolist(), parents.tolist(), scores.tolist(), strict=True):
            above = anchor if parent < 0 else ids[parent]
            node = index.get(above << _SHIFT | token)
            if node is None:
                node = self._add(above, token, score)
            ids.append(node)
        return ids

    def graft_late(self, since: Sequence[int], tokens: IntArray, parents: IntArray, scores: FloatArray) -> int:
        """Merge a sub-tree whose base lies `len(since)` tokens above the root; `since` are the tokens committed after it.

        Late is not useless (law 4): what agrees with `since` still offers the rest. Returns how many nodes lie below the
        root (new or not).
        """
        if not since:
            return len(self.graft(self.root, tokens, parents, scores))
        gap, useful = len(since), 0
        # Entry >= 0: a node of ours; -1 - j: the committed token j below the base; None: contradicted by a commit.
        ids: list[int | None] = []
        for token, parent, score in zip(tokens.tolist(), parents.tolist(), scores.tolist(), strict=True):
            above = -1 if parent < 0 else ids[parent]
            if above is None:
                ids.append(None)
            elif above < 0:
                depth = -1 - above
                if token != since[depth]:
                    ids.append(None)
                else:
                    ids.append(self.root if depth + 1 == gap else above - 1)
            else:
                node = self._index.get(above << _SHIFT | token)
                if node is None:
                    node = self._add(above, token, score)
                ids.append(node)
                useful += 1
        return useful

    def advance(self, tokens: Sequence[int]) -> list[int]:
        """Move the root along committed tokens; what is not below it is gone. Returns each token's `slot` (-1: no node)."""
        slots: list[int] = []
        node = self.root
        for token in tokens:
            child = self._index.get(node << _SHIFT | token)
            if child is None:
                break
            slots.append(self.slot[child])
            node = child
        if len(slots) < len(tokens):
            length = self.length[self.root] + len(tokens)
            self._restart(length, tokens[-1])
            return slots + [-1] * (len(tokens) - len(slots))
        self.root = node
        if len(self.token) > self._compact_above:
            self._compact()
        return slots

    def _compact(self) -> None:
        order = self.nodes()
        number = {node: i for i, node in enumerate(order)}
        self.token = [self.token[n] for n in order]
        self.path = [self.path[n] for n in order]
        self.length = [self.length[n] for n in order]
        self.slot = [self.slot[n] for n in order]
        self.expanded = [self.expanded[n] for n in order]
        self.parent = [-1, *(number[self.parent[n]] for n in order[1:])]
        self.children = [[number[c] for c in self.children[n]] for n in order]
        self._index = {self.parent[i] << _SHIFT | self.token[i]: i for i in range(1, len(order))}
        self.root = 0

    def best_chain(self, limit: int) -> list[int]:
        """The most likely path below the root, at most `limit` nodes."""
        chain: list[int] = []
        node = self.root
        while len(chain) < limit and self.children[node]:
            node = self.children[node][0]
            chain.append(node)
        return chain

    def export(self, nodes: Sequence[int]) -> tuple[IntArray, IntArray, FloatArray]:
        """(tokens, relative parents, edge scores) of `nodes` and all their ancestors below the root, parents first."""
        wanted: set[int] = set()
        for node in nodes:
            while node != self.root and node not in wanted:
                wanted.add(node)
                node = self.parent[node]
        order = sorted(wanted)
        number = {node: i for i, node in enumerate(order)}
        number[self.root] = -1
        tokens = np.fromiter((self.token[n] for n in order), np.int32, len(order))
        parents = np.fromiter((number[self.parent[n]] for n in order), np.int32, len(order))
        # Rounded as on the wire, so that a mirror is the same whether or not a message was encoded (exact replay).
        scores = np.fromiter((self.path[n] - self.path[self.parent[n]] for n in order), np.float16, len(order))
        return tokens, parents, scores.astype(np.float32)
