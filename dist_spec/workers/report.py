"""The leader's figures as one flat record, sent to frontends with the end of each request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from dist_spec.core.control.reliability import PATH
from dist_spec.core.target_session import TargetSession
from dist_spec.models.invariance import Probe
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.ledger import ANY_PEER, Ledger, LedgerRow

PER_STEP = {
    "coordination": ("verdict", "commit", "receive", "select"),
    "overhead": ("verdict", "commit", "receive", "select", "noise"),
    "handling": ("commit", "receive", "select"),
}
"""What lies between the end of one verification and the start of the next, waits apart; the same with noise that was not
ready; and of it what trees, messages and commits cost."""

_COUNTS = (
    "steps", "rows", "ready_rows", "drafted", "verified", "accepted", "committed", "proposals", "stale", "waits", "garbage",
)  # fmt: skip

DEEPEST = 32
"""What was deeper counts as this deep."""
MAX_DRAFTERS = 6
"""Drafters with figures of their own, those that came first; the others' are added up."""
MAX_LINK_PEERS = 6
OTHERS = "others"


def run_stats(
    session: TargetSession, timeline: Timeline, ledger: Ledger, found: Probe, *, strict: bool
) -> dict[str, float]:
    """Totals since the process began; a frontend subtracts what it saw before its own run.

    A message carries only so many figures (`fields.MAX_ITEMS`): what may be many (depths, drafters, links) is added up
    beyond a number, so that sums stay right however long a run is. What is added up once stays so: totals only grow.

    Keys: `time_<phase>_s` (phases add up to the wall time), `clock_s` and `born_s` (this process's clock now and when the
    account began), `coordination/overhead/handling_ms_median` (per step, see `PER_STEP`), `session_<count>`,
    `depth_<d>_rows/_tokens` (ready depth at the start of a row's verification, and tokens committed by it),
    `tree_<d>_rows/_verified/_accepted` (rows whose tree reached depth d, nodes verified and accepted there),
    `drafter_<name>_busy_s/_proposals/_nodes/_accepted`, `calibration_<what>_<bin>_count/_predicted/_observed`,
    `link_<peer>_<direction>_<kind>_messages/_bytes/_hidden_s/_exposed_s` (`<peer>@<link>` for what went over a second link),
    `batch_invariant`, `max_logit_difference`.
    """
    # What follows the end of the last request is no part of a run.
    now = timeline.enter("idle" if session.idle else timeline.phase)
    stats = {f"time_{phase}_s": spent for phase, spent in timeline.totals.items()}
    stats |= {"clock_s": now, "born_s": timeline.born_s}
    stats["batch_invariant"] = float(strict)
    stats["max_logit_difference"] = found.max_logit_difference
    stats |= {f"{name}_ms_median": 1e3 * timeline.median_step_s(name) for name in PER_STEP}
    stats.update(_session(session))
    stats.update(_ledger(ledger))
    return stats


def _session(session: TargetSession) -> Iterator[tuple[str, float]]:
    counts = session.counts
    for name in _COUNTS:
        yield f"session_{name}", getattr(counts, name)
    for depth, (rows, tokens) in _shallow(counts.depths).items():
        yield f"depth_{depth}_rows", rows
        yield f"depth_{depth}_tokens", tokens
    for depth, (rows, verified, accepted) in _shallow(counts.tree_depths, first_only=True).items():
        yield f"tree_{depth}_rows", rows
        yield f"tree_{depth}_verified", verified
        yield f"tree_{depth}_accepted", accepted
    yield from _drafters(session)
    yield from _calibration(session)


def _shallow(depths: dict[int, list[int]], *, first_only: bool = False) -> dict[int, list[int]]:
    """The rows by depth, those from `DEEPEST` on as one.

    Args:
        first_only: whoever reached a depth reached those above it: the first figure (rows) is not added up.
    """
    found: dict[int, list[int]] = {}
    for depth in sorted(depths):
        row, seen = depths[depth], found.setdefault(min(depth, DEEPEST), [0] * len(depths[depth]))
        for column, one in enumerate(row):
            seen[column] = max(seen[column], one) if first_only and column == 0 else seen[column] + one
    return found


def _drafters(session: TargetSession) -> Iterator[tuple[str, float]]:
    """What each of the drafters did, the first `MAX_DRAFTERS` of them apart."""
    totals: dict[str, list[float]] = {}
    for member in session.membership.members.values():
        if member.role == "drafter":
            name = member.name if len(totals) < MAX_DRAFTERS else OTHERS
            total = totals.setdefault(name, [0.0, 0, 0, 0])
            for column, one in enumerate((member.busy_s, member.proposals, member.useful_nodes, member.accepted)):
                total[column] += one
    for name, total in totals.items():
        for what, one in zip(("busy_s", "proposals", "nodes", "accepted"), total, strict=True):
            yield f"drafter_{name}_{what}", one


def _calibration(session: TargetSession) -> Iterator[tuple[str, float]]:
    """Per drafter and for whole paths, bins of predicted against observed acceptance that have samples."""
    tables = dict(session.mirrors.reliability.tables)
    apart = {PATH, *islice((name for name in tables if name != PATH), MAX_DRAFTERS)}
    shown = {name: table for name, table in tables.items() if name in apart}
    rest = [table for name, table in tables.items() if name not in apart]
    if rest:
        shown[OTHERS] = sum(rest[1:], rest[0])
    for name, table in shown.items():
        for number, (count, predicted, observed) in enumerate(table.tolist()):
            if count:
                yield f"calibration_{name}_{number}_count", count
                yield f"calibration_{name}_{number}_predicted", predicted
                yield f"calibration_{name}_{number}_observed", observed


def _ledger(ledger: Ledger) -> Iterator[tuple[str, float]]:
    for row in _links(ledger.peers(), ledger.rows()):
        link = f"link_{row.peer}{row.link and '@' + row.link}_{row.direction}_{row.kind}"
        yield f"{link}_messages", row.messages
        yield f"{link}_bytes", row.num_bytes
        for name in ("hidden_s", "exposed_s"):
            seconds = getattr(row, name)
            if seconds > 0:
                yield f"{link}_{name}", seconds


def _links(peers: Iterable[str], rows: Iterable[LedgerRow]) -> Iterator[LedgerRow]:
    """The rows of the peers that came first, and those of all others as of one."""
    apart = set(islice(peers, MAX_LINK_PEERS))
    others: dict[tuple[str, str, str], LedgerRow] = {}
    for row in rows:
        if row.peer in apart:
            yield row
        else:
            empty = LedgerRow(peer=ANY_PEER, direction=row.direction, kind=row.kind, link=row.link)
            others.setdefault((row.direction, row.kind, row.link), empty).add(row)
    yield from others.values()
