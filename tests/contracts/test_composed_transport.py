"""Messages over ZeroMQ, tensors over a lane beside it: who carries what, what both ends count, what a broken lane costs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch

from dist_spec.core.feature_inbox import features_of
from dist_spec.core.law import DraftLaw
from dist_spec.core.messages import Bye, Commit, Features, Link, Ping, Propose
from dist_spec.errors import TransportError
from dist_spec.transports.base import LEADER
from dist_spec.transports.collective import CollectiveLeader, CollectivePeer
from dist_spec.transports.composed import LANE, ComposedLeader
from dist_spec.transports.lane import PATIENCE_S
from dist_spec.transports.meeting import Meeting
from dist_spec.transports.reunion import Reunion
from dist_spec.transports.zmq import ZmqLeader
from tests.contracts.lane_cases import Ends, cut, rows_of
from tests.contracts.transport_cases import commit, greeting, ping, propose, wait_for


def rows(count: int, *, value: float = 0.5, size: int = 96) -> np.ndarray:
    return np.full((count, size), value, np.float16)


def features(number: int, *, count: int = 4, size: int = 96) -> Features:
    values = rows(count, value=number, size=size)
    return Features(request="r1", generation=0, base_length=count + number, base_digest=1, rows=values)


def dense(number: int) -> Propose:
    weights = np.arange(1, 51, dtype=np.float32)
    return replace(propose(number), laws=(DraftLaw.dense(weights), DraftLaw.dense(weights)))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def ends(stack: ExitStack) -> Ends:
    ends = Ends(stack)
    ends.greet()
    ends.at_leader.clear()
    return ends


def came(ends: Ends, kind: type) -> list:
    return [message for _, message in ends.at_peer if isinstance(message, kind)]


def test_features_of_a_commit_go_their_own_way_and_come_first(ends: Ends) -> None:
    told = replace(commit(6), features=rows(3))
    num_first = 0
    for _ in range(20):
        ends.at_peer.clear()
        ends.leader.send("d0", told)
        wait_for(lambda: ends.turn() and len(ends.at_peer) == 2)
        num_first += isinstance(ends.at_peer[0][1], Features)
        [first], [second] = came(ends, Features), came(ends, Commit)
        expected = features_of(told)
        assert (
            (first.base_length, first.base_digest)
            == (expected.base_length, expected.base_digest)
            == (8, first.base_digest)
        )
        np.testing.assert_array_equal(first.rows, told.features)
        assert second.apart
        assert not len(second.features)
    assert num_first  # a commit waits 20 ms for them, and on a busy machine they may take longer
    assert rows_of(ends.peer, "in", "features", LANE).messages == 20
    assert rows_of(ends.peer, "in", "features", "") is None
    assert rows_of(ends.peer, "in", "commit", "").messages == 20
    assert rows_of(ends.peer, "in", "commit", LANE) is None


def test_small_messages_and_laws_of_few_tokens_stay_on_zeromq(ends: Ends) -> None:
    ends.leader.send("d0", commit(6))
    ends.peer.send(LEADER, propose(1))
    ends.peer.send(LEADER, dense(2))
    wait_for(lambda: ends.turn() and len(ends.at_leader) == 2 and len(ends.at_peer) == 1)
    assert rows_of(ends.leader, "in", "propose", "").messages == 1
    assert rows_of(ends.leader, "in", "propose", LANE).messages == 1
    [law, _] = next(message.laws for _, message in ends.at_leader if message.base_length == 2)  # type: ignore[union-attr]
    np.testing.assert_array_equal(law.weights, np.arange(1, 51))


def test_everything_over_the_lane(stack: ExitStack) -> None:
    ends = Ends(stack, carries="messages")
    ends.greet()
    ends.at_leader.clear()
    ends.leader.send("d0", replace(commit(6), features=rows(3)))
    ends.peer.send(LEADER, ping(3))
    wait_for(lambda: ends.turn() and len(ends.at_leader) == len(ends.at_peer) == 1)
    [(_, told)] = ends.at_peer
    assert isinstance(told, Commit)
    assert len(told.features) == 3
    assert (
        rows_of(ends.leader, "out", "commit", LANE).messages == rows_of(ends.leader, "in", "ping", LANE).messages == 1
    )
    assert rows_of(ends.leader, "out", "commit", "") is None


def test_the_ledger_counts_what_was_sent(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = ends.leader._collective.lanes.lanes["d0"]
    offered: list[int] = []
    offer = lane.offer
    monkeypatch.setattr(lane, "offer", lambda frames: offer(frames) and (offered.append(sum(map(len, frames))) or True))
    for number in range(5):
        ends.leader.send("d0", features(number))
    ends.leader.send("d0", replace(commit(6), features=rows(3)))
    ends.leader.send("d0", features(9, count=64, size=4096))  # larger than a header: a body of its own
    wait_for(lambda: ends.turn() and len(came(ends, Features)) == 7)
    sent, received = rows_of(ends.leader, "out", "features", LANE), rows_of(ends.peer, "in", "features", LANE)
    assert sent.messages == received.messages == len(offered) == 7
    assert sent.num_bytes == received.num_bytes == sum(offered)
    payload = 2 * (96 * (5 * 4 + 3) + 64 * 4096)
    assert payload < sent.num_bytes < payload + 7 * 60
    big = came(ends, Features)[-1]
    np.testing.assert_array_equal(big.rows, rows(64, value=9, size=4096))
    assert received.transit_s > 0


def test_tensors_stay_tensors_where_the_lane_takes_them_and_become_arrays_elsewhere(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with NCCL, with tensors of the host on gloo."""
    numbers = torch.arange(4 * 96, dtype=torch.float16).reshape(4, 96)
    told = replace(features(1), rows=numbers)
    ends.leader.send("d0", told)
    monkeypatch.setattr(type(ends.leader._collective.lanes.lanes["d0"]), "takes_tensors", True)
    ends.leader.send("d0", told)
    ends.leader.send("d0", replace(commit(6), features=numbers[:2]))
    wait_for(lambda: ends.turn() and len(ends.at_peer) == 4)
    as_array, as_tensor, of_commit = came(ends, Features)
    assert isinstance(as_array.rows, np.ndarray)
    assert isinstance(as_tensor.rows, torch.Tensor)
    assert isinstance(of_commit.rows, torch.Tensor)
    assert as_tensor.rows.dtype == torch.float16
    for rows, expected in ((as_array.rows, numbers), (as_tensor.rows, numbers), (of_commit.rows, numbers[:2])):
        np.testing.assert_array_equal(np.asarray(rows), expected.numpy())
    sent, received = rows_of(ends.leader, "out", "features", LANE), rows_of(ends.peer, "in", "features", LANE)
    assert sent.num_bytes == received.num_bytes > 2 * 96 * (4 + 4 + 2)
    ends.leader._collective.lanes.lanes["d0"].fail("for the test")
    wait_for(lambda: ends.turn() and not ends.is_up)
    ends.leader.send("d0", told)
    ends.leader.send("d0", replace(commit(6), features=numbers[:2]))
    wait_for(lambda: ends.turn() and len(ends.at_peer) == 6)
    (_, whole), (_, alone) = sorted(ends.at_peer[-2:], key=lambda one: type(one[1]).__name__)
    np.testing.assert_array_equal(whole.features, numbers[:2].numpy())  # type: ignore[union-attr]
    np.testing.assert_array_equal(alone.rows, numbers.numpy())  # type: ignore[union-attr]


