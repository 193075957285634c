"""What a drafter does not send: questions that are under way, and nodes that are not worth it."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest

from dist_spec.core.draft_session import DraftSession
from dist_spec.core.messages import Need, Propose
from dist_spec.core.settings import Speculation
from dist_spec.drafters.scripted import RankLaw, ScriptedDrafter
from dist_spec.workers.draft import expand_rows
from tests.unit.draft_cases import KEY, TEXT, commit, opening, receive


def test_an_unknown_request_is_asked_about_once_in_a_while() -> None:
    """Its commits go on while the answer, with all of the text, is under way."""
    session = DraftSession(Speculation())
    want = Need(request="r", generation=0, have_length=0)
    asked = [receive(session, commit(8 + step, 9 + step), now=1.0 + step / 64) for step in range(30)]
    assert [step for step, sent in enumerate(asked) if sent] == [0, 13, 26]
    assert asked[0] == asked[13] == asked[26] == [want]
    # Others are not kept waiting by it, and once it was told its gaps are asked about at once.
    other = replace(commit(8, 9), request="s")
    assert receive(session, other, now=1.45) == [Need(request="s", generation=0, have_length=0)]
    receive(session, opening(20), now=1.5)
    assert receive(session, commit(22, 23), now=1.5) == [Need(request="r", generation=0, have_length=20)]


def test_what_is_asked_about_is_remembered_within_bounds() -> None:
    session = DraftSession(Speculation())
    for number in range(2000):
        message = replace(commit(8, 9), request=f"r{number}")
        assert len(receive(session, message, message, now=1.0)) == 1
    assert len(session._unknown_s) <= 256


@pytest.mark.parametrize(
    ("shape", "floor", "path_differs"),
    [("chain", 0.5, True), ("chain", 0.8, False), ("tree", 0.03, True), ("tree", 0.13, True), ("tree", 0.8, False)],
)
def test_an_answer_and_a_push_keep_back_the_same_nodes(shape: str, floor: float, path_differs: bool) -> None:
    """By a node's own probability given its parent: a path score says little of what the next head makes of a node."""
    asked = DraftSession(
        Speculation(growth="best_first", delivery="pull", verify_shape=shape, num_draft_tokens=4, budget=64)  # type: ignore[arg-type]
    )
    receive(asked, opening(), replace(commit(5, 6), floor=math.log(floor)))
    drafter = ScriptedDrafter(lambda key, history: TEXT, law=RankLaw(a=0.7, b=0.5), vocab_size=500)
    for _ in range(5):
        batch = asked.next_batch()
        assert batch is not None
        assert asked.expanded(batch, drafter.expand(expand_rows(batch))) == []
    draft = asked.drafts[KEY]
    tree = draft.tree
    edges = {node: tree.edge(node) for node in tree.nodes()[1:]}
    offered = set(tree.best_chain(4)) if shape == "chain" else {node for node in edges if tree.depth(node) <= 4}
    # What a push of these very nodes would send.
    pushed = set(asked.guesses.worth_sending(copy.deepcopy(draft), sorted(offered)))
    [answer] = receive(asked, replace(commit(6, 6), ask=True, floor=math.log(floor)))
    tokens, _, _ = tree.export(sorted(pushed))
    assert isinstance(answer, Propose)
    assert sorted(answer.tokens.tolist()) == sorted(tokens.tolist())
    assert all(edges[node] >= math.log(floor) for node in pushed)
    assert any(tree.score(node) < math.log(floor) for node in pushed) == path_differs
    assert tree.withheld == offered - pushed
