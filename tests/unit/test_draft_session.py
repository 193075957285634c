"""The drafter's end: it follows commits through any disorder, and asks for what it lacks."""

from __future__ import annotations

import numpy as np
import pytest

from dist_spec.core.draft_session import DraftSession
from dist_spec.core.messages import MAX_NODES, Bye, Close, Message, Need, Open, Ping, Propose
from dist_spec.core.prefix import Prefix
from dist_spec.core.settings import Speculation
from dist_spec.core.types import Expansion, Sampling
from dist_spec.transports.codec import decode, encode
from tests.unit.draft_cases import KEY, TEXT, commit, opening, receive
from tests.unit.session_cases import DraftEnd, ints


def head(session: DraftSession, key: tuple[str, int] = KEY) -> int:
    draft = session.drafts[key]
    assert draft.prefix.tokens == TEXT[: len(draft.prefix)]
    assert draft.tree.base_length == len(draft.prefix) == len(draft.slots)
    assert draft.tree.token[draft.tree.root] == draft.prefix.tokens[-1]
    return len(draft.prefix)


def push(**fields: object) -> DraftSession:
    return DraftSession(Speculation(**fields))  # type: ignore[arg-type]


def test_open_and_commits_in_order() -> None:
    session = push()
    assert receive(session, opening(), commit(5, 8), commit(8, 9)) == []
    assert head(session) == 9


def test_repeated_and_overlapping_commits_change_nothing() -> None:
    session = push()
    receive(session, opening(), commit(5, 8), commit(5, 8), commit(6, 7), commit(5, 10), commit(8, 9))
    assert head(session) == 10


def test_a_gap_is_asked_about_once_in_a_while() -> None:
    session = push()
    receive(session, opening())
    want = Need(request="r", generation=0, have_length=5)
    assert receive(session, commit(8, 9), now=1.0) == [want]
    assert receive(session, commit(9, 10), now=1.1) == []
    assert receive(session, commit(10, 11), now=1.3) == [want]
    assert receive(session, commit(5, 11), now=1.31) == []
    assert head(session) == 11
    assert receive(session, commit(12, 13), now=1.32) == [Need(request="r", generation=0, have_length=11)]


def test_a_commit_of_an_unknown_request_asks_for_everything() -> None:
    session = push()
    assert receive(session, commit(8, 9)) == [Need(request="r", generation=0, have_length=0)]
    receive(session, opening(9))
    assert head(session) == 9


def test_a_commit_below_another_text_asks_for_everything() -> None:
    """A leader that began anew under the same names."""
    other = [token + 1 for token in TEXT]
    session = push()
    receive(session, opening(8))
    assert receive(session, commit(7, 8, text=other)) == [Need(request="r", generation=0, have_length=0)]
    mixed = [*TEXT[:6], *other[6:]]
    assert receive(session, commit(6, 9, text=mixed), now=1.0) == [Need(request="r", generation=0, have_length=0)]
    receive(session, opening(6, text=other))
    assert session.drafts[KEY].prefix.tokens == other[:6]
    assert session.take_closed() == [KEY]


def test_late_openings_are_harmless() -> None:
    session = push()
    receive(session, opening(9), opening(5), opening(7))
    assert head(session) == 9
    receive(session, opening(12))  # a revived drafter is told everything again
    assert head(session) == 12
    assert session.take_closed() == []


def test_a_new_generation_replaces_the_old_one() -> None:
    session = push()
    receive(session, opening(9), opening(5, generation=1))
    assert list(session.drafts) == [("r", 1)]
    assert session.take_closed() == [KEY]
    receive(session, opening(9))
    assert list(session.drafts) == [("r", 1)]


def test_close_forgets_and_unknown_messages_are_ignored() -> None:
    session = push()
    close = Close(request="r", generation=0, reason="stop")
    receive(session, opening(), Ping(), Bye(reason="not now"), close, close)
    assert not session.drafts
    assert session.take_closed() == [KEY]
    assert session.take_closed() == []
    assert session.next_batch() is None
    assert session.refused is None
    receive(session, Bye(reason="another tokenizer", fatal=True))
    assert session.refused is not None


