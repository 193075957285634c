"""The transfer ledger adds up what it is told, per link, direction and kind."""

from __future__ import annotations

import pytest

from dist_spec.transports.clocks import stamp
from dist_spec.transports.ledger import ANY_PEER, MAX_PEERS, Ledger, merge
from dist_spec.transports.outbox import Outbox
from dist_spec.transports.packet import Packet


def filled() -> Ledger:
    ledger = Ledger()
    ledger.count("propose", peer="d1", direction="in", num_bytes=40, local_s=0.25)
    ledger.count("propose", peer="d0", direction="in", num_bytes=50, local_s=0.5)
    ledger.count("propose", peer="d0", direction="in", num_bytes=60)
    ledger.count("commit", peer="d0", direction="out", num_bytes=30)
    ledger.dropped("commit", peer="d0", count=3)
    return ledger


def test_one_row_per_link_direction_and_kind() -> None:
    rows = filled().rows()
    assert [(row.peer, row.direction, row.kind) for row in rows] == [
        ("d0", "in", "propose"),
        ("d0", "out", "commit"),
        ("d1", "in", "propose"),
    ]
    assert (rows[0].messages, rows[0].num_bytes, rows[0].local_s) == (2, 110, 0.5)
    assert (rows[1].messages, rows[1].num_bytes, rows[1].drops) == (1, 30, 3)


def test_a_drop_is_no_message() -> None:
    ledger = Ledger()
    ledger.dropped("propose", peer="d0")
    total = ledger.total("propose", direction="out")
    assert (total.messages, total.num_bytes, total.drops) == (0, 0, 1)


def test_waiting_is_exposed_and_the_rest_is_hidden() -> None:
    ledger = filled()
    ledger.waited("propose", 0.25)
    ledger.waited("propose", 0.5, peer="d0")
    ledger.waited("propose", 1.0, peer="d1")
    by_peer = {row.peer: row for row in ledger.rows() if row.kind == "propose"}
    assert by_peer[ANY_PEER].exposed_s == 0.25
    assert by_peer["d0"].exposed_s == 0.5
    total = ledger.total("propose", direction="in")
    assert total.exposed_s == 1.75
    assert (total.messages, total.num_bytes) == (3, 150), "attributing time adds no message"


def test_totals_add_up_and_leave_the_rows_alone() -> None:
    ledger = filled()
    before = [(row.peer, row.messages, row.num_bytes) for row in ledger.rows()]
    for _ in range(2):
        totals = merge(ledger.rows())
        assert [(row.direction, row.kind, row.messages) for row in totals] == [
            ("in", "propose", 3),
            ("out", "commit", 1),
        ]
    assert [(row.peer, row.messages, row.num_bytes) for row in ledger.rows()] == before
    assert ledger.total("ping", direction="in").messages == 0


def test_strangers_without_end_share_one_row() -> None:
    ledger = Ledger()
    for number in range(1000):
        ledger.count("malformed", peer=f"?{number}", direction="in", num_bytes=1)
    assert len(ledger.rows()) == MAX_PEERS + 1
    assert ledger.total("malformed", direction="in").messages == 1000
    ledger.count("malformed", peer="?0", direction="in", num_bytes=1)
    assert next(row.messages for row in ledger.rows() if row.peer == "?0") == 2


def packet(kind: str, number: int) -> Packet:
    return Packet(kind=kind, frames=[bytes([number])])


def test_a_full_outbox_gives_up_the_oldest_guess_or_commit_first() -> None:
    ledger = Ledger()
    outbox = Outbox(high_water=3, ledger=ledger)
    for number, kind in enumerate(["open", "propose", "commit", "close", "close"]):
        outbox.push("d0", packet(kind, number))
    assert [one.kind for one in outbox.take("d0")] == ["open", "close", "close"]
    assert {row.kind: row.drops for row in ledger.rows()} == {"propose": 1, "commit": 1}


