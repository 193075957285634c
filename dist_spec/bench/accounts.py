"""Where the time of a run went and what the drafting brought, from the figures of one run. Pure arithmetic; it measures
and prints nothing.

Every second of a run is one of: *forward* (the target's device computes), *coordination* (the leader's own work: verdict,
commit, receive, select, noise that was not ready), *idle* by cause (`queue_empty`: no request; `wait_miss`, `wait_pull`).
What the frontend saw beyond the leader's account (its link, its own work) is `outside`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dist_spec.bench.run import RunResult
from dist_spec.server.client import Stream


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeShares:
    """Seconds of one run at the leader.

    Attributes:
        idle_s: by cause.
        wall_s: from the leader's first request to its last end, by its own clock; independent of the sum of the others.
        outside_s: what the frontend's wall time has beyond that.
    """

    forward_s: float
    coordination_s: float
    idle_s: dict[str, float]
    wall_s: float
    outside_s: float

    @property
    def accounted_s(self) -> float:
        """forward + coordination + idle; equals `wall_s` but for what lies between two readings of the clock."""
        return self.forward_s + self.coordination_s + sum(self.idle_s.values())


def time_shares(run: RunResult) -> TimeShares:
    """The run's seconds by what the leader did."""
    phases = run.phases()
    forward = phases.pop("forward", 0.0)
    idle = {cause: spent for cause, spent in phases.items() if cause.startswith("wait_")}
    coordination = sum(phases.values()) - sum(idle.values())
    idle["queue_empty"] = run.stats.get("time_idle_s", 0.0)
    wall = run.stats.get("leader_wall_s", forward + coordination + sum(idle.values()))
    return TimeShares(
        forward_s=forward,
        coordination_s=coordination,
        idle_s=idle,
        wall_s=wall,
        outside_s=max(run.wall_s - wall, 0.0),
    )


def occupancy(run: RunResult) -> dict[str, float]:
    """Busy share of each device over the run: the target's forwards, each drafter's drafting (as of its last heartbeat)."""
    wall = run.wall_s or 1.0
    shares = {"target": run.phases().get("forward", 0.0) / wall}
    for key, busy_s in run.stats.items():
        if key.startswith("drafter_") and key.endswith("_busy_s"):
            shares[key.removeprefix("drafter_").removesuffix("_busy_s")] = min(busy_s / wall, 1.0)
    return shares


def token_gaps(streams: Sequence[Stream]) -> list[float]:
    """Seconds between tokens, one per token: a commit of k tokens after dt stands for k gaps of dt / k.

    The commit that brings a stream's first token is left out: its time is the time to the first token.
    """
    gaps: list[float] = []
    for stream in streams:
        for (before, _), (now, count) in zip(stream.times, stream.times[1:], strict=False):
            gaps += [(now - before) / count] * count
    return gaps


def first_token_times(streams: Sequence[Stream]) -> list[float]:
    """Seconds from the opening of a request to its first token, as the frontend saw it."""
    return [stream.times[0][0] - stream.opened_s for stream in streams if stream.times]


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of all do not exceed; None of nothing."""
    if not values:
        return None
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def request_shares(run: RunResult, *, detokenise_s: float = 0.0) -> dict[str, float]:
    """Shares of the requests' time, as frontends saw it, spent in queue, prefill, decode, detokenisation and the rest.

    Detokenisation happens at the frontend, beside the target's work; the rest is links and the frontend's own waiting.
    """
    total = sum(stream.closed_s - stream.opened_s for stream in run.streams)
    if total <= 0:
        return {}
    queue = sum(stream.stats.get("queue_s", 0.0) for stream in run.streams)
    first = sum(stream.stats.get("ttft_s", 0.0) for stream in run.streams)
    decode = sum(stream.stats.get("decode_s", 0.0) for stream in run.streams)
    spent = {"queue": queue, "prefill": max(first - queue, 0.0), "decode": decode}
    rest = max(total - sum(spent.values()), 0.0)
    spent["detokenisation"] = min(detokenise_s, rest)
    spent["rest"] = rest - spent["detokenisation"]
    return {name: seconds / total for name, seconds in spent.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class DepthRow:
    """One depth of the verified trees.

    Attributes:
        rows: verifications whose tree reached this depth.
        verified, accepted: nodes at this depth.
    """

    depth: int
    rows: int
    verified: int
    accepted: int

    @property
    def acceptance(self) -> float:
        """Accepted share of the verifications that had a guess this deep."""
        return self.accepted / self.rows if self.rows else 0.0


def acceptance_by_depth(stats: Mapping[str, float]) -> list[DepthRow]:
    """One row per depth that was verified, shallowest first."""
    return [
        DepthRow(depth=depth, rows=int(rows), verified=int(verified), accepted=int(accepted))
        for depth, (rows, verified, accepted) in _table(stats, "tree", ("rows", "verified", "accepted"))
        if rows
    ]


def ready_depths(stats: Mapping[str, float]) -> list[tuple[int, int, int]]:
    """(depth of the tree at hand at the start, verifications, tokens they committed), shallowest first."""
    table = _table(stats, "depth", ("rows", "tokens"))
    return [(depth, int(rows), int(tokens)) for depth, (rows, tokens) in table if rows]


def _table(stats: Mapping[str, float], name: str, columns: Sequence[str]) -> list[tuple[int, list[float]]]:
    """Keys NAME_<number>_<column> as rows in order of the number."""
    prefix, suffix = f"{name}_", f"_{columns[0]}"
    numbers = [key[len(prefix) : -len(suffix)] for key in stats if key.startswith(prefix) and key.endswith(suffix)]
    depths = sorted(int(number) for number in numbers if number.isdigit())
    return [(depth, [stats.get(f"{prefix}{depth}_{column}", 0.0) for column in columns]) for depth in depths]


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Predicted against observed probability of acceptance.

    Attributes:
        bins: (samples, mean predicted, share observed) per bin that has samples.
    """

    bins: list[tuple[int, float, float]] = field(default_factory=list)

    @property
    def error(self) -> float | None:
        """Mean distance of prediction and observation, every sample weighing alike; None without samples."""
        samples = sum(count for count, _, _ in self.bins)
        if not samples:
            return None
        return sum(count * abs(predicted - observed) for count, predicted, observed in self.bins) / samples

    def worst(self, *, least: int = 200) -> float | None:
        """Largest distance among the bins with at least `least` samples."""
        return max((abs(p - o) for count, p, o in self.bins if count >= least), default=None)


