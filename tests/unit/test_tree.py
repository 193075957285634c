"""The draft tree against the plainest possible model of one: a dict from paths to scores."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_spec.core.law import DraftLaw
from dist_spec.core.score_grid import HOPELESS, from_bytes, rounded, to_bytes
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import NO_PARENT

LENGTH = 10
ALPHABET = 4  # few tokens, so that paths meet


class Model:
    """Paths below the root -> path score, slot, source and expanded mark."""

    def __init__(self, *, first_counts: bool = False) -> None:
        self.first_counts = first_counts
        self.score: dict[tuple[int, ...], float] = {(): 0.0}
        self.slot: dict[tuple[int, ...], int] = {(): -1}
        self.source: dict[tuple[int, ...], int] = {(): -1}
        self.expanded: set[tuple[int, ...]] = set()
        self.length = LENGTH

    def graft(
        self, anchor: tuple[int, ...], paths: list[tuple[int, ...]], edges: list[float], *, source: int
    ) -> list[bool]:
        """Which entries have a node."""
        taken = []
        for path, edge in zip(paths, edges, strict=True):
            whole = anchor + path
            above = whole[:-1]
            taken.append(self._take(whole, above, edge, source))
        return taken

    def _take(self, whole: tuple[int, ...], above: tuple[int, ...], edge: float, source: int) -> bool:
        if above not in self.score:
            return False
        score = self.score[above] + min(edge, 0.0)
        if whole in self.score:
            rise = score - self.score[whole]
            if rise > 1e-9 and not self.first_counts:
                for path in self.score:
                    self.score[path] += rise if path[: len(whole)] == whole else 0.0
                self.source[whole] = source
            return True
        if self.first_counts and any(path[:-1] == above and path for path in self.score):
            return False
        self.score[whole], self.slot[whole], self.source[whole] = score, -1, source
        return True

    def advance(self, tokens: tuple[int, ...]) -> list[int]:
        slots = []
        for n in range(1, len(tokens) + 1):
            slots.append(self.slot[tokens[:n]] if tokens[:n] in self.score else -1)
        self.length += len(tokens)
        if tokens not in self.score:
            self.score, self.slot, self.source, self.expanded = {(): 0.0}, {(): -1}, {(): -1}, set()
            return slots
        cut = len(tokens)
        base = self.score[tokens]
        keep = [path for path in self.score if path[:cut] == tokens]
        self.slot = {path[cut:]: self.slot[path] for path in keep}
        self.source = {path[cut:]: self.source[path] for path in keep}
        self.expanded = {path[cut:] for path in keep if path in self.expanded}
        self.score = {path[cut:]: self.score[path] - base for path in keep}
        return slots


def nodes_by_path(tree: DraftTree) -> dict[tuple[int, ...], int]:
    return {tuple(tree.path_tokens(node)): node for node in tree.nodes()}


def check(tree: DraftTree, model: Model) -> None:
    """The same nodes, and every column where it belongs."""
    found = nodes_by_path(tree)
    assert set(found) == set(model.score)
    assert tree.size() == len(found) - 1
    assert tree.base_length == model.length
    assert tree.is_empty() == (len(found) == 1)
    for path, node in found.items():
        assert tree.depth(node) == len(path)
        assert tree.score(node) == pytest.approx(model.score[path], abs=1e-9)
        assert tree.slot[node] == model.slot[path]
        assert tree.source[node] == model.source[path]
        assert (node in tree.features) == (model.slot[path] > 0)
        assert tree.features.get(node, -1) == model.slot[path]
        assert path == () or (node in tree.laws) == (model.source[path] % 2 == 1)
        assert tree.expanded[node] == (path in model.expanded)
        siblings = [tree.path[child] for child in tree.children[node]]
        assert siblings == sorted(siblings, reverse=True)
        for child in tree.children[node]:
            assert tree.child(node, tree.token[child]) == child
            assert tree.parent[child] == node


@st.composite
def sub_trees(draw: st.DrawFn) -> tuple[list[int], list[int], list[float], list[tuple[int, ...]]]:
    """(tokens, parents, scores, path of every entry); entries may repeat each other."""
    size = draw(st.integers(0, 8))
    tokens, parents, paths = [], [], []
    for i in range(size):
        parent = draw(st.integers(NO_PARENT, i - 1))
        token = draw(st.integers(0, ALPHABET - 1))
        tokens.append(token)
        parents.append(parent)
        paths.append((paths[parent] if parent >= 0 else ()) + (token,))
    scores = draw(st.lists(st.sampled_from([-0.0, -0.25, -1.0, -2.5]), min_size=size, max_size=size))
    return tokens, parents, scores, paths


def arrays(tokens: list[int], parents: list[int], scores: list[float]):
    return np.array(tokens, np.int32), np.array(parents, np.int32), np.array(scores, np.float32)


LAW = DraftLaw.sparse([0, 1, 2, 3], [1, 1, 1, 1])


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from([0, 6, 512]), st.booleans())
def test_the_trie_is_the_dict_of_paths(data: st.DataObject, compact_above: int, first_counts: bool) -> None:
    """Random grafts below random nodes, late grafts, marks and commits, with and without compaction, for both ways to
    take a repeated node. Odd sources bring a law for every node."""
    tree, model = DraftTree(LENGTH, 99, compact_above=compact_above), Model(first_counts=first_counts)
    committed: list[int] = []
    serial = 0
    for number in range(data.draw(st.integers(1, 14))):
        action = data.draw(st.sampled_from(["graft", "late", "advance", "mark"]))
        # Whoever lifts a node becomes its source but leaves its law: one kind of source at a time where nodes may rise.
        source = number if first_counts else 2 * number
        if action == "graft":
            tokens, parents, scores, paths = data.draw(sub_trees())
            anchor = data.draw(st.sampled_from(sorted(model.score)))
            laws = (LAW,) * len(tokens) if source % 2 else ()
            ids = tree.graft(
                nodes_by_path(tree)[anchor],
                *arrays(tokens, parents, scores),
                source=source,
                laws=laws,
                first_counts=first_counts,
            )
            taken = model.graft(anchor, paths, scores, source=source)
            wanted = [anchor + path if has else None for path, has in zip(paths, taken, strict=True)]
            assert [tuple(tree.path_tokens(node)) if node >= 0 else None for node in ids] == wanted
        elif action == "late":
            tokens, parents, scores, paths = data.draw(sub_trees())
            gap = data.draw(st.integers(0, len(committed)))
            since = tuple(committed[len(committed) - gap :])
            rest = [(p[gap:], s) for p, s in zip(paths, scores, strict=True) if p[:gap] == since and len(p) > gap]
            laws = (LAW,) * len(tokens) if source % 2 else ()
            useful = tree.graft_late(
                since, *arrays(tokens, parents, scores), source=source, laws=laws, first_counts=first_counts
            )
            assert useful == sum(model.graft((), [p for p, _ in rest], [s for _, s in rest], source=source))
        elif action == "mark":
            path = data.draw(st.sampled_from(sorted(model.score)))
            node = nodes_by_path(tree)[path]
            serial += 1
            tree.slot[node], tree.expanded[node], tree.features[node] = serial, True, serial
            model.slot[path] = serial
            model.expanded.add(path)
        else:
            known = data.draw(st.sampled_from(sorted(model.score)))
            tail = data.draw(st.lists(st.integers(0, ALPHABET - 1), max_size=2))
            tokens = (*known, *tail)
            if not tokens:
                continue
            assert tree.advance(tokens) == model.advance(tokens)
            committed += tokens
        check(tree, model)


def test_compaction_drops_the_dead_and_nothing_else() -> None:
    tree = DraftTree(LENGTH, compact_above=10)
    for token in range(3):
        [node] = tree.graft(tree.root, *arrays([token], [-1], [-0.1 * token]))
        tree.graft(node, *arrays([7, 8, 9], [-1, 0, 1], [-0.5, -0.5, -0.5]))
    assert len(tree) == 13
    tree.advance([1])
    assert len(tree) == 4  # the root, now token 1, and its three nodes
    assert tree.path_tokens(3) == [7, 8, 9]
    assert tree.score(3) == pytest.approx(-1.5)


def test_small_trees_are_not_renumbered() -> None:
    tree = DraftTree(LENGTH)
    first, second = tree.graft(tree.root, *arrays([1, 2], [-1, 0], [-0.1, -0.1]))
    tree.advance([1])
    assert tree.root == first
    assert tree.children[first] == [second]


def test_a_repeated_node_keeps_the_higher_score_and_lifts_what_hangs_on_it() -> None:
    tree = DraftTree(LENGTH)
    node, below, other = tree.graft(tree.root, *arrays([5, 6, 7], [-1, 0, -1], [-1.0, -0.5, -0.75]), source=1)
    assert tree.children[tree.root] == [other, node]
    assert tree.graft(tree.root, *arrays([5], [-1], [-2.0]), source=2) == [node]
    assert (tree.score(node), tree.source[node]) == (-1.0, 1)
    assert tree.graft(tree.root, *arrays([5], [-1], [-0.25]), source=2) == [node]
    assert (tree.score(node), tree.source[node]) == (-0.25, 2)
    assert (tree.score(below), tree.source[below]) == (-0.75, 1)
    assert tree.children[tree.root] == [node, other]


def test_the_first_draw_below_a_prefix_is_the_only_one() -> None:
    """Law 5: nothing is preferred by looking at it."""
    tree = DraftTree(LENGTH)
    first = tree.graft(tree.root, *arrays([5, 6], [-1, 0], [-1.0, 0.0]), laws=(LAW, None), first_counts=True)
    again = tree.graft(tree.root, *arrays([5, 8, 7, 9], [-1, 0, -1, 2], [0.0] * 4), laws=(None,) * 4, first_counts=True)
    assert again == [first[0], -1, -1, -1]
    assert tree.score(first[0]) == -1.0
    assert tree.export_laws([first[1]]) == (LAW, None)
    assert tree.graft_late([], *arrays([7, 5], [-1, -1], [0.0] * 2), first_counts=True) == 1


def test_a_positive_score_counts_as_certain() -> None:
    """Path scores never rise along a path, whoever sent them."""
    tree = DraftTree(LENGTH)
    first, second = tree.graft(tree.root, *arrays([5, 6], [-1, 0], [-1.0, 3.0]))
    assert tree.score(second) == tree.score(first)


def test_late_is_not_useless() -> None:
    """A proposal whose first tokens are those since committed offers the rest; one that was contradicted nothing."""
    tree = DraftTree(LENGTH)
    tokens, parents = [1, 2, 3, 4, 9], [-1, 0, 1, 2, 1]
    assert tree.graft_late([1, 2], *arrays(tokens, parents, [-0.1] * 5)) == 3
    assert sorted(nodes_by_path(tree)) == [(), (3,), (3, 4), (9,)]
    assert tree.graft_late([1, 5], *arrays(tokens, parents, [-0.1] * 5)) == 0
    assert tree.graft_late([1, 2, 3, 4], *arrays(tokens, parents, [-0.1] * 5)) == 0
    assert sorted(nodes_by_path(tree)) == [(), (3,), (3, 4), (9,)]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_export_and_graft_are_inverse(data: st.DataObject) -> None:
    tree = DraftTree(LENGTH)
    for _ in range(3):
        tokens, parents, scores, _ = data.draw(sub_trees())
        anchor = data.draw(st.sampled_from(tree.nodes()))
        tree.graft(anchor, *arrays(tokens, parents, scores))
    chosen = data.draw(st.lists(st.sampled_from(tree.nodes()), max_size=6))
    tokens, parents, scores = tree.export(chosen)
    assert (parents < np.arange(len(parents))).all()
    again = DraftTree(LENGTH)
    again.graft(again.root, tokens, parents, scores)
    wanted = {tuple(tree.path_tokens(node))[:n] for node in chosen for n in range(tree.depth(node) + 1)} | {()}
    found = nodes_by_path(again)
    assert set(found) == wanted
    here = nodes_by_path(tree)
    for path in wanted - {()}:
        edge = np.array([tree.edge(here[path])])
        assert again.edge(found[path]) == pytest.approx(float(rounded(edge)[0]), abs=1e-5)


def test_export_of_nothing() -> None:
    tree = DraftTree(LENGTH)
    assert [len(column) for column in tree.export([])] == [0, 0, 0]
    assert [len(column) for column in tree.export([tree.root])] == [0, 0, 0]


def test_the_best_chain_follows_the_best_child() -> None:
    tree = DraftTree(LENGTH)
    tree.graft(tree.root, *arrays([1, 2, 3, 4], [-1, -1, 1, 2], [-1.0, -0.5, -2.0, -0.1]))
    assert [tree.token[node] for node in tree.best_chain(9)] == [2, 3, 4]
    assert [tree.token[node] for node in tree.best_chain(2)] == [2, 3]
    assert tree.best_chain(0) == []


def test_scores_that_are_no_numbers_or_infinite_stay_finite_and_come_last() -> None:
    tree = DraftTree(5)
    scores = np.array([np.nan, -np.inf, -0.5, np.inf, -1e30], np.float32)
    tree.graft(tree.root, np.arange(1, 6, dtype=np.int32), np.array([-1, -1, -1, -1, 0], np.int32), scores)
    tree.graft_late([], np.array([1, 6], np.int32), np.array([-1, 0], np.int32), np.array([0, np.nan], np.float32))
    assert [tree.token[child] for child in tree.children[tree.root]] == [4, 1, 3, 2]
    _, _, exported = tree.export(tree.nodes())
    assert np.isfinite(exported).all()
    assert exported.tolist()[:5] == [0.0, HOPELESS, rounded([-0.5])[0], 0.0, HOPELESS]


@given(st.lists(st.floats(-1e5, 10.0)))
def test_scores_travel_in_one_byte_each(scores: list[float]) -> None:
    """Rounding once more changes nothing, order is kept, and an edge's probability is off by at most .011."""
    arrived = rounded(scores)
    assert (rounded(arrived) == arrived).all()
    assert (to_bytes(from_bytes(to_bytes(scores))) == to_bytes(scores)).all()
    assert (np.abs(np.exp(np.minimum(scores, 0.0)) - np.exp(arrived, dtype=np.float64)) < 0.011).all()
    order = np.argsort(scores, kind="stable")
    assert (np.diff(arrived[order]) >= 0).all()
    assert rounded([np.nan, -np.inf, np.inf]).tolist() == [HOPELESS, HOPELESS, 0.0]


