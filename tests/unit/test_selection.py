"""Selection against brute force: the best nodes by path score, closed under ancestors, none too deep."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_spec.core.selection import depth_first, grouped, rank_chains, select_trees
from dist_spec.core.tree import DraftTree


def select_chains(trees: list[DraftTree], *, depth_caps: list[int], budget: int) -> list[list[int]]:
    return grouped(trees, rank_chains(trees, depth_caps=depth_caps, budget=budget))


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[DraftTree], list[int]]:
    """Up to three trees, whose roots may have moved, and a depth cap for each."""
    trees, caps = [], []
    for number in range(draw(st.integers(1, 3))):
        tree = DraftTree(10)
        for i in range(draw(st.integers(0, 14))):
            above = draw(st.sampled_from(tree.nodes()))
            # All scores different, so that brute force has one answer.
            score = -0.05 - 0.001 * i - 0.0001 * number - draw(st.integers(0, 20)) / 10
            token = np.array([draw(st.integers(0, 5))], np.int32)
            tree.graft(above, token, np.array([-1], np.int32), np.array([score], np.float32))
        if tree.children[tree.root] and draw(st.booleans()):
            tree.advance([tree.token[tree.children[tree.root][-1]]])
        trees.append(tree)
        caps.append(draw(st.integers(-1, 5)))
    return trees, caps


@settings(max_examples=300, deadline=None)
@given(forests(), st.integers(0, 20))
def test_trees_are_the_best_nodes_by_brute_force(forest: tuple[list[DraftTree], list[int]], budget: int) -> None:
    trees, caps = forest
    chosen = select_trees(trees, depth_caps=caps, budget=budget)
    candidates = sorted(
        (-tree.score(node), row, node)
        for row, (tree, cap) in enumerate(zip(trees, caps, strict=True))
        for node in tree.nodes()[1:]
        if tree.depth(node) <= cap
    )
    best = {(row, node) for _, row, node in candidates[:budget]}
    assert {(row, node) for row, nodes in enumerate(chosen) for node in nodes} == best
    for tree, nodes in zip(trees, chosen, strict=True):
        assert len(nodes) == len(set(nodes))
        place = {node: i for i, node in enumerate(nodes)}
        assert all(tree.parent[node] == tree.root or place[tree.parent[node]] < i for node, i in place.items())


@settings(max_examples=200, deadline=None)
@given(forests(), st.integers(0, 20))
def test_chains_are_the_best_chains_cut_by_score(forest: tuple[list[DraftTree], list[int]], budget: int) -> None:
    trees, caps = forest
    chosen = select_chains(trees, depth_caps=caps, budget=budget)
    whole = [tree.best_chain(max(cap, 0)) for tree, cap in zip(trees, caps, strict=True)]
    assert all(nodes == chain[: len(nodes)] for nodes, chain in zip(chosen, whole, strict=True))
    assert sum(map(len, chosen)) == min(budget, sum(map(len, whole)))
    taken = [trees[row].score(node) for row, nodes in enumerate(chosen) for node in nodes]
    left = [
        trees[row].score(node)
        for row, chain in enumerate(whole)
        for node in chain[len(chosen[row]) :][:1]  # later ones score no better
    ]
    assert not taken or not left or min(taken) >= max(left) - 1e-12


@settings(max_examples=200, deadline=None)
@given(forests(), st.integers(0, 20))
def test_depth_first_is_a_pre_order_of_the_same_nodes(forest: tuple[list[DraftTree], list[int]], budget: int) -> None:
    trees, caps = forest
    for tree, nodes in zip(trees, select_trees(trees, depth_caps=caps, budget=budget), strict=True):
        order = depth_first(tree, nodes)
        assert sorted(order) == sorted(nodes)
        if len(order) < 3:
            continue
        wanted = set(nodes)

        def visit(node: int, tree: DraftTree = tree, wanted: set[int] = wanted) -> list[int]:
            below = [child for child in tree.children[node] if child in wanted]
            return [one for child in below for one in (child, *visit(child))]

        assert order == visit(tree.root)


def test_a_budget_is_shared_by_score_across_requests() -> None:
    sure, unsure = DraftTree(10), DraftTree(20)
    tokens, parents = np.arange(4, dtype=np.int32), np.arange(-1, 3, dtype=np.int32)
    sure.graft(sure.root, tokens, parents, np.full(4, -0.1, np.float32))
    unsure.graft(unsure.root, tokens, parents, np.full(4, -0.25, np.float32))
    assert list(map(len, select_trees([sure, unsure], depth_caps=[9, 9], budget=4))) == [3, 1]
    assert list(map(len, select_chains([sure, unsure], depth_caps=[9, 9], budget=4))) == [3, 1]
    assert list(map(len, select_trees([sure, unsure], depth_caps=[1, 9], budget=4))) == [1, 3]
    assert select_trees([], depth_caps=[], budget=4) == []
