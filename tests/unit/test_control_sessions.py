"""Calibration, floor, kinds of tokens, observer and clocks as both sessions see them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dist_spec.core.assignment import Assignment
from dist_spec.core.attachment import Attachment
from dist_spec.core.control.costs import VerifyCost
from dist_spec.core.draft_session import DraftSession
from dist_spec.core.growth.pace import Follower, Pace
from dist_spec.core.growth.share import Share
from dist_spec.core.membership import Membership
from dist_spec.core.messages import NO_FLOOR, Commit, Forget, Hello, Open, Ping, Propose
from dist_spec.core.plan import Plan
from dist_spec.core.prefix import Prefix
from dist_spec.core.settings import Speculation
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Expansion, Sampling
from tests.unit.session_cases import DraftEnd, Leader, chain, ints, kinds, run_pair, text_of, tree_below

TEXT = text_of(1)


def attached(settings: Speculation | None = None, *, frontend: bool = True) -> Leader:
    made = Leader({"r": TEXT}, settings)
    made.hello("d")
    if frontend:
        made.hello("f", role="frontend")
    made.open(peer="f" if frontend else "")
    made.step()
    return made


def next_kind(made: Leader, tokens: list[int], parents: list[int]) -> str:
    base = len(made.session.live["r", 0].sequence.prefix)
    if tokens:
        made.send("d", tree_below(TEXT, base, tokens, parents))
    [commit] = kinds(made.step()[1], Commit, "f")
    assert isinstance(commit, Commit)
    return commit.last_kind


def test_the_last_token_is_plain_recovered_or_bonus() -> None:
    made = attached()
    at = len(made.session.live["r", 0].sequence.prefix)
    assert next_kind(made, [], []) == "plain"
    at += 1
    wrong = (TEXT[at] + 1) % 500
    assert next_kind(made, [wrong], [-1]) == "recovered"
    at += 1
    assert next_kind(made, [TEXT[at], TEXT[at + 1]], [-1, 0]) == "bonus"
    at += 3
    assert next_kind(made, [TEXT[at], (TEXT[at + 1] + 1) % 500], [-1, 0]) == "recovered"
    at += 2
    assert next_kind(made, [wrong, TEXT[at]], [-1, -1]) == "bonus"


def test_the_observer_sees_every_row_and_what_arrived() -> None:
    made = attached()
    seen: list[dict] = []
    made.session.observer = seen.append
    base = len(made.session.live["r", 0].sequence.prefix)
    made.send("d", chain(TEXT, base, TEXT[base : base + 3]))
    made.step()
    made.step()
    assert [one["step"] for one in seen] == [2, 3]
    first = seen[0]
    assert first["drafters"] == ["d"] * 3
    assert first["path"] == [0, 1, 2]
    assert first["tokens"] == TEXT[base : base + 4]
    assert (first["depth"], first["arrivals"], first["arrived_nodes"]) == (3, 1, 3)
    assert len(first["scores"]) == len(first["parents"]) == 3
    assert (seen[1]["arrivals"], seen[1]["drafters"], seen[1]["queue"]) == (0, [], 0)
    assert seen[1]["kv_free"] > 0


def test_reliability_counts_verified_nodes_whose_parent_was_accepted() -> None:
    made = attached()
    base = len(made.session.live["r", 0].sequence.prefix)
    wrong = [(TEXT[base + i] + 1) % 500 for i in range(3)]
    proposal = tree_below(TEXT, base, [TEXT[base], wrong[0], wrong[1], TEXT[base + 2]], [-1, -1, 0, 2])
    scores = np.log(np.array([0.62, 0.21, 0.42, 0.9], np.float32))
    made.send("d", replace(proposal, scores=scores))
    made.step()
    tables = made.session.mirrors.reliability.tables
    assert tables["d"][:, 0].tolist() == [0, 0, 1, 0, 1, 0, 1, 0, 0, 0]  # the child of a rejected node says nothing
    assert tables["d"][:, 2].tolist() == [0, 0, 0, 0, 0, 0, 1, 0, 0, 0]
    assert tables["d"][6, 1] == pytest.approx(0.62, abs=0.01)
    assert tables["path"][:, 0].sum() == 4
    assert tables["path"][:, 2].sum() == 1


def test_guesses_inside_the_leader_are_calibrated_there() -> None:
    """A local drafter that is always wrong and always sure of itself is believed less and less."""
    made = Leader({"r": TEXT}, Speculation())
    made.open(max_tokens=60)
    made.step()
    seen = []
    for _ in range(50):
        [live] = made.session.without_guess()
        token = (TEXT[len(live.sequence.prefix)] + 1) % 500
        guess = Expansion(tokens=ints([token]), parents=ints([-1]), scores=np.array([-0.05], np.float32))
        made.session.guess(live.sequence.key, guess, drafter="local")
        plan, _ = made.step()
        seen.append(math.exp(plan.rows[0].scores[0]))
    assert seen[0] == pytest.approx(math.exp(-0.05), abs=0.01)
    assert seen[-1] < 0.1
    assert made.session.mirrors.reliability.tables["local"][:, 0].sum() == 50


def test_forget_reaches_drafters_and_the_leaders_own() -> None:
    made = attached()
    assert not made.session.take_forgotten()
    assert kinds(made.send("d", Forget()), Forget) == []  # not for a drafter to ask
    assert not made.session.take_forgotten()
    assert made.send("f", Forget()) == [("d", Forget())]
    assert made.session.take_forgotten()
    assert not made.session.take_forgotten()
    session = DraftSession(Speculation())
    session.receive(Forget(), now=0.0)
    assert session.forgotten


def test_the_floor_travels_with_commits_once_the_price_is_known() -> None:
    costs = VerifyCost.of(lambda rows, nodes: 10e-3 + 4e-3 * nodes, max_rows=1, max_nodes=8)
    made = attached(Speculation(budget=8, adaptive=True))
    made.session.measured(costs)
    floors = [one.floor for _ in range(20) for one in kinds(made.step()[1], Commit, "d")]
    assert floors[0] == NO_FLOOR
    assert math.exp(floors[-1]) == pytest.approx(0.05 * 50.0 * 4e-3, rel=0.5)  # 20 ms a step in these tests
    fixed = attached(Speculation(budget=8))
    fixed.session.measured(costs)
    assert {one.floor for _ in range(20) for one in kinds(fixed.step()[1], Commit, "d")} == {NO_FLOOR}


def opened(settings: Speculation) -> DraftSession:
    session = DraftSession(settings)
    session.receive(Open(request="r", generation=0, prompt=ints(TEXT[:5]), sampling=Sampling(max_tokens=300)), now=0.0)
    return session


def grow(session: DraftSession, tokens: list[int], probabilities: list[float]) -> list[Propose]:
    batch = session.next_batch()
    assert batch is not None
    scores = np.log(np.array(probabilities, np.float32))
    one = Expansion(tokens=ints(tokens), parents=np.full(len(tokens), -1, np.int32), scores=scores)
    below = [[one] + [Expansion.empty()] * (len(leaves) - 1) for leaves in batch.leaves]
    return [m for m in session.expanded(batch, below) if isinstance(m, Propose)]


def commit(base: int, length: int, *, floor: float) -> Commit:
    digest = Prefix(TEXT[:base]).digest
    tokens = ints(TEXT[base : base + length])
    return Commit(request="r", generation=0, base_length=base, base_digest=digest, tokens=tokens, floor=floor)


def test_a_node_below_the_floor_is_kept_until_it_is_worth_sending() -> None:
    session = opened(Speculation(num_leaves=1))
    session.guesses.floor = math.log(0.1)
    other = (TEXT[5] + 1) % 500
    [proposal] = grow(session, [other, TEXT[5], (TEXT[5] + 2) % 500], [0.9, 0.05, 0.01])
    assert proposal.tokens.tolist() == [other]
    assert session.num_drafted == 3
    assert session.receive(commit(5, 0, floor=math.log(0.1)), now=0.0) == []
    lifted = session.receive(commit(5, 0, floor=math.log(0.02)), now=0.0)
    assert [message.tokens.tolist() for message in lifted if isinstance(message, Propose)] == [[TEXT[5]]]


def test_what_hangs_on_a_withheld_node_is_sent_when_the_text_goes_there() -> None:
    session = opened(Speculation(num_leaves=1))
    session.guesses.floor = math.log(0.1)
    assert grow(session, [TEXT[5]], [0.05]) == []
    assert grow(session, [TEXT[6]], [0.9]) == []
    [sent] = session.receive(commit(5, 1, floor=math.log(0.1)), now=0.0)
    assert isinstance(sent, Propose)
    assert (sent.base_length, sent.tokens.tolist()) == (6, [TEXT[6]])


def test_withheld_nodes_that_became_impossible_are_never_sent() -> None:
    session = opened(Speculation(num_leaves=1, max_nodes=4096))
    session.guesses.floor = math.log(0.1)
    wrong = (TEXT[5] + 1) % 500
    assert grow(session, [TEXT[5], wrong], [0.9, 0.05])[0].tokens.tolist() == [TEXT[5]]
    assert session.receive(commit(5, 1, floor=math.log(0.01)), now=0.0) == []


def test_a_drafters_scores_become_true_over_a_run() -> None:
    """The scripted drafter claims what holds; a pair of sessions run to the end stays calibrated on both ends."""
    text = text_of(2, 1500)
    leader = Leader({"r": text}, Speculation(budget=8))
    draft = DraftEnd({"r": text}, Speculation(budget=8), a=0.7)
    leader.open(max_tokens=900)
    run_pair(leader, draft, steps=3)
    table = leader.session.mirrors.reliability.tables["d"]
    full = table[table[:, 0] >= 200]
    assert len(full)
    assert np.abs(full[:, 1] - full[:, 2]).max() / full[:, 0].min() < 0.06
    assert draft.session.guesses.scorer.calibrator.num_labels > 1000


def test_followers_start_low_and_shrug_off_surprises() -> None:
    one = Follower()
    for seconds in (0.5, 0.02, 0.01, 0.011):  # a prompt is read first
        assert not one.known
        one.saw(seconds)
    assert one.known
    assert one.seconds == 0.01
    one.saw(10.0)
    one.saw(0.0)
    assert one.seconds < 0.0108
    for _ in range(100):
        one.saw(0.02)
    assert one.seconds == pytest.approx(0.02, rel=0.05)


def test_depth_is_capped_by_what_can_be_of_use() -> None:
    pace = Pace()
    assert pace.depth_cap(64) == 16
    assert pace.depth_cap(8) == 8
    for step in range(40):
        pace.began(now=step * 0.0025)
    for step in range(40):
        pace.committed(("r", 0), now=step * 0.02)
    assert pace.depth_cap(64) == 16  # 2 x 20 / 2.5
    pace.link_s = 0.005
    assert pace.depth_cap(64) == 24
    assert pace.depth_cap(6) == 6
    pace.rested()
    pace.began(now=100.0)  # a rest is no draft step
    assert pace.draft.seconds == pytest.approx(0.0025)
    slow = Pace()
    for step in range(10):
        slow.began(now=step * 1.0)
        slow.committed(("r", 0), now=step * 0.01)
    assert slow.depth_cap(64) == 4
    slow.closed(("r", 0))


def test_two_drafters_share_all_branches_and_both_grow_the_best_chain() -> None:
    tree = DraftTree(5, 1)
    shares = [Share(index=i, count=2) for i in range(2)]
    random = np.random.default_rng(0)
    nodes = tree.graft(tree.root, ints(range(50)), ints([-1] * 50), -random.random(50).astype(np.float32))
    for _ in range(60):
        scores = -random.random(3).astype(np.float32)
        nodes += tree.graft(
            nodes[random.integers(len(nodes))], ints(random.integers(0, 400, 3)), ints([-1] * 3), scores
        )
    best = {tree.root, *tree.best_chain(99)}
    owners = {node: [share.takes(tree, node) for share in shares] for node in tree.nodes()}
    assert all(sum(takes) == (2 if node in best else 1) for node, takes in owners.items())
    assert all(
        owners[node] == owners[tree.parent[node]]
        for node in owners
        if node not in best and tree.parent[node] not in best
    )
    halves = [sum(takes[i] for takes in owners.values()) for i in range(2)]
    assert min(halves) > 0.2 * sum(halves)


def test_only_drafters_of_one_kind_that_work_hard_share() -> None:
    members = Membership()
    for name, kind in (("a", "model"), ("b", "ngram"), ("c", "model"), ("d", "ngram")):
        members.join(name, Hello(role="drafter", name=name, kind=kind), now=0.0)
    members.join("f", Hello(role="frontend", name="f"), now=0.0)
    assignment = Assignment(members)
    assignment.update(now=0.0)
    assert [assignment.share(name) for name in "abcdf"] == [(0, 2), (0, 1), (1, 2), (0, 1), (0, 1)]
    members.members["a"].silent = True
    assignment.update(now=0.0)
    assert assignment.share("c") == (0, 1)
    assert assignment.share("a") == (0, 1)


def test_both_ends_learn_the_round_trip() -> None:
    """3 ms there, 4 ms back, clocks 1000 s apart; nobody answers at once."""
    made = Leader({"r": TEXT})
    end = Attachment(Hello(role="drafter", name="d", kind="model"), heartbeat_s=1.0)
    made.now = 50.0
    made.send("d", end.start(now=1050.0)[0])
    [ping] = end.tick(now=1051.0)
    made.now = 51.003
    made.send("d", ping)
    made.now = 51.5
    [(_, pong)] = made.session.tick(now=made.now)
    assert isinstance(pong, Ping)
    end.heard(pong, now=1051.504)
    assert end.round_trip_s == pytest.approx(0.007)
    [again] = end.tick(now=1052.1)
    made.now = 52.103
    made.send("d", again)
    assert made.session.membership.members["d"].round_trip_s == pytest.approx(0.007)


def test_a_blind_rule_chooses_by_depth_alone() -> None:
    settings = Speculation(growth="optimistic", verify_shape="chain", budget=8, adaptive=True, blind=True)

    def budgets(score: float) -> list[int]:
        made = Leader({"r": TEXT}, settings)
        made.session.measured(VerifyCost.of(lambda rows, nodes: 10e-3 + 3e-3 * nodes, max_rows=1, max_nodes=8))
        made.hello("d")
        made.open()
        made.step()
        chosen = []
        for _ in range(12):
            base = len(made.session.live["r", 0].sequence.prefix)
            right = chain(TEXT, base, [TEXT[base], *[(TEXT[base + i] + 1) % 500 for i in range(1, 6)]])
            made.send("d", replace(right, scores=np.full(6, score, np.float32)))
            plan, _ = made.step()
            assert isinstance(plan, Plan)
            chosen.append(plan.num_nodes)
        return chosen

    assert budgets(-0.01) == budgets(-9.0)
    assert budgets(-0.01)[0] > 1 == budgets(-0.01)[-1]  # depth 2 was never right
