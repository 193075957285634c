"""The leader among its peers: drafters and frontends that come, go and say strange things."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dist_spec.core.admission import FeatureFacts
from dist_spec.core.messages import Bye, Close, Commit, FeatureWish, Hello, Need, Open, Ping, Propose
from dist_spec.core.plan import Plan
from dist_spec.core.prefix import Prefix
from dist_spec.core.settings import Speculation
from dist_spec.core.types import Expansion, Sampling
from tests.unit.leader_cases import PULL, TEXT, answer, attached, leader, length
from tests.unit.session_cases import PROMPT, VOCAB, chain, ints, kinds


def test_a_stranger_is_asked_to_greet() -> None:
    made = leader()
    for message in (Ping(), chain(TEXT, 5, [1]), Need(request="r", generation=0, have_length=0)):
        [(peer, bye)] = made.send("x", message)
        assert peer == "x"
        assert isinstance(bye, Bye)
        assert not bye.fatal
    assert made.send("x", Bye()) == []


def test_a_drafter_with_another_tokenizer_is_refused() -> None:
    made = leader(vocabulary=b"\x01" * 8, vocabulary_tokens=[str(i) for i in range(128)])
    [(peer, bye)] = made.hello("d", vocabulary=b"\x02" * 8, vocab_size=128)
    assert peer == "d"
    assert isinstance(bye, Bye)
    assert bye.fatal
    assert made.session.membership.drafters() == []


def test_a_head_that_died_long_ago_keeps_no_other_away() -> None:
    facts = FeatureFacts(hidden_size=8, num_layers=4)
    wish = FeatureWish(layers=(0, 1), hidden_size=8, num_layers=4, window=16)
    made = leader(features=facts)
    made.hello("d", kind="head", features=wish)
    other = {"kind": "head", "features": replace(wish, layers=(1, 2))}
    [(_, bye)] = made.hello("e", **other)
    assert isinstance(bye, Bye)
    for now in (10.0, 400.0):
        made.now = now
        made.session.tick(now=now)
    assert kinds(made.hello("e", **other), Ping, "e")
    assert made.session.features.layers == (1, 2)


def test_a_drafter_that_joins_late_is_told_all_there_is() -> None:
    made = leader()
    made.open()
    made.open("s")
    for _ in range(3):
        made.step()
    out = made.hello("d")
    told = {message.request: message for message in kinds(out, Open, "d")}
    assert set(told) == {"r", "s"}
    assert told["r"].prompt.tolist() == TEXT[:PROMPT]
    assert told["r"].generated.tolist() == TEXT[PROMPT : PROMPT + 3]
    assert kinds(out, Ping, "d")[0].num_drafters == 1
    answer(made, TEXT[length(made) : length(made) + 2])
    made.step()
    assert made.session.counts.accepted == 2


def test_a_drafter_that_revives_after_silence_is_told_everything_anew() -> None:
    made = attached()
    made.now = 6.0
    made.session.tick(now=made.now)
    _, out = made.step()
    assert not kinds(out, Commit, "d")
    out = made.send("d", Ping())
    assert [message.request for message in kinds(out, Open, "d")] == ["r"]
    assert made.send("d", Ping()) == []
    _, out = made.step()
    assert len(kinds(out, Commit, "d")) == 1


def test_a_restarted_drafter_is_told_everything_anew() -> None:
    made = attached(PULL)
    made.step()
    assert "d" in made.session.live["r", 0].asked
    out = made.hello("d")
    assert [message.request for message in kinds(out, Open, "d")] == ["r"]
    assert made.session.live["r", 0].asked == set()  # it no longer knows that it was asked
    assert isinstance(made.begin()[0], Plan)


def test_need_is_answered_from_where_the_asker_is() -> None:
    made = attached()
    for _ in range(4):
        made.step()
    [(_, commit)] = made.send("d", Need(request="r", generation=0, have_length=PROMPT + 2))
    assert isinstance(commit, Commit)
    assert (commit.base_length, commit.base_digest) == (PROMPT + 2, Prefix(TEXT[: PROMPT + 2]).digest)
    assert commit.tokens.tolist() == TEXT[PROMPT + 2 : PROMPT + 5]
    for have in (0, 1000):
        [(_, opening)] = made.send("d", Need(request="r", generation=0, have_length=have))
        assert isinstance(opening, Open)
        assert opening.generated.tolist() == TEXT[PROMPT : PROMPT + 5]
    [(_, close)] = made.send("d", Need(request="r", generation=9, have_length=0))
    assert isinstance(close, Close)


def test_need_repeats_an_open_question() -> None:
    made = attached(PULL)
    made.step()
    for have in (0, PROMPT):
        [(_, told)] = made.send("d", Need(request="r", generation=0, have_length=have))
        assert told.ask


@pytest.mark.parametrize("base_off", [-1, 0, 1, 300])
def test_a_proposal_below_another_prefix_is_dropped(base_off: int) -> None:
    made = attached()
    at = length(made)
    message = Propose(
        request="r",
        generation=0,
        base_length=at + base_off,
        base_digest=12345,
        tokens=ints([1, 2]),
        parents=ints([-1, 0]),
        scores=np.zeros(2, np.float32),
    )
    assert made.send("d", message) == []
    assert made.session.live["r", 0].tree.is_empty()
    assert made.session.counts.stale == 1


@pytest.mark.parametrize("token", [-1, VOCAB, 2**31 - 1])
def test_a_proposal_of_what_is_no_token_is_dropped(token: int) -> None:
    made = attached()
    answer(made, [TEXT[length(made)], token])
    assert made.session.live["r", 0].tree.is_empty()
    assert made.session.counts.stale == 1


def test_a_proposal_for_a_request_that_is_over_is_answered_so() -> None:
    made = attached()
    for message in (chain(TEXT, PROMPT, [1], generation=4), chain(TEXT, PROMPT, [1], request="gone")):
        [(_, close)] = made.send("d", message)
        assert isinstance(close, Close)
        assert close.reason == "unknown"


def test_repeated_late_and_reordered_proposals() -> None:
    made = attached()
    at = length(made)
    whole = chain(TEXT, at, TEXT[at : at + 8])
    first = chain(TEXT, at, TEXT[at : at + 2])
    for message in (whole, first, whole):
        made.send("d", message)
    assert made.session.live["r", 0].tree.size() == 8
    plan, _ = made.begin()
    late = chain(TEXT, PROMPT, TEXT[PROMPT : at + 10])
    made.send("d", late)  # during the verification
    made.finish(plan)
    at = length(made)
    assert made.session.live["r", 0].tree.size() == 1  # what was said beyond the new head
    made.send("d", chain(TEXT, PROMPT, TEXT[PROMPT : at + 3]))
    plan, _ = made.step()
    assert plan.num_nodes == 3
    assert length(made) == at + 4


def test_garbage_is_counted_and_ignored() -> None:
    made = attached()
    assert made.session.garbage("d") == made.session.garbage("x") == []
    assert made.session.counts.garbage == 2
    assert made.session.membership.members["d"].garbage == 1
    commit = Commit(
        request="r", generation=0, base_length=PROMPT, base_digest=Prefix(TEXT[:PROMPT]).digest, tokens=ints([7])
    )
    assert made.send("d", commit) == []  # only the target commits
    assert made.send("d", Open(request="q", generation=0, prompt=ints([1]), sampling=Sampling())) == []
    made.run()
    assert made.generated["r"] == TEXT[PROMPT : PROMPT + 40]


def test_a_mirror_takes_only_so_many_nodes() -> None:
    made = attached(Speculation(max_nodes=16))
    for token in range(200):
        answer(made, [token, token])
    assert len(made.session.live["r", 0].tree) <= 2 * 16 + 2


def test_two_drafters_share_one_mirror() -> None:
    made = attached()
    made.hello("e")
    at = length(made)
    answer(made, TEXT[at : at + 3])
    answer(made, TEXT[at : at + 5], peer="e")
    members = made.session.membership.members
    assert (members["d"].useful_nodes, members["e"].useful_nodes) == (3, 2)
    made.step()
    assert made.session.counts.accepted == 5


def test_guesses_of_the_leader_itself() -> None:
    made = leader()
    made.open(max_tokens=8)
    assert made.session.without_guess() == []  # not begun
    made.step()
    [live] = made.session.without_guess()
    at = length(made)
    guess = Expansion(tokens=ints(TEXT[at : at + 2]), parents=ints([-1, 0]), scores=np.zeros(2, np.float32))
    made.session.guess(live.sequence.key, guess)
    assert made.session.without_guess() == []
    made.step()
    assert made.session.counts.accepted == 2
    made.run()
    assert made.session.take_closed() == [("r", 0)]
    assert leader(Speculation(budget=0)).session.without_guess() == []


def test_heartbeats_reach_everyone() -> None:
    made = attached()
    made.hello("f", role="frontend")
    made.now = 1.5
    assert {peer for peer, message in made.session.tick(now=1.5) if isinstance(message, Ping)} == {"d", "f"}
    assert made.session.tick(now=1.6) == []


def test_hello_and_hello_again_leave_one_member() -> None:
    made = leader()
    for _ in range(3):
        made.send("d", Hello(role="drafter", name="d"))
    assert list(made.session.membership.members) == ["d"]