def calibrations(stats: Mapping[str, float]) -> dict[str, Calibration]:
    """By what was predicted (a drafter's edges, "path"), from the keys `calibration_<what>_<bin>_...`."""
    found: dict[str, Calibration] = {}
    for key in stats:
        if key.startswith("calibration_") and key.endswith("_count"):
            what = key.removeprefix("calibration_").removesuffix("_count").rpartition("_")[0]
            if what not in found:
                table = _table(stats, f"calibration_{what}", ("count", "predicted", "observed"))
                bins = [(int(n), predicted / n, observed / n) for _, (n, predicted, observed) in table if n]
                found[what] = Calibration(bins=bins)
    return found


def run_figures(run: RunResult, *, detokenise_s: float = 0.0) -> dict[str, Any]:
    """All of the above as the documented keys of `--json`."""
    shares = time_shares(run)
    gaps, firsts = token_gaps(run.streams), first_token_times(run.streams)
    return {
        "time_to_first_token_s": {"median": quantile(firsts, 0.5), "p99": quantile(firsts, 0.99)},
        "time_between_tokens_s": {"median": quantile(gaps, 0.5), "p99": quantile(gaps, 0.99)},
        "time_s": {
            "wall": run.wall_s,
            "leader_wall": shares.wall_s,
            "forward": shares.forward_s,
            "coordination": shares.coordination_s,
            "idle": shares.idle_s,
            "outside": shares.outside_s,
        },
        "occupancy": occupancy(run),
        "request_shares": request_shares(run, detokenise_s=detokenise_s),
        "by_depth": [
            {"depth": one.depth, "rows": one.rows, "verified": one.verified, "accepted": one.accepted}
            for one in acceptance_by_depth(run.stats)
        ],
        "ready_depth": [
            {"depth": depth, "rows": rows, "tokens": tokens, "tokens_per_verification": tokens / rows}
            for depth, rows, tokens in ready_depths(run.stats)
        ],
        "calibration": {
            what: {"error": one.error, "bins": [list(row) for row in one.bins]}
            for what, one in calibrations(run.stats).items()
        },
        "transfers": transfers(run.stats),
    }


def transfers(stats: Mapping[str, float]) -> list[dict[str, Any]]:
    """The ledger: one entry per link and kind of message that carried anything."""
    rows: list[dict[str, Any]] = []
    for key, figure in stats.items():
        if key.startswith("link_") and key.endswith("_messages") and figure:
            base = key.removesuffix("_messages")
            peer, direction, kind = base.removeprefix("link_").rsplit("_", 2)
            seconds = {name: stats.get(f"{base}_{name}", 0.0) for name in ("hidden_s", "exposed_s")}
            size = int(stats.get(f"{base}_bytes", 0.0))
            rows.append({"peer": peer, "direction": direction, "kind": kind, "messages": int(figure), "bytes": size})
            rows[-1] |= seconds
        elif (
            key.startswith("link_*_")
            and key.endswith("_exposed_s")
            and figure > 0
            and not stats.get(f"{key.removesuffix('_exposed_s')}_messages", 0)
        ):
            direction, kind = key.removeprefix("link_*_").removesuffix("_exposed_s").rsplit("_", 1)
            rows.append({"peer": "*", "direction": direction, "kind": kind, "messages": 0, "bytes": 0})
            rows[-1] |= {"hidden_s": 0.0, "exposed_s": figure}
    return rows