def test_a_verification_hides_what_is_under_way_on_the_lane(ends: Ends) -> None:
    ends.peer.send(LEADER, dense(2))
    sent = time.monotonic()
    time.sleep(0.05)
    ends.leader.ledger.verifying(sent + 0.01, sent + 0.03)
    wait_for(lambda: ends.turn() and len(ends.at_leader) == 1)
    assert rows_of(ends.leader, "in", "propose", LANE).hidden_s == pytest.approx(0.02, abs=2e-3)


def test_a_lane_that_breaks_is_told_and_zeromq_goes_on_until_the_drafter_greets(
    ends: Ends, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("dist_spec"), "propagate", True)
    assert cut(os.getpid(), spare=ends.ports()) > 0
    wait_for(lambda: ends.turn() and not ends.is_up)
    wait_for(lambda: ends.turn() and caplog.text.count("ZeroMQ carries everything") == 2)
    told = replace(commit(6), features=rows(3))
    ends.leader.send("d0", told)
    ends.leader.send("d0", features(2))
    wait_for(lambda: ends.turn() and len(ends.at_peer) == 2)
    [whole] = came(ends, Commit)
    np.testing.assert_array_equal(whole.features, told.features)
    assert not whole.apart
    assert rows_of(ends.peer, "in", "features", "").messages == 2
    ends.greet()
    ends.at_peer.clear()
    ends.leader.send("d0", features(3))
    wait_for(lambda: ends.turn() and len(ends.at_peer) == 1)
    assert rows_of(ends.peer, "in", "features", LANE).messages == 1


