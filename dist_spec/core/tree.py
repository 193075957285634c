"""The draft tree: a trie of guesses below one prefix, as parallel arrays. It knows nothing of messages or drafters.

Used at both ends: the drafter grows one, the leader mirrors it. Node ids are positions in the arrays, parents come
before children, and path scores are sums of edge scores (log probabilities, <= 0), so a parent never scores below its
child and the best n nodes are closed under ancestors by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from dist_spec.core.law import DraftLaw
from dist_spec.core.score_grid import HOPELESS, rounded
from dist_spec.core.types import FloatArray, IntArray

_SHIFT = 32
_COMPACT_ABOVE = 512
_RISE = 1e-9
"""Least difference that counts as a higher score: sums of one path in another order are equal."""

_Nodes: TypeAlias = tuple[IntArray, IntArray, FloatArray]
_Laws: TypeAlias = Sequence[DraftLaw | None]


class DraftTree:
    """Trie whose root stands for the last token of a prefix of `length` tokens.

    Attributes (parallel lists, indexed by node id):
        token, parent: parent of the root is -1.
        path: cumulative log score; only differences mean something.
        length: prefix length once the node is committed.
        slot: a column of ints that belongs to the drafter (-1 at birth) and follows the node through renumbering.
        expanded: whether guesses below the node were asked for.
        children: ids of children, best path score first.
        source: who gave the node its score (a number that the caller chose; -1: not said).

    Attributes (by node id, only where there is something; they follow the node too):
        laws: the law a node's token was drawn from.
        features: whatever the owner of the tree keeps per node.
        withheld: nodes that their drafter has not published.

    Args:
        compact_above: nodes in the arrays beyond which `advance` drops those that are no longer below the root.
    """

    __slots__ = (
        "_compact_above",
        "_index",
        "children",
        "expanded",
        "features",
        "laws",
        "length",
        "parent",
        "path",
        "root",
        "slot",
        "source",
        "token",
        "withheld",
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
        self.source: list[int] = [-1]
        self.laws: dict[int, DraftLaw] = {}
        self.features: dict[int, Any] = {}
        self.withheld: set[int] = set()
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

    def graft(
        self,
        anchor: int,
        tokens: IntArray,
        parents: IntArray,
        scores: FloatArray,
        *,
        source: int = -1,
        laws: _Laws = (),
        first_counts: bool = False,
    ) -> list[int]:
        """Merge a sub-tree below `anchor` (edge scores, parents relative, -1 = anchor); repeated nodes are harmless.

        A node that is there takes the higher of both scores, and all below it rises with it. Returns the node id of
        every entry (-1: refused).

        Args:
            source: see the attribute.
            laws: per entry, the law its token was drawn from; or empty.
            first_counts: nothing is preferred to anything by looking at it (law 5): a node keeps its first score, and a
                second child of a node is refused with everything below it.
        """
        ids, _ = self._merge(anchor, (), (tokens, parents, scores), source, laws, first_counts)
        return [-1 if node is None else node for node in ids] if first_counts else cast(list[int], ids)

    def graft_late(
        self,
        since: Sequence[int],
        tokens: IntArray,
        parents: IntArray,
        scores: FloatArray,
        *,
        source: int = -1,
        laws: _Laws = (),
        first_counts: bool = False,
    ) -> int:
        """Merge a sub-tree whose base lies `len(since)` tokens above the root; `since` are the tokens committed after it.

        Late is not useless (law 4): what agrees with `since` still offers the rest. Returns how many nodes lie below the
        root (new or not). For the rest see `graft`.
        """
        start = -len(since) if since else self.root
        return self._merge(start, since, (tokens, parents, scores), source, laws, first_counts)[1]

    def _merge(
        self, start: int, since: Sequence[int], nodes: _Nodes, source: int, laws: _Laws, first_counts: bool
    ) -> tuple[list[int | None], int]:
        """One pass over the entries, parents first; returns their ids and how many lie below the root.

        An id is a node's, -j for the committed token j places above the root, or None for what contradicts a commit or is
        a second draw; `start` is that of the base."""
        index, path, children, lowest = self._index, self.path, self.children, HOPELESS
        tokens, parents, scores = (column.tolist() for column in nodes)
        size, committed = len(path), 0
        ids: list[int | None] = []
        new: list[int] = []  # the entries that became nodes, in order
        above_new: list[int] = []
        raised: dict[int, float] = {}
        unsorted: set[int] = set()
        for token, parent, edge in zip(tokens, parents, scores, strict=True):
            above = start if parent < 0 else ids[parent]
            if above is None:
                ids.append(None)
                continue
            if above < 0:
                follows = token == since[above]
                committed += follows
                ids.append((above + 1 if above < -1 else self.root) if follows else None)
                continue
            node = index.get(above << _SHIFT | token)
            score = path[above] + (edge if lowest <= edge <= 0.0 else _clipped(edge))
            if node is not None:
                ids.append(node)
                if score > path[node] + _RISE and not first_counts:
                    # Lifted together at the end: until then a node and what is above it stand too low by the same.
                    raised[node] = max(score - path[node], raised.get(node, 0.0))
                    unsorted.add(above)
                continue
            if siblings := children[above]:
                if first_counts:
                    ids.append(None)
                    continue
                if score > path[siblings[-1]]:
                    unsorted.add(above)
            siblings.append(size)
            index[above << _SHIFT | token] = size
            path.append(score)
            children.append([])
            above_new.append(above)
            new.append(len(ids))
            ids.append(size)
            size += 1
        self._extend(tokens, above_new, new, source, laws)
        if raised:
            self._raise(raised, source)
        for node in unsorted:
            children[node].sort(key=path.__getitem__, reverse=True)
        return ids, len(ids) - ids.count(None) - committed

    def _extend(self, tokens: list[int], above: list[int], new: list[int], source: int, laws: _Laws) -> None:
        """The columns of new nodes that the pass over the entries does not need."""
        count, first = len(new), len(self.token)
        if not count:
            return
        self.token += tokens if count == len(tokens) else [tokens[i] for i in new]
        self.parent += above
        length = self.length
        for node in above:
            length.append(length[node] + 1)
        self.slot += [-1] * count
        self.expanded += [False] * count
        self.source += [source] * count
        if laws:
            self.laws.update((node, law) for node, i in enumerate(new, first) if (law := laws[i]) is not None)

    def _raise(self, raised: dict[int, float], source: int) -> None:
        """Better opinions of edges lift all that hangs on them. Every node is visited once, whatever a peer sends."""
        path, children = self.path, self.children
        seen: set[int] = set()
        for top in sorted(raised):  # parents have lower ids than their children
            if top in seen:
                continue
            below = [(top, 0.0)]
            while below:
                node, lift = below.pop()
                if node in raised:
                    seen.add(node)
                    lift += raised[node]
                    self.source[node] = source
                path[node] += lift
                below += [(child, lift) for child in children[node]]

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
        self.source = [self.source[n] for n in order]
        self.parent = [-1, *(number[self.parent[n]] for n in order[1:])]
        self.children = [[number[c] for c in self.children[n]] for n in order]
        self.laws = {number[n]: law for n, law in self.laws.items() if n in number}
        self.features = {number[n]: one for n, one in self.features.items() if n in number}
        self.withheld = {number[n] for n in self.withheld if n in number}
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

    def closure(self, nodes: Sequence[int]) -> list[int]:
        """`nodes` and all their ancestors below the root, parents first."""
        wanted: set[int] = set()
        for node in nodes:
            while node != self.root and node not in wanted:
                wanted.add(node)
                node = self.parent[node]
        return sorted(wanted)

    def export(self, nodes: Sequence[int]) -> tuple[IntArray, IntArray, FloatArray]:
        """(tokens, relative parents, edge scores) of the closure of `nodes`, in its order."""
        order = self.closure(nodes)
        number = {node: i for i, node in enumerate(order)}
        number[self.root] = -1
        tokens = np.fromiter((self.token[n] for n in order), np.int32, len(order))
        parents = np.fromiter((number[self.parent[n]] for n in order), np.int32, len(order))
        scores = np.fromiter((self.path[n] - self.path[self.parent[n]] for n in order), np.float64, len(order))
        # Rounded as on the wire, so that a mirror is the same whether or not a message was encoded (exact replay).
        return tokens, parents, rounded(scores)

    def export_laws(self, nodes: Sequence[int]) -> tuple[DraftLaw | None, ...]:
        """The laws that go with `export(nodes)`, one per entry; empty when no node has one."""
        return tuple(self.laws.get(node) for node in self.closure(nodes)) if self.laws else ()


def _clipped(edge: float) -> float:
    """A score above 0 counts as 0; one that is no number, or too low, as hopeless."""
    return 0.0 if edge > 0.0 else HOPELESS
