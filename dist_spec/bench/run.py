"""One run of prompts through a deployment, and its figures. Counts come from the leader, times from both ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dist_spec.bench.deployment import Deployment
from dist_spec.core.types import Sampling
from dist_spec.errors import RequestError
from dist_spec.server.client import Stream


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A prompt as token ids, and how it is decoded."""

    prompt: tuple[int, ...]
    sampling: Sampling


@dataclass(kw_only=True, slots=True)
class RunResult:
    """What one run gave.

    Attributes:
        streams: one per job, in order.
        wall_s: from the opening of the first request to the end of the last one, as the frontend saw it.
        stats: the leader's totals over this run (differences of its counters).
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
        phases = self.phases()
        total = sum(phases.values())
        return 1.0 - phases.get("forward", 0.0) / total if total else 0.0

    def waited_s(self) -> float:
        return sum(spent for phase, spent in self.phases().items() if phase.startswith("wait_"))


_GAUGES = ("coordination_ms_median", "batch_invariant", "max_logit_difference")


def run_jobs(
    deployment: Deployment,
    jobs: Sequence[Job],
    *,
    concurrency: int,
    name: str,
    on_tokens: Callable[[int, list[int]], None] | None = None,
) -> RunResult:
    """Run jobs, `concurrency` at a time.

    Args:
        name: prefix of the request ids; unique per run.
        on_tokens: called with (job index, newly committed tokens) as they arrive.

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
            stream = deployment.client.open(f"{name}-{index}", prompt=job.prompt, sampling=job.sampling)
            streams[stream.request] = (index, stream)
            started_s = started_s or stream.opened_s
        for stream, fresh in deployment.client.poll(timeout_s=0.25):
            index = streams[stream.request][0]
            if on_tokens is not None and len(stream.tokens) > told[index]:
                on_tokens(index, stream.tokens[told[index] :])
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
    after = deployment.client.last_stats
    stats = {k: v if k in _GAUGES else v - before.get(k, 0.0) for k, v in after.items()}
    return RunResult(streams=finished, wall_s=ended_s - started_s, stats=stats)
