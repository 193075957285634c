"""The leader's figures as one flat record, sent to frontends with the end of each request."""

from __future__ import annotations

from collections.abc import Iterator

from dist_spec.core.target_session import TargetSession
from dist_spec.models.invariance import Probe
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.ledger import Ledger

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


def run_stats(
    session: TargetSession, timeline: Timeline, ledger: Ledger, found: Probe, *, strict: bool
) -> dict[str, float]:
    """Totals since the process began; a frontend subtracts what it saw before its own run.

    What matters most comes first, as a message carries only so many figures: links may be many.

    Keys: `time_<phase>_s` (phases add up to the wall time), `clock_s` and `born_s` (this process's clock now and when the
    account began), `coordination/overhead/handling_ms_median` (per step, see `PER_STEP`), `session_<count>`,
    `depth_<d>_rows/_tokens` (ready depth at the start of a row's verification, and tokens committed by it),
    `tree_<d>_rows/_verified/_accepted` (rows whose tree reached depth d, nodes verified and accepted there),
    `drafter_<name>_busy_s/_proposals/_nodes`, `calibration_<what>_<bin>_count/_predicted/_observed`,
    `link_<peer>_<direction>_<kind>_messages/_bytes/_hidden_s/_exposed_s`, `batch_invariant`, `max_logit_difference`.
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
    for depth, (rows, tokens) in sorted(counts.depths.items()):
        yield f"depth_{depth}_rows", rows
        yield f"depth_{depth}_tokens", tokens
    for depth, (rows, verified, accepted) in sorted(counts.tree_depths.items()):
        yield f"tree_{depth}_rows", rows
        yield f"tree_{depth}_verified", verified
        yield f"tree_{depth}_accepted", accepted
    for member in session.membership.members.values():
        if member.role == "drafter":
            yield f"drafter_{member.name}_busy_s", member.busy_s
            yield f"drafter_{member.name}_proposals", member.proposals
            yield f"drafter_{member.name}_nodes", member.useful_nodes
    yield from _calibration(session)


def _calibration(session: TargetSession) -> Iterator[tuple[str, float]]:
    """Per drafter and for whole paths, bins of predicted against observed acceptance that have samples."""
    for name, table in session.mirrors.reliability.tables.items():
        for number, (count, predicted, observed) in enumerate(table.tolist()):
            if count:
                yield f"calibration_{name}_{number}_count", count
                yield f"calibration_{name}_{number}_predicted", predicted
                yield f"calibration_{name}_{number}_observed", observed


def _ledger(ledger: Ledger) -> Iterator[tuple[str, float]]:
    for row in ledger.rows():
        link = f"link_{row.peer}_{row.direction}_{row.kind}"
        yield f"{link}_messages", row.messages
        yield f"{link}_bytes", row.num_bytes
        for name in ("hidden_s", "exposed_s"):
            seconds = getattr(row, name)
            if seconds > 0:
                yield f"{link}_{name}", seconds
