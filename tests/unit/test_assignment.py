"""Who serves what: teams, shares, moves, rests; whatever comes, goes or fails, every request has its drafters."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dist_spec.core.admission import FeatureFacts
from dist_spec.core.assignment import Assignment
from dist_spec.core.membership import Membership
from dist_spec.core.messages import Close, Commit, Features, FeatureWish, Hello, Need, Open, Ping
from dist_spec.core.settings import PerRequest, Speculation
from dist_spec.core.usefulness import BARREN_AFTER, FIRST_REST_S, Usefulness
from tests.unit.leader_cases import TEXT, leader, length
from tests.unit.session_cases import PROMPT, chain, kinds


class Pool:
    """An assignment with its members, and the moments at which things happen."""

    def __init__(self, per_request: PerRequest, *kinds: str) -> None:
        self.members = Membership()
        self.assignment = Assignment(self.members, per_request=per_request)
        self.now = 0.0
        for number, kind in enumerate(kinds):
            self.join(f"d{number}", kind)

    def join(self, peer: str, kind: str = "model") -> None:
        self.members.join(peer, Hello(role="drafter", name=peer, kind=kind), now=self.now)
        self.assignment.joined(peer, now=self.now)

    def leave(self, peer: str) -> None:
        self.members.leave(peer)
        self.assignment.left(peer)

    def begin(self, *names: str) -> None:
        for name in names:
            self.assignment.began((name, 0))

    def update(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.assignment.update(now=self.now)

    def serving(self) -> dict[str, list[str]]:
        return {key[0]: self.assignment.serving(key) for key in self.assignment._requests}

    def loads(self) -> dict[str, int]:
        return dict(Counter(peer for peers in self.serving().values() for peer in peers))

    def verify(self, *, fed: set[str], accepted: dict[str, int] | None = None, times: int = 1) -> None:
        for _ in range(times):
            for name in self.serving():
                self.assignment.verified((name, 0), fed=fed, accepted=accepted or {}, now=self.now)


def names(count: int) -> list[str]:
    return [f"r{number}" for number in range(count)]


def test_all_serve_all_where_they_may_and_share_branches() -> None:
    pool = Pool("all", "model", "model", "ngram")
    pool.begin("r0", "r1")
    pool.update()
    assert pool.serving() == {"r0": ["d0", "d1", "d2"], "r1": ["d0", "d1", "d2"]}
    assert [pool.assignment.share(peer) for peer in ("d0", "d1", "d2")] == [(0, 2), (1, 2), (0, 1)]


def test_without_a_limit_all_serve_one_request_and_each_its_own_of_many() -> None:
    pool = Pool("auto", "model", "model", "model", "model")
    pool.begin("r0")
    pool.update()
    assert pool.serving() == {"r0": ["d0", "d1", "d2", "d3"]}
    pool.begin("r1")
    pool.update()
    assert sorted(map(len, pool.serving().values())) == [2, 2]
    pool.begin("r2", "r3", "r4")
    pool.update()
    assert sorted(pool.loads().values()) == [1, 1, 1, 2]
    for name in ("r1", "r2", "r3", "r4"):
        pool.assignment.ended((name, 0))
    pool.update(0.5)
    assert pool.serving()["r0"] != ["d0", "d1", "d2", "d3"]  # another may begin at once
    pool.update(1.0)
    assert pool.serving() == {"r0": ["d0", "d1", "d2", "d3"]}


def test_requests_are_shared_out_and_lookup_serves_all() -> None:
    pool = Pool(1, "model", "model", "ngram", "model")
    pool.begin(*names(6))
    pool.update()
    assert pool.loads() == {"d0": 2, "d1": 2, "d3": 2, "d2": 6}
    assert all(len(peers) == 2 for peers in pool.serving().values())
    assert {pool.assignment.share(peer) for peer in ("d0", "d1", "d2", "d3")} == {(0, 1)}


def test_kinds_are_shared_out_apart() -> None:
    pool = Pool(1, "model", "head", "model")
    pool.begin(*names(4))
    pool.update()
    assert pool.loads() == {"d0": 2, "d2": 2, "d1": 4}


def test_a_newcomer_takes_over_and_a_leaver_leaves_nobody_alone() -> None:
    pool = Pool(1, "model")
    pool.begin(*names(4))
    pool.update()
    pool.join("d1")
    for _ in range(6):
        pool.update(1.1)
    assert pool.loads() == {"d0": 2, "d1": 2}
    pool.leave("d0")
    pool.update()
    assert pool.loads() == {"d1": 4}
    pool.members.members["d1"].silent = True
    pool.update()
    assert pool.loads() == {}


def test_a_slow_drafter_gets_fewer_requests() -> None:
    pool = Pool(1, "model", "model")
    for _ in range(4):
        pool.now += 1.0
        for peer, step_s in (("d0", 0.002), ("d1", 0.008)):
            done = pool.members.members[peer].progress + int(1 / step_s)
            pool.members.pinged(peer, Ping(progress=done, busy_s=pool.now), now=pool.now)
    pool.begin(*names(5))
    pool.update()
    assert pool.loads() == {"d0": 4, "d1": 1}


def test_one_whose_guesses_are_hardly_accepted_gets_fewer() -> None:
    pool = Pool(1, "model", "model")
    pool.begin(*names(6))
    pool.update()
    assert pool.loads() == {"d0": 3, "d1": 3}
    pool.verify(fed={"d0", "d1"}, accepted={"d0": 3, "d1": 1}, times=60)
    for _ in range(8):
        pool.update(1.1)
    assert pool.loads()["d0"] > pool.loads()["d1"] > 0


@pytest.mark.parametrize("per_request", ["all", 1])
def test_one_that_is_never_in_time_rests_and_is_tried_again(per_request: PerRequest) -> None:
    pool = Pool(per_request, "model", "model")
    pool.begin(*names(2))
    pool.update()
    for _ in range(3):
        pool.now += 1.0
        pool.verify(fed={"d0"}, accepted={"d0": 2}, times=BARREN_AFTER)
    pool.update()
    assert pool.loads() == {"d0": 2}
    assert pool.assignment.share("d0") == (0, 1)
    pool.update(FIRST_REST_S - 0.5)
    assert pool.loads() == {"d0": 2}
    pool.update(0.6)
    pool.update(1.1)
    assert pool.loads().get("d1", 0) >= 1  # its second chance ...
    for _ in range(3):
        pool.now += 1.0
        pool.verify(fed={"d0"}, accepted={"d0": 2}, times=BARREN_AFTER)
    pool.update(1.1)
    assert "d1" not in pool.loads()
    pool.update(FIRST_REST_S + 1)
    assert "d1" not in pool.loads()  # ... and the next one comes later


def test_nobody_rests_where_nobody_does_better() -> None:
    pool = Pool("auto", "model", "model")
    pool.begin("r0")
    pool.update()
    for _ in range(5):
        pool.update(1.1)
        pool.verify(fed=set(), times=BARREN_AFTER)
    assert pool.serving() == {"r0": ["d0", "d1"]}


def test_what_is_not_known_counts_as_the_mean() -> None:
    useful = Usefulness()
    for peer in ("a", "b"):
        useful.joined(peer, now=0.0)
    for _ in range(40):
        useful.verified(["a"], fed={"a"}, accepted={"a": 2}, now=1.0)
    assert useful.weights({"a": 0.0, "b": 0.0}) == {"a": 1.0, "b": 1.0}
    assert useful.weights({"a": 0.002, "b": 0.0}) == {"a": 1.0, "b": 1.0}
    assert useful.weights({"a": 0.001, "b": 0.003}) == pytest.approx({"a": 2.0, "b": 2 / 3})


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("join", "leave", "silence", "speak", "begin", "end", "verify", "wait")), st.integers(0, 7)
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, per_request=st.sampled_from(("all", "auto", 1, 2, 3)), fed=st.sets(st.integers(0, 7)))
def test_whatever_happens_every_request_has_its_drafters(
    steps: list[tuple[str, int]], per_request: PerRequest, fed: set[int]
) -> None:
    pool = Pool(per_request)
    for what, number in steps:
        peer, request = f"d{number}", f"r{number}"
        members = pool.members.members
        match what:
            case "join":
                pool.join(peer, ("model", "head", "ngram")[number % 3])
            case "leave":
                pool.leave(peer)
            case "silence" if peer in members:
                members[peer].silent = True
            case "speak" if peer in members:
                members[peer].silent = False
                pool.assignment.joined(peer, now=pool.now)
            case "begin":
                pool.begin(request)
            case "end":
                pool.assignment.ended((request, 0))
            case "verify":
                pool.verify(fed={f"d{one}" for one in fed}, accepted={f"d{one}": 1 for one in fed}, times=70)
            case "wait":
                pool.now += 2.0 * number
        pool.update()
        check(pool, per_request)


def check(pool: Pool, per_request: PerRequest) -> None:
    drafters = pool.members.drafters()
    kind_of = {peer: pool.members.members[peer].kind for peer in drafters}
    resting = {peer for peer in drafters if pool.assignment.usefulness.is_resting(peer, now=pool.now)}
    for kind in {*kind_of.values()} - {"ngram"}:
        assert {peer for peer in drafters if kind_of[peer] == kind} - resting, "a whole kind rests"
    for peers in pool.serving().values():
        counts = Counter(kind_of[peer] for peer in peers)
        assert counts["ngram"] == sum(kind == "ngram" for kind in kind_of.values())
        for kind in {*kind_of.values()} - {"ngram"}:
            assert 1 <= counts[kind] <= (per_request if isinstance(per_request, int) else len(drafters))
            shares = sorted(pool.assignment.share(peer) for peer in peers if kind_of[peer] == kind)
            assert shares == [(index, counts[kind]) for index in range(counts[kind])]
        assert not resting & set(peers)


# ---- the leader heeds it ------------------------------------------------------------------------------------------


def test_a_leader_tells_a_drafter_of_its_own_requests_only() -> None:
    made = leader(Speculation(drafters_per_request=1))
    for peer in ("d", "e"):
        made.hello(peer, kind="model")
    made.open("r")
    made.open("s")
    _, out = made.step()
    owner = {message.request: peer for peer, message in out if isinstance(message, Open)}
    assert set(owner) == {"r", "s"}
    assert set(owner.values()) == {"d", "e"}
    assert {message.request: peer for peer, message in out if isinstance(message, Commit)} == owner
    other = "e" if owner["r"] == "d" else "d"
    [(peer, close)] = made.send(other, Need(request="r", generation=0, have_length=PROMPT))
    assert (peer, close.reason) == (other, "unknown")
    # What it guessed all the same is as good as anybody's.
    made.send(other, chain(TEXT, length(made), TEXT[length(made) : length(made) + 2]))
    made.step()
    assert made.session.counts.accepted == 2
    [(_, opening)] = [one for one in made.send(owner["r"], Hello(role="drafter", name=owner["r"], kind="model"))
                      if isinstance(one[1], Open)]  # fmt: skip
    assert opening.request == "r"


def test_requests_of_a_drafter_that_leaves_go_to_another_and_come_back() -> None:
    made = leader(Speculation(drafters_per_request=1))
    made.hello("d", kind="model")
    made.hello("e", kind="model")
    made.open("r")
    made.open("s")
    _, out = made.step()
    lost = {message.request for message in kinds(out, Open, "d")}
    out = made.session.lost("d")
    made.now += 0.1
    out += made.step()[1]
    assert {message.request for message in kinds(out, Open, "e")} == lost
    made.hello("d", kind="model")
    out = []
    for _ in range(4):
        made.now += 1.1
        out += made.session.tick(now=made.now) + made.step()[1]
    assert len(kinds(out, Open, "d")) == 1
    [gone] = kinds(out, Close, "e")
    assert gone.reason == "reassigned"
    assert gone.request == kinds(out, Open, "d")[0].request


def test_a_drafter_that_only_guesses_wrong_and_late_is_relieved() -> None:
    made = leader(Speculation(drafters_per_request=1), max_model_len=1000)
    made.hello("d", kind="model")
    made.hello("e", kind="model")
    made.open("r", max_tokens=300)
    made.open("s", max_tokens=300)
    _, out = made.step()
    [mine] = [message.request for message in kinds(out, Open, "d")]
    told = []
    for _ in range(150):
        for request in ("r", "s"):
            text, at = made.texts[request], length(made, request)
            if request != mine:
                made.send("e", chain(text, at, text[at : at + 1], request=request))
        told += made.session.tick(now=made.now) + made.step()[1]
    assert [message.request for message in kinds(told, Close, "d")] == [mine]
    assert mine in [message.request for message in kinds(told, Open, "e")]


def test_a_head_that_gets_a_request_back_is_sent_its_features_anew() -> None:
    wish = FeatureWish(layers=(0,), hidden_size=2, num_layers=4, window=64)
    made = leader(Speculation(drafters_per_request=1), features=FeatureFacts(hidden_size=2, num_layers=4))
    for peer in ("d", "e"):
        made.hello(peer, kind="head", features=wish)
    made.open()
    assignment = made.session.assignment

    def move(peer: str) -> None:
        assignment._requests["r", 0]["head"] = assignment._team[peer]
        assignment.touched()

    def rows(*, served_by: str) -> int:
        """Runs a step whose features are told, and counts the rows sent to "d"."""
        made.begin()
        move(served_by)
        plan, out = made.begin()
        read = [np.ones((row.forward.num_pending, 2), np.float16) for row in plan.rows]
        out += made.session.apply(plan, made.backend.collect(plan), features=read, now=made.now)
        out += made.session.bulk()
        told = [message for peer, message in out if peer == "d"]
        return sum(len(m.features) for m in told if isinstance(m, Commit)) + sum(
            len(m.rows) for m in told if isinstance(m, Features)
        )

    assert rows(served_by="d") == PROMPT
    assert rows(served_by="e") == 0
    assert rows(served_by="d") == PROMPT + 2
    move("e")
    made.begin()
    assert rows(served_by="d") == PROMPT + 3  # also where no commit came in between