def test_a_request_that_nobody_speaks_of_is_asked_about() -> None:
    """Its end may have been lost."""
    session = push()
    receive(session, opening(9), now=1.0)
    assert session.tick(now=2.9) == []
    assert session.tick(now=3.1) == [Need(request="r", generation=0, have_length=9)]
    assert session.tick(now=4.0) == []
    receive(session, commit(9, 9), now=4.1)  # it lives
    assert session.tick(now=6.0) == []
    assert len(session.tick(now=6.2)) == 1


def test_push_publishes_what_is_new_and_only_that() -> None:
    draft = DraftEnd({"r": TEXT}, Speculation(num_leaves=3, num_children=2))
    draft.session.receive(opening(), now=0.0)
    seen: dict[tuple[int, ...], float] = {}
    for step in range(1, 5):
        [proposal] = draft.step()
        assert isinstance(proposal, Propose)
        assert (proposal.base_length, proposal.base_digest) == (5, Prefix(TEXT[:5]).digest)
        assert proposal.serial == step
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(proposal.tokens.tolist(), proposal.parents.tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        fresh = [path for path in paths if path not in seen]
        assert len(fresh) == 2 * (1 if step == 1 else min(3, 2 ** (step - 1)))
        seen.update(dict.fromkeys(paths))
    tree = draft.session.drafts[KEY].tree
    assert tree.size() == len(seen) == draft.session.num_drafted


def test_pull_speaks_only_when_asked() -> None:
    draft = DraftEnd({"r": TEXT}, Speculation(delivery="pull"))
    assert draft.session.receive(opening(), now=0.0) == []
    assert draft.step() == []
    [answer] = draft.session.receive(commit(5, 6, ask=True), now=0.0)
    assert isinstance(answer, Propose)
    assert answer.base_length == 6
    assert draft.session.receive(commit(5, 6), now=0.0) == []
    assert draft.step() == []


def test_a_question_at_an_old_head_is_not_answered() -> None:
    draft = DraftEnd({"r": TEXT}, Speculation(delivery="pull"))
    draft.session.receive(opening(9), now=0.0)
    assert draft.session.receive(commit(5, 6, ask=True), now=0.0) == []
    assert draft.session.receive(opening(7, ask=True), now=0.0) == []
    assert len(draft.session.receive(opening(9, ask=True), now=0.0)) == 1


def test_an_empty_answer_is_an_answer() -> None:
    draft = DraftEnd({"r": TEXT}, Speculation(delivery="pull", on_miss="plain"))
    draft.session.receive(opening(), now=0.0)
    [answer] = draft.session.receive(commit(5, 6, ask=True), now=0.0)
    assert isinstance(answer, Propose)
    assert len(answer.tokens) == 0


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_fan_out_remembers_the_chain_it_delivered(shape: str) -> None:
    settings = Speculation(
        growth="fan_out",
        delivery="pull",
        verify_shape=shape,  # type: ignore[arg-type]
        on_miss="draft",
        num_draft_tokens=3,
        num_leaves=12,
    )
    draft = DraftEnd({"r": TEXT}, settings, a=1.0)
    draft.session.receive(opening(ask=True), now=0.0)
    answers = [message for _ in range(5) for message in draft.step()]
    assert len(answers) == 1
    assert draft.session.drafts[KEY].trunk == TEXT[5:8]


def test_one_step_serves_the_best_leaves_of_all_requests() -> None:
    settings = Speculation(num_leaves=4, num_children=2)
    session = DraftSession(settings)
    for name in ("a", "b"):
        message = Open(request=name, generation=0, prompt=ints(TEXT[:5]), sampling=Sampling())
        session.receive(message, now=0.0)
    scores = {"a": [-0.1, -0.2], "b": [-1.0, -2.0]}

    def step() -> dict[str, int]:
        batch = session.next_batch()
        assert batch is not None
        assert batch.num_leaves <= 4
        below = [
            [
                Expansion(
                    tokens=ints([1, 2]), parents=ints([-1, -1]), scores=np.array(scores[draft.request], np.float32)
                )
                for _ in leaves
            ]
            for draft, leaves in zip(batch.drafts, batch.leaves, strict=True)
        ]
        session.expanded(batch, below)
        return {draft.request: len(leaves) for draft, leaves in zip(batch.drafts, batch.leaves, strict=True)}

    assert step() == {"a": 1, "b": 1}
    assert step() == {"a": 2, "b": 2}
    assert step() == {"a": 4}  # the other request's are less likely


def test_inner_nodes_of_a_sub_tree_are_not_expanded_again() -> None:
    session = push(num_leaves=8)
    receive(session, opening())
    batch = session.next_batch()
    assert batch is not None
    chain = Expansion(tokens=ints([1, 2, 3]), parents=ints([-1, 0, 1]), scores=np.full(3, -0.1, np.float32))
    session.expanded(batch, [[chain]])
    batch = session.next_batch()
    assert batch is not None
    tree = session.drafts[KEY].tree
    assert [tree.path_tokens(leaf) for leaf in batch.leaves[0]] == [[1, 2, 3]]


def test_a_small_tree_goes_on_growing_as_its_root_moves() -> None:
    """Nodes that are no longer below the root do not count against the cap."""
    draft = DraftEnd({"r": TEXT}, Speculation(num_leaves=4, num_children=3, max_nodes=60, num_draft_tokens=30), a=1.0)
    draft.session.receive(opening(), now=0.0)
    depths = []
    for length in range(5, 60):
        for _ in range(12):
            draft.step()
        tree = draft.session.drafts[KEY].tree
        depths.append(len(tree.best_chain(99)))
        draft.session.receive(commit(length, length + 1), now=0.0)
    assert min(depths) >= 5


def two_guesses(token: int) -> Expansion:
    scores = np.array([-0.5, -1.5], np.float32)
    return Expansion(tokens=ints([token, token + 1]), parents=ints([-1, -1]), scores=scores)


def test_steps_held_back_make_one_message_with_the_same_nodes() -> None:
    def grown(*, hold: bool) -> tuple[DraftSession, list[Message]]:
        session = DraftSession(Speculation(num_leaves=2, num_children=2))
        session.receive(opening(), now=0.0)
        messages: list[Message] = []
        for token in (10, 20, 30):
            batch = session.next_batch()
            assert batch is not None
            below = [[two_guesses(token + 2 * i) for i in range(len(leaves))] for leaves in batch.leaves]
            messages += session.expanded(batch, below, hold=hold)
        return session, messages + session.flush()

    at_once, many = grown(hold=False)
    together, one = grown(hold=True)
    assert len(many) == 3
    assert len(one) == 1
    assert at_once.drafts["r", 0].tree.token == together.drafts["r", 0].tree.token
    assert isinstance(one[0], Propose)
    assert len(one[0].tokens) == together.drafts["r", 0].tree.size()


def test_guesses_with_senseless_scores_make_a_message_all_the_same() -> None:
    """A drafter whose logits overflow goes on, and so does everything else."""
    session = push()
    receive(session, opening())
    batch = session.next_batch()
    assert batch is not None
    scores = np.array([np.nan, -np.inf], np.float32)
    [proposal] = session.expanded(batch, [[Expansion(tokens=ints([1, 2]), parents=ints([-1, -1]), scores=scores)]])
    sent = decode(encode(proposal))
    assert isinstance(sent, Propose)
    assert sent.tokens.tolist() == [1, 2]


def test_more_guesses_than_a_message_holds() -> None:
    session = push(max_nodes=8192)
    receive(session, opening())
    batch = session.next_batch()
    assert batch is not None
    count = MAX_NODES + 100
    chain = Expansion(tokens=ints(range(count)), parents=ints(range(-1, count - 1)), scores=np.zeros(count, np.float32))
    [proposal] = session.expanded(batch, [[chain]])
    sent = decode(encode(proposal))
    assert isinstance(sent, Propose)
    assert sent.tokens.tolist() == list(range(MAX_NODES))
