"""One run of prompts through a deployment, and its figures. Counts come from the leader, times from both ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from dist_spec.bench.connection import Serving
from dist_spec.core.types import Sampling
from dist_spec.errors import RequestError
from dist_spec.server.client import Stream, TokenKind

OnTokens: TypeAlias = Callable[[int, list[int], list[TokenKind]], None]
"""(job index, newly committed tokens, where each came from)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A prompt as token ids, and how it is decoded. `domain` names the kind of task: a label for reports, carried in the
    request's name ("DOMAIN:...")."""

    prompt: tuple[int, ...]
    sampling: Sampling
    domain: str = ""


@dataclass(kw_only=True, slots=True)
class RunResult:
    """What one run gave.

    Attributes:
        streams: one per job, in order.
        wall_s: from the opening of the first request to the end of the last one, as the frontend saw it.
        stats: the leader's totals over this run (differences of its counters; see `GAUGES`). `time_idle_s` is its time
            without a request between the run's first and last, `leader_wall_s` the time between these by its clock.
    """

    streams: list[Stream]
    wall_s: float
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return sum(len(stream.tokens) for stream in self.streams)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens per second of a request while it is decoded: from its first commit, prompts and queues left out."""
        later = sum(count for stream in self.streams for _, count in stream.times[1:])
        spent_s = sum(stream.times[-1][0] - stream.times[0][0] for stream in self.streams if stream.times)
        return later / spent_s if spent_s > 0 else 0.0

    @property
    def acceptance_length(self) -> float:
        rows = self.stats.get("session_rows", 0.0)
        return self.stats.get("session_committed", 0.0) / rows if rows else 0.0

    def phases(self) -> dict[str, float]:
        """Seconds the target process spent per phase, the time without any request left out."""
        times = {k[5:-2]: v for k, v in self.stats.items() if k.startswith("time_") and k.endswith("_s")}
        times.pop("idle", None)
        return times

    def idle_fraction(self) -> float:
        """Share of the run in which the target's device ran no forward."""
        total = sum(self.phases().values()) + self.stats.get("time_idle_s", 0.0)
        return 1.0 - self.phases().get("forward", 0.0) / total if total else 0.0

    def waited_s(self) -> float:
        return sum(spent for phase, spent in self.phases().items() if phase.startswith("wait_"))


GAUGES = frozenset(
    {"coordination_ms_median", "overhead_ms_median", "handling_ms_median", "batch_invariant", "max_logit_difference"}
    | {"clock_s", "born_s"}
)
"""Figures of the leader that are no totals."""


def run_jobs(
    deployment: Serving,
    jobs: Sequence[Job],
    *,
    concurrency: int,
    name: str,
    on_tokens: OnTokens | None = None,
) -> RunResult:
    """Run jobs, `concurrency` at a time.

    Args:
        name: part of the request ids; unique per run.
        on_tokens: called with what was newly committed, as it arrives.

    Raises:
        RequestError: a request was refused or failed; the others were finished first.
        WorkerError, TransportError: the deployment broke.
    """
    before = dict(deployment.client.last_stats)
    streams: dict[str, tuple[int, Stream]] = {}
    waiting = list(enumerate(jobs))
    done: list[Stream | None] = [None] * len(jobs)
    told = [0] * len(jobs)  # tokens passed on: one poll may bring several commits of a stream
    started_s = ended_s = 0.0
    while waiting or streams:
        while waiting and len(streams) < concurrency:
            index, job = waiting.pop(0)
            request = f"{deployment.tag}{name}-{index}"
            request = f"{job.domain}:{request}" if job.domain else request
            stream = deployment.client.open(request, prompt=job.prompt, sampling=job.sampling)
            streams[stream.request] = (index, stream)
            started_s = started_s or stream.opened_s
        for stream, fresh in deployment.client.poll(timeout_s=0.25):
            index = streams[stream.request][0]
            if on_tokens is not None and len(stream.tokens) > told[index]:
                on_tokens(index, stream.tokens[told[index] :], stream.kinds[told[index] :])
                told[index] = len(stream.tokens)
            if stream.reason and not fresh:
                del streams[stream.request]
                done[index] = stream
                ended_s = stream.closed_s
        deployment.check()
    finished = [stream for stream in done if stream is not None]
    failed = next((stream for stream in finished if stream.reason.startswith("error")), None)
    if failed is not None:
        message, _, fix = failed.reason.removeprefix("error: ").partition("\n  fix: ")
        raise RequestError(message, fix=fix or None)
    if deployment.shared:  # the totals are everybody's
        stats = own_stats(finished)
    else:
        stats = stats_between(before, deployment.client.last_stats, streams=finished)
    return RunResult(streams=finished, wall_s=ended_s - started_s, stats=stats)


def stats_between(
    before: Mapping[str, float], after: Mapping[str, float], *, streams: Sequence[Stream]
) -> dict[str, float]:
    """What the leader did for these requests alone, from its totals at the end of the run before and of this one.

    Between the two runs it had no request: that much of `time_idle_s` is taken off. A total that fell began anew (a
    drafter that was started again).
    """
    stats = {
        key: one - before.get(key, 0.0) if key not in GAUGES and one >= before.get(key, 0.0) else one
        for key, one in after.items()
    }
    opened = [stream.stats["opened_at_s"] for stream in streams if "opened_at_s" in stream.stats]
    if opened and "clock_s" in after:
        first = min(opened)
        unused_s = first - before.get("clock_s", after["born_s"])
        stats["time_idle_s"] = max(stats.get("time_idle_s", 0.0) - unused_s, 0.0)
        stats["leader_wall_s"] = after["clock_s"] - first
    return stats


_OF_REQUESTS = {
    "steps": "rows",
    "ready_steps": "ready_rows",
    "drafted": "drafted",
    "verified": "verified",
    "accepted": "accepted",
    "committed": "committed",
}
"""Figures of a request, and what the leader's totals call their sum."""


def own_stats(streams: Sequence[Stream]) -> dict[str, float]:
    """What is known of these requests alone where others use the leader too: counts, no times. Of a request that was gone on
    with after a restart, the part since then."""
    stats = {
        f"session_{total}": sum(stream.stats.get(name, 0.0) for stream in streams)
        for name, total in _OF_REQUESTS.items()
    }
    stats["session_steps"] = stats["session_rows"]
    facts = [stream.stats for stream in streams if "max_logit_difference" in stream.stats]
    return stats | ({name: facts[-1][name] for name in ("batch_invariant", "max_logit_difference")} if facts else {})


def merge_runs(runs: Sequence[RunResult]) -> RunResult:
    """Runs of one deployment, one after another, as one: times and counts are sums, medians are medians of medians."""
    stats: dict[str, float] = defaultdict(float)
    for run in runs:
        for key, one in run.stats.items():
            stats[key] += one
    for key in GAUGES & stats.keys():
        values = sorted(run.stats[key] for run in runs if key in run.stats)
        stats[key] = values[len(values) // 2]
    streams = [stream for run in runs for stream in run.streams]
    return RunResult(streams=streams, wall_s=sum(run.wall_s for run in runs), stats=dict(stats))
