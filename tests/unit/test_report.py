"""The leader's figures on their way to a frontend: however much there is to tell, sums stay right and nothing is cut."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from dist_spec.bench.accounts import acceptance_by_depth, calibrations, ready_depths, transfers
from dist_spec.core.messages import MESSAGE_TYPES, Close, Hello
from dist_spec.core.target_session import TargetSession
from dist_spec.models.invariance import Probe
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.codec import decode, encode
from dist_spec.transports.fields import MAX_ITEMS
from dist_spec.transports.ledger import Direction, Ledger
from dist_spec.transports.packet import MALFORMED
from dist_spec.workers.report import DEEPEST, MAX_DRAFTERS, MAX_LINK_PEERS, OTHERS, run_stats
from tests.unit.session_cases import Leader, target_session, text_of

KINDS = [*(kind.__name__.lower() for kind in MESSAGE_TYPES), MALFORMED]
PHASES = ("idle", "receive", "select", "forward", "noise", "verdict", "commit", "wait_pull", "wait_miss")
FOUND = Probe(bit_equal=True, max_logit_difference=0.0, checked_rows=1)


def busy(num_peers: int, *, depth: int = 256) -> tuple[TargetSession, Ledger]:
    """A leader with drafters, depths and links in numbers, all of them used in every way."""
    session, ledger = target_session(), Ledger()
    draw = np.random.default_rng(0)
    for at in range(depth):
        session.counts.depths[at] = [2, 2 + at]
        session.counts.tree_depths[at + 1] = [depth - at, 2 * (depth - at), at % 3]
    for number in range(num_peers):
        attach(session, ledger, f"drafter-{number}")
        edges = np.log(draw.uniform(0.01, 1.0, 200)).astype(np.float32)
        source = session.mirrors.source(f"drafter-{number}")
        session.mirrors.reliability.verified(
            parents=np.full(200, -1, np.int32), scores=edges, sources=[source] * 200, accepted=range(0, 200, 3)
        )
    return session, ledger


def attach(session: TargetSession, ledger: Ledger, peer: str) -> None:
    session.receive(peer, Hello(role="drafter", name=peer), now=0.0)
    session.membership.members[peer].proposals = 3
    ledger.verifying(0.0, 10.0)
    for kind in KINDS:
        for direction in get_args(Direction):
            ledger.count(kind, peer=peer, direction=direction, num_bytes=7, now=5.0, sent_us=4_000_000)
        ledger.waited(kind, 0.5)


def told(session: TargetSession, ledger: Ledger) -> dict[str, float]:
    """As the frontend gets it, with the figures of the request itself before it."""
    timeline = Timeline(lambda: 1.0)
    for phase in PHASES:
        timeline.enter(phase)
    leader = Leader({"r": text_of(1)})
    leader.open()
    [live] = leader.session.live.values()
    stats = {**live.report(), **run_stats(session, timeline, ledger, FOUND, strict=True)}
    assert len(stats) <= MAX_ITEMS
    close = decode(encode(Close(request="r", generation=0, reason="stop", stats=stats, length=9)))
    assert isinstance(close, Close)
    assert len(close.stats) == len(stats)
    return close.stats


@pytest.mark.parametrize("num_peers", [1, MAX_DRAFTERS, MAX_DRAFTERS + 1, 80, 300])
def test_nothing_is_cut_and_sums_are_right(num_peers: int) -> None:
    session, ledger = busy(num_peers)
    stats = told(session, ledger)
    counts = session.counts
    ready = ready_depths(stats)
    assert sum(rows for _, rows, _ in ready) == sum(rows for rows, _ in counts.depths.values())
    assert sum(tokens for _, _, tokens in ready) == sum(tokens for _, tokens in counts.depths.values())
    by_depth = acceptance_by_depth(stats)
    assert sum(row.verified for row in by_depth) == sum(row[1] for row in counts.tree_depths.values())
    assert sum(row.accepted for row in by_depth) == sum(row[2] for row in counts.tree_depths.values())
    assert by_depth[-1].depth == DEEPEST
    assert by_depth[-1].rows == counts.tree_depths[DEEPEST][0]  # whoever got further was there
    links = transfers(stats)
    assert sum(link["messages"] for link in links) == sum(row.messages for row in ledger.rows())
    assert sum(link["bytes"] for link in links) == sum(row.num_bytes for row in ledger.rows())
    assert sum(link["exposed_s"] for link in links) == pytest.approx(0.5 * len(KINDS) * num_peers)
    found = calibrations(stats)
    assert sum(n for what, one in found.items() if what != "path" for n, _, _ in one.bins) == 200 * num_peers
    proposals = sum(one for key, one in stats.items() if key.startswith("drafter_") and key.endswith("_proposals"))
    assert proposals == 3 * num_peers
    assert (f"drafter_{OTHERS}_proposals" in stats) == (num_peers > MAX_DRAFTERS)


def test_a_figure_never_falls_when_others_join() -> None:
    """A frontend subtracts what it was told before its run: a key must go on meaning the same."""
    session, ledger = busy(2)
    before = told(session, ledger)
    for number in range(2, 30):
        attach(session, ledger, f"a-{number}")  # names that sort before those who came first
        after = told(session, ledger)
        totals = [key for key in before if not key.startswith(("time_", "clock_", "calibration_"))]
        assert all(after[key] >= before[key] for key in totals)
        before = after
    assert len({key.split("_")[1] for key in before if key.startswith("link_")}) == MAX_LINK_PEERS + 1


def test_few_are_told_apart() -> None:
    session, ledger = busy(3, depth=5)
    stats = told(session, ledger)
    assert [row.depth for row in acceptance_by_depth(stats)] == [1, 2, 3, 4, 5]
    assert {link["peer"] for link in transfers(stats)} == {"drafter-0", "drafter-1", "drafter-2", "*"}
    assert OTHERS not in calibrations(stats)
