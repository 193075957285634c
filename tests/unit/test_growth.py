"""Each growth policy: what it works on, in which order, when it stops, and when it may answer."""

from __future__ import annotations

import numpy as np
import pytest

from dist_spec.core.draft import Draft
from dist_spec.core.growth.base import Growth, best_leaves, chain_tip
from dist_spec.core.growth.policies import build_growth
from dist_spec.core.prefix import Prefix
from dist_spec.core.settings import Speculation
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Sampling

TOKENS = [1, 2, 3, 4, 5]


def make_draft() -> Draft:
    return Draft(
        request="r",
        generation=0,
        prefix=Prefix(TOKENS),
        slots=[-1] * len(TOKENS),
        prompt_length=3,
        generated_offset=0,
        sampling=Sampling(),
        tree=DraftTree(len(TOKENS), TOKENS[-1]),
    )


def expand(tree: DraftTree, leaf: int, scores: list[float]) -> list[int]:
    """Give a leaf children 0, 1, ... with these edge scores."""
    tree.expanded[leaf] = True
    count = len(scores)
    return tree.graft(
        leaf, np.arange(count, dtype=np.int32), np.full(count, -1, np.int32), np.array(scores, np.float32)
    )


def work(policy: Growth, draft: Draft, *, limit: int = 99, scores: tuple[float, ...] = (-0.2, -1.5, -3.0)) -> list[int]:
    """One draft step as the session takes it; returns the leaves' depths."""
    leaves = policy.leaves(draft, limit)
    depths = [draft.tree.depth(leaf) for leaf in leaves]
    for leaf in leaves:
        expand(draft.tree, leaf, list(scores[: policy.num_children]))
    draft.steps_since_ask += bool(leaves)
    return depths


def test_best_leaves_are_those_of_highest_path_score() -> None:
    tree = DraftTree(5)
    assert best_leaves(tree, limit=3, max_depth=9) == [tree.root]
    first, second, third = expand(tree, tree.root, [-0.1, -1.0, -5.0])
    below, other = expand(tree, first, [-0.5, -2.0])
    assert best_leaves(tree, limit=9, max_depth=9) == [below, second, other, third]
    assert best_leaves(tree, limit=2, max_depth=9) == [below, second]
    assert best_leaves(tree, limit=9, max_depth=1) == []  # a node at the cap is not expanded, nor what lies below it
    assert best_leaves(tree, limit=9, max_depth=2) == [second, third]


def test_the_tip_of_a_chain() -> None:
    tree = DraftTree(5)
    assert chain_tip(tree, tree.root, max_depth=3) == tree.root
    first, second = expand(tree, tree.root, [-0.1, -1.0])
    assert chain_tip(tree, tree.root, max_depth=3) == first
    assert chain_tip(tree, second, max_depth=3) == second
    assert chain_tip(tree, tree.root, max_depth=1) is None
    expand(tree, first, [])
    assert chain_tip(tree, tree.root, max_depth=3) is None  # it ends without guesses


def test_none_drafts_only_when_asked_and_only_so_far() -> None:
    policy = build_growth(Speculation(growth="none", delivery="pull", num_draft_tokens=3, num_leaves=4))
    draft = make_draft()
    assert policy.leaves(draft, 99) == []
    draft.ask()
    seen = []
    for _ in range(3):
        assert not policy.ready(draft)
        seen.append(len(work(policy, draft)))
    assert policy.ready(draft)
    assert policy.leaves(draft, 99) == []
    assert seen == [1, 3, 4]
    assert max(draft.tree.depth(node) for node in draft.tree.nodes()) <= 3


def test_none_with_chain_makes_one_chain() -> None:
    settings = Speculation(growth="none", delivery="pull", verify_shape="chain", num_draft_tokens=3, num_leaves=9)
    policy, draft = build_growth(settings), make_draft()
    draft.ask()
    assert [work(policy, draft) for _ in range(3)] == [[0], [1], [2]]
    assert policy.ready(draft)


def test_none_answers_when_there_is_nothing_to_draft() -> None:
    policy = build_growth(Speculation(growth="none", delivery="pull", num_draft_tokens=5))
    draft = make_draft()
    draft.ask()
    work(policy, draft, scores=())
    assert policy.ready(draft)


def test_optimistic_runs_one_chain_ahead_up_to_its_length() -> None:
    policy = build_growth(Speculation(growth="optimistic", num_draft_tokens=4))
    draft = make_draft()
    assert [work(policy, draft) for _ in range(5)] == [[0], [1], [2], [3], []]
    draft.commit([0, 0])
    assert [work(policy, draft) for _ in range(3)] == [[2], [3], []]
    draft.commit([3])  # not what it guessed
    assert work(policy, draft) == [0]