def test_an_outbox_full_of_others_gives_up_the_oldest() -> None:
    ledger = Ledger()
    outbox = Outbox(high_water=2, ledger=ledger)
    for number in range(4):
        outbox.push("d0", packet("open", number))
    assert [one.frames for one in outbox.take("d0")] == [[b"\2"], [b"\3"]]
    assert ledger.total("open", direction="out").drops == 2


def test_outbox_queues_are_separate() -> None:
    ledger = Ledger()
    outbox = Outbox(high_water=2, ledger=ledger)
    outbox.push("d0", packet("commit", 1))
    outbox.push("d1", packet("commit", 2))
    assert sorted(outbox.waiting()) == ["d0", "d1"]
    assert outbox.pop("d0").frames == [b"\1"]
    assert outbox.peek("d0") is None
    assert outbox.waiting() == ["d1"]
    outbox.give_up("d1")
    assert len(outbox) == 0
    assert [(row.peer, row.drops) for row in ledger.rows()] == [("d1", 1)]
    with pytest.raises(KeyError):
        outbox.pop("d1")


def arrived(ledger: Ledger, sent_s: float, now: float, *, peer: str = "d0") -> None:
    ledger.count("propose", peer=peer, direction="in", num_bytes=1, now=now, sent_us=stamp(sent_s))


def test_what_is_under_way_during_a_verification_is_hidden() -> None:
    ledger = Ledger()
    ledger.verifying(10.0, 10.5)
    ledger.verifying(10.6, 10.8)
    for sent_s, now, hidden_s in (
        (10.7, 10.9, 0.1),  # sent within one
        (10.4, 10.9, 0.3),  # within the one before
        (10.52, 10.58, 0.0),  # between them
        (9.0, 9.5, 0.0),  # before them
        (9.9, 10.95, 0.7),  # around both
    ):
        before = ledger.total("propose", direction="in")
        arrived(ledger, sent_s, now)
        after = ledger.total("propose", direction="in")
        assert after.hidden_s - before.hidden_s == pytest.approx(hidden_s, abs=1e-5)
        assert after.transit_s - before.transit_s == pytest.approx(now - sent_s, abs=1e-5)


def test_what_leaves_is_hidden_behind_the_next_verification() -> None:
    """The receiver's end is not seen from here: the least time that the link takes stands for it."""
    ledger = Ledger()
    ledger.verifying(9.0, 9.5)
    arrived(ledger, 9.6, 9.61)
    for sent_s in (9.995, 10.0):
        ledger.count("commit", peer="d0", direction="out", num_bytes=1, now=sent_s, sent_us=stamp(sent_s))
    ledger.verifying(10.0, 10.5)
    ledger.verifying(10.5, 10.7)
    row = ledger.total("commit", direction="out")
    assert row.transit_s == pytest.approx(0.02, abs=1e-4)
    assert row.hidden_s == pytest.approx(0.015, abs=1e-4)


def test_a_peer_that_greets_may_have_another_clock() -> None:
    ledger = Ledger()
    arrived(ledger, 100.0, 100.001)
    ledger.greeted("d0")
    arrived(ledger, 7777.0, 200.0)
    arrived(ledger, 7778.0, 201.5)
    assert ledger.total("propose", direction="in").transit_s == pytest.approx(0.501, abs=1e-4)


def test_a_second_link_to_the_same_peer_has_rows_of_its_own() -> None:
    ledger = Ledger()
    beside = ledger.on("lane")
    for end, size in ((ledger, 10), (beside, 300), (beside, 400)):
        end.count("features", peer="d0", direction="out", num_bytes=size)
    beside.dropped("features", peer="d0")
    assert [(row.link, row.messages, row.num_bytes, row.drops) for row in ledger.rows()] == [
        ("", 1, 10, 0),
        ("lane", 2, 700, 1),
    ]
    assert ledger.total("features", direction="out").num_bytes == 710
    assert ledger.peers() == beside.peers() == ["d0"]
