"""Live runs of one drafter with one target through real processes, as chains of a fixed length or as the configuration has
it, and their figures. It computes nothing of what a drafter could have done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from dist_spec.bench.accounts import acceptance_by_depth, ready_depths
from dist_spec.bench.deployment import Deployment
from dist_spec.bench.rounds import Group, timed_run, warm_up
from dist_spec.bench.run import RunResult, merge_runs
from dist_spec.config import Config, DrafterConfig, parse_config

Mode: TypeAlias = Literal["synchronous", "streamed", "configured", "plain"]

MEANINGS: Mapping[str, str] = {
    "synchronous": "the target asks for a chain after every verdict and waits for it",
    "streamed": "chains are drafted ahead and sent as they are made; nobody waits",
    "configured": "this drafter alone, with the switches and the budget of the configuration",
    "plain": "no drafter",
}
"""What `--live` can be asked for (`plain` is what texts are made with where nothing is)."""

_PATIENCE_S = 10.0


def live_config(config: Config, drafter: DrafterConfig, mode: Mode, *, depth: int) -> Config:
    """The configuration with this drafter alone, in a process of its own.

    `synchronous` is none/pull/chain, `streamed` optimistic/push/chain, both with the fixed budget `depth`.
    """
    data = config.model_dump(mode="json")
    entry = drafter.model_dump(mode="json")
    looks_up = entry["kind"] in ("ngram", "suffix")
    if looks_up:
        entry["placement"] = "process"
    spec = data["speculation"]
    match mode:
        case "plain":
            data["drafters"] = []
        case "synchronous":
            data["drafters"] = [{**entry, "num_draft_tokens": depth}]
            spec |= {"growth": "none", "delivery": "pull", "on_miss": "plain", "verify_shape": "chain", "budget": depth}
            spec["pull_timeout_s"] = max(spec["pull_timeout_s"], _PATIENCE_S)
        case "streamed":
            # Deep enough to lie ahead of the verification in flight; the pace of both caps it.
            data["drafters"] = [{**entry, "num_draft_tokens": 2 * depth if looks_up else None}]
            spec |= {"growth": "optimistic", "delivery": "push", "on_miss": "plain"}
            spec |= {"verify_shape": "chain", "budget": depth}
        case "configured":
            data["drafters"] = [entry]
    data["verification"]["rule"] = "auto"
    data["telemetry"] |= {"record": None, "trace": None, "decisions": None}
    data["transport"]["bind"] = f"{config.transport.bind.rpartition(':')[0]}:0"
    return parse_config(data)


@dataclass(kw_only=True, slots=True)
class LiveRun:
    """One way of running it, one temperature.

    Attributes:
        by_domain: the runs, in order of the groups.
    """

    mode: Mode
    by_domain: dict[str, RunResult]

    @property
    def whole(self) -> RunResult:
        """All domains together."""
        return merge_runs(list(self.by_domain.values()))

    def figures(self) -> dict[str, Any]:
        """The documented keys of `--json`."""
        whole = self.whole
        rows = max(whole.stats.get("session_rows", 0.0), 1.0)
        return {
            "acceptance_length": whole.acceptance_length,
            "tokens_per_s": whole.tokens_per_s,
            "num_tokens": whole.num_tokens,
            "verifications": int(whole.stats.get("session_rows", 0.0)),
            "ready_share": whole.stats.get("session_ready_rows", 0.0) / rows,
            "waited_s": whole.waited_s(),
            "by_depth": [
                {"depth": one.depth, "rows": one.rows, "verified": one.verified, "accepted": one.accepted}
                for one in acceptance_by_depth(whole.stats)
            ],
            "ready_depth": [
                {"depth": depth, "rows": count, "tokens": tokens} for depth, count, tokens in ready_depths(whole.stats)
            ],
            "domains": {
                domain: {"acceptance_length": run.acceptance_length, "tokens_per_s": run.tokens_per_s}
                for domain, run in self.by_domain.items()
            },
        }


def run_live(
    config: Config,
    drafter: DrafterConfig,
    groups: Mapping[float, Sequence[Group]],
    *,
    mode: Mode,
    depth: int,
    on_tokens: Callable[[int], None],
) -> dict[float, LiveRun]:
    """One deployment, every temperature and domain through it one after the other, one request at a time.

    Args:
        groups: per temperature, jobs by domain.
        on_tokens: told how many tokens came.

    Raises:
        RequestError, WorkerError, TransportError, ModelError: as `run_jobs` and `Deployment`.
    """
    found: dict[float, LiveRun] = {}
    with Deployment(f"score-{mode}", live_config(config, drafter, mode, depth=depth)) as deployment:
        deployment.wait_ready()
        first = next(iter(groups.values()))[0].jobs[0]
        warm_up(deployment, first, name="warm")
        for temperature, parts in groups.items():
            runs: dict[str, RunResult] = {}
            for number, group in enumerate(parts):
                name = f"t{temperature:g}-{number}"
                runs[group.domain] = timed_run(
                    deployment,
                    group.jobs,
                    concurrency=1,
                    name=name,
                    on_tokens=lambda index, tokens, kinds: on_tokens(len(tokens)),
                )
            found[temperature] = LiveRun(mode=mode, by_domain=runs)
    return found