class CountedList(list):
    """A column that counts how often one of its entries is written."""

    writes = 0

    def __setitem__(self, index: object, value: object) -> None:
        self.writes += 1
        super().__setitem__(index, value)  # type: ignore[call-overload]


SIZE = 400
CHAIN = list(range(-1, SIZE - 1))
COMB = [-1 if i < 2 else i - 2 for i in range(SIZE)]  # two long branches
FLAT = [-1] * SIZE
PAIRS = [(i // 2) * 2 - 1 for i in range(SIZE)]  # a trunk with a twig at every node


@pytest.mark.parametrize("parents", [CHAIN, COMB, FLAT, PAIRS], ids=["chain", "comb", "flat", "pairs"])
@pytest.mark.parametrize("repeats", [1, 5])
def test_better_opinions_of_a_whole_tree_touch_every_node_once_per_message(parents: list[int], repeats: int) -> None:
    """However a peer arranges it, a message costs no more than it and the tree are large."""
    tokens = np.arange(SIZE, dtype=np.int32)
    above = np.array(parents, np.int32)
    tree = DraftTree(LENGTH)
    ids = tree.graft(tree.root, tokens, above, np.full(SIZE, -3.0))
    tree.path = column = CountedList(tree.path)
    # One entry per node and repetition, each a little better than the one before it.
    better = np.concatenate([np.full(SIZE, -2.0 + 0.1 * turn) for turn in range(repeats)])
    again = np.concatenate([np.where(above < 0, -1, above) for _ in range(repeats)])
    assert tree.graft(tree.root, np.tile(tokens, repeats), again, better, source=7) == ids * repeats
    assert column.writes <= SIZE
    assert [tree.edge(node) for node in ids] == pytest.approx([better[-1]] * SIZE)
    assert {tree.source[node] for node in ids} == {7}
    assert all(
        tree.path[a] >= tree.path[b] for node in tree.nodes() for a, b in itertools.pairwise(tree.children[node])
    )


def test_a_new_node_below_a_lifted_one_is_lifted_with_it() -> None:
    tree = DraftTree(LENGTH)
    [a] = tree.graft(tree.root, np.array([1], np.int32), np.array([-1], np.int32), np.array([-2.0]))
    tokens, parents = np.array([1, 2, 1], np.int32), np.array([-1, 0, -1], np.int32)
    first, new, _ = tree.graft(tree.root, tokens, parents, np.array([-1.0, -0.5, -0.25]))
    assert first == a
    assert (tree.edge(a), tree.edge(new)) == (pytest.approx(-0.25), pytest.approx(-0.5))