def test_best_first_fills_its_leaves_best_first() -> None:
    policy = build_growth(Speculation(num_leaves=4, num_children=3, num_draft_tokens=9))
    draft = make_draft()
    for wanted in (1, 3, 4, 4):
        before = {node: draft.tree.score(node) for node in draft.tree.nodes() if not draft.tree.expanded[node]}
        leaves = policy.leaves(draft, 99)
        assert [before[leaf] for leaf in leaves] == sorted(before.values(), reverse=True)[:wanted]
        work(policy, draft)
    assert len(policy.leaves(draft, 2)) == 2


@pytest.mark.parametrize("max_nodes", [20, 2000])
def test_best_first_is_capped_by_count(max_nodes: int) -> None:
    policy = build_growth(Speculation(num_leaves=4, num_children=3, num_draft_tokens=99, max_nodes=max_nodes))
    draft = make_draft()
    for _ in range(500):
        if not work(policy, draft):
            break
    assert max_nodes <= len(draft.tree) <= max_nodes + 12


@pytest.mark.parametrize(
    ("on_miss", "ready_at_once", "ready_after"), [("plain", True, 0), ("wait", False, 1), ("draft", False, 3)]
)
def test_a_miss_is_answered_as_the_setting_says(on_miss: str, ready_at_once: bool, ready_after: int) -> None:
    settings = Speculation(delivery="pull", on_miss=on_miss, num_draft_tokens=3)  # type: ignore[arg-type]
    policy, draft = build_growth(settings), make_draft()
    draft.ask()
    assert policy.ready(draft) == ready_at_once
    steps = 0
    while not policy.ready(draft):
        work(policy, draft)
        steps += 1
    assert steps == ready_after


@pytest.mark.parametrize("on_miss", ["plain", "wait", "draft"])
def test_what_survived_is_delivered_as_it_stands(on_miss: str) -> None:
    settings = Speculation(delivery="pull", on_miss=on_miss, num_draft_tokens=5)  # type: ignore[arg-type]
    policy, draft = build_growth(settings), make_draft()
    work(policy, draft)
    work(policy, draft)
    draft.commit([0])
    draft.ask()
    assert not draft.tree.is_empty()
    assert policy.ready(draft)


@pytest.mark.parametrize("on_miss", ["plain", "wait", "draft"])
def test_a_drafter_without_a_guess_says_so(on_miss: str) -> None:
    settings = Speculation(delivery="pull", on_miss=on_miss)  # type: ignore[arg-type]
    policy, draft = build_growth(settings), make_draft()
    draft.ask()
    work(policy, draft, scores=())
    assert policy.ready(draft)


def fan_out(**fields: object) -> Growth:
    values = {"num_draft_tokens": 2, "num_leaves": 12, "fan_out": 2, "verify_shape": "chain", "on_miss": "draft"}
    return build_growth(Speculation(growth="fan_out", delivery="pull", **{**values, **fields}))  # type: ignore[arg-type]


def test_best_first_rests_when_enough_is_ready() -> None:
    """With `lookahead` guesses ready, only what is more likely than not is followed further."""
    policy = build_growth(Speculation(num_leaves=1, num_draft_tokens=9, lookahead=6))
    draft = make_draft()
    assert work(policy, draft, scores=(-0.1, -3.0, -3.5)) == [0]
    assert work(policy, draft, scores=(-0.9, -1.0, -3.5)) == [1]
    assert draft.tree.size() == 6
    assert work(policy, draft) == []  # the best leaf has a probability of exp(-1)
    draft.commit([0])
    assert draft.tree.size() == 3
    assert work(policy, draft) == [1]
    likely = make_draft()
    for depth in range(9):
        assert work(policy, likely, scores=(-0.01, -3.0, -3.5)) == [depth]
    assert work(policy, likely) == []  # the depth cap holds for all


def test_fan_out_drafts_the_chain_first_and_then_every_outcome() -> None:
    policy, draft = fan_out(), make_draft()
    draft.ask()
    assert [work(policy, draft), work(policy, draft)] == [[0], [1]]
    assert policy.ready(draft)
    chain = draft.tree.best_chain(2)
    draft.asked, draft.trunk = False, [draft.tree.token[node] for node in chain]
    for _ in range(9):
        if not work(policy, draft):
            break
    # After 0, 1 or 2 accepted tokens, each of the 2 likely next ones is followed by a chain of 2.
    for accepted in range(3):
        node = [draft.tree.root, *chain][accepted]
        off = [c for c in draft.tree.children[node] if accepted == 2 or c != chain[accepted]]
        for candidate in off[:2]:
            assert chain_tip(draft.tree, candidate, max_depth=accepted + 3) is None
            assert draft.tree.children[candidate]


def test_fan_out_prepares_one_token_where_nothing_was_delivered() -> None:
    """At the start, and after a plain step: else it would answer nothing, for ever."""
    policy, draft = fan_out(on_miss="plain"), make_draft()
    draft.ask()
    assert policy.ready(draft)  # nothing is there: the step is plain
    draft.asked = False
    depths = [work(policy, draft) for _ in range(4)]
    assert depths == [[0], [1, 1], [2, 2], []]
    draft.commit([0])
    draft.ask()
    assert policy.ready(draft)
    assert len(draft.tree.best_chain(9)) == 2