def test_an_end_that_stands_still_is_given_up_at_the_deadline_and_blocks_nobody(stack: ExitStack) -> None:
    ends = Ends(stack, deadline_s=2.0)
    ends.greet()
    slowest = 0.0
    start = time.monotonic()
    while "d0" in ends.leader._collective.lanes.lanes:  # the peer never looks: it takes nothing
        begin = time.monotonic()
        ends.leader.send("d0", features(1, count=64, size=4096))
        slowest = max(slowest, time.monotonic() - begin)
        ends.leader.receive(0.0)
        assert time.monotonic() - start < 20
    assert slowest < 1.5  # far less, but not on every machine; to wait for the peer would take the deadline
    assert ends.leader.ledger.total("features", direction="out").drops > 0
    ends.leader.send("d0", ping(1))
    wait_for(lambda: ends.turn() and any(isinstance(message, Ping) for _, message in ends.at_peer))


def test_a_commit_does_not_wait_for_features_that_were_lost(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    ends.peer._reunion = Reunion()
    monkeypatch.setattr(ends.leader._collective.lanes.lanes["d0"], "offer", lambda frames: True)
    ends.leader.send("d0", replace(commit(6), features=rows(3)))
    wait_for(lambda: ends.turn() and len(ends.at_peer) == 1)
    assert came(ends, Commit)


def test_many_peers_that_stand_still_hold_the_end_up_no_longer_than_one(stack: ExitStack) -> None:
    """None of them ever says farewell: they are waited for together."""
    leader = CollectiveLeader()
    stack.callback(leader.close)
    for number in range(8):
        stack.callback(CollectivePeer(leader.address, f"d{number}").close)
    wait_for(lambda: leader.receive(0.01) == [] and all(leader.lanes.reaches(f"d{i}") for i in range(8)))
    waits: list[float] = []
    for lane in leader.lanes.lanes.values():
        for thread in (lane._sender, lane._receiver):
            assert thread is not None
            thread.join = lambda timeout: waits.append(timeout) or time.sleep(timeout)  # type: ignore[method-assign,func-returns-value]
    leader.close()
    assert sum(waits) <= 2 * PATIENCE_S


def test_a_leader_without_lanes_is_enough(stack: ExitStack) -> None:
    ends = Ends(stack)
    plain = ZmqLeader()
    stack.callback(plain.close)
    ends.peer._zmq.close()
    peer = type(ends.peer)(
        type(ends.peer._zmq)(plain.address, "d1"),
        connect=plain.address,
        carries="tensors",
        device="cpu",
        backend=None,
        deadline_s=1.0,
    )
    stack.callback(peer.close)
    peer.send(LEADER, greeting("d1"))
    peer.send(LEADER, dense(1))
    received: list = []
    wait_for(lambda: received.extend(plain.receive(0.01)) or (peer.receive(0.0) == [] and len(received) == 3))


def test_what_a_peer_wanted_is_forgotten_when_it_leaves(ends: Ends) -> None:
    """Or when many others have asked since: who dies says no farewell."""
    assert isinstance(ends.leader, ComposedLeader)
    cargo = ends.leader._cargo
    assert cargo == {"d0": "tensors"}
    ends.peer.send(LEADER, Bye(reason="leaving"))
    wait_for(lambda: ends.turn() and not cargo)
    for number in range(1000):
        ends.leader._settled([(f"x{number}", Link(state="wanted", carries="messages"))])
    assert cargo.pop("x999") == "messages"
    assert len(cargo) < 200


def test_what_a_peer_wanted_is_kept_as_long_as_its_lane_is_up(ends: Ends) -> None:
    assert isinstance(ends.leader, ComposedLeader)
    assert ends.leader._collective.lanes.reaches("d0")
    for number in range(1000):
        ends.leader._settled([(f"x{number}", Link(state="wanted", carries="messages"))])
    assert ends.leader._cargo["d0"] == "tensors"
    assert len(ends.leader._cargo) < 200


def test_a_store_that_others_can_reach_needs_consent() -> None:
    with pytest.raises(TransportError, match="neither encrypts nor authenticates"):
        Meeting("0.0.0.0", allow_plaintext=False, on_guest=print)
    with pytest.raises(TransportError, match="cannot bind a store"):
        CollectiveLeader("192.0.2.1:0", allow_plaintext=True)


def test_strangers_at_the_store_open_nothing(ends: Ends) -> None:
    store = ends.leader._collective._meeting._store
    for told in (b"garbage", b"[]", b'{"name": "x"}', b'{"name": 1, "key": 2, "backend": 3, "host": 4}'):
        store.queue_push("guests", told)
    time.sleep(0.1)
    ends.turn()
    assert list(ends.leader._collective.lanes.lanes) == ["d0"]
    assert isinstance(ends.leader, ComposedLeader)
    ends.leader.send("d0", features(3))
    wait_for(lambda: ends.turn() and len(came(ends, Features)) == 1)
