"""The leader's figures as one flat record, sent to frontends with the end of each request."""

from __future__ import annotations

from dist_spec.core.target_session import TargetSession
from dist_spec.models.invariance import Probe
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.ledger import Ledger

COORDINATION_PHASES = ("verdict", "commit", "receive", "select")
"""What lies between the end of one verification and the start of the next, noise and waits apart."""


def run_stats(
    session: TargetSession, timeline: Timeline, ledger: Ledger, found: Probe, *, strict: bool
) -> dict[str, float]:
    """Totals since the process began; a frontend subtracts what it saw before its own run.

    What matters most comes first, as a message carries only so many figures: links may be many.

    Keys: `time_<phase>_s` (phases add up to the wall time), `coordination_ms_median`, `depth_<d>_rows/_tokens` (ready
    depth at the start of a row's verification, and tokens committed by it), `link_<peer>_<direction>_<kind>_messages/
    _bytes`, `session_<count>`, `drafter_<name>_busy_s/_proposals/_nodes`, `batch_invariant`, `max_logit_difference`.
    """
    timeline.enter(timeline.phase)
    stats = {f"time_{phase}_s": spent for phase, spent in timeline.totals.items()}
    stats["batch_invariant"] = float(strict)
    stats["max_logit_difference"] = found.max_logit_difference
    stats["coordination_ms_median"] = 1e3 * timeline.median_step_s()
    counts = session.counts
    for name in ("steps", "rows", "ready_rows", "drafted", "verified", "accepted", "committed", "proposals"):
        stats[f"session_{name}"] = getattr(counts, name)
    for name in ("stale", "waits", "garbage"):
        stats[f"session_{name}"] = getattr(counts, name)
    for depth, (rows, tokens) in sorted(counts.depths.items()):
        stats[f"depth_{depth}_rows"] = rows
        stats[f"depth_{depth}_tokens"] = tokens
    for member in session.membership.members.values():
        if member.role == "drafter":
            stats[f"drafter_{member.name}_busy_s"] = member.busy_s
            stats[f"drafter_{member.name}_proposals"] = member.proposals
            stats[f"drafter_{member.name}_nodes"] = member.useful_nodes
    for row in ledger.rows():
        stats[f"link_{row.peer}_{row.direction}_{row.kind}_messages"] = row.messages
        stats[f"link_{row.peer}_{row.direction}_{row.kind}_bytes"] = row.num_bytes
        if row.exposed_s > 0:
            stats[f"link_{row.peer}_{row.direction}_{row.kind}_exposed_s"] = row.exposed_s
    return stats
