"""Turns: every group of jobs through every deployment, round after round, so that what is compared ran side by side. It
starts no deployment and shows nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dist_spec.bench.compare import Comparison
from dist_spec.bench.connection import Serving
from dist_spec.bench.peers import HuggingFacePeer
from dist_spec.bench.printer import TextPrinter
from dist_spec.bench.run import Job, RunResult, run_jobs
from dist_spec.models.tokenizer import Tokenizer

_WARM_UP_TOKENS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Jobs that are timed together: one domain, or all there are."""

    domain: str
    jobs: Sequence[Job]


def run_rounds(
    deployments: Mapping[str, Serving],
    groups: Sequence[Group],
    *,
    rounds: int,
    concurrency: int,
    run_id: str,
    printer: TextPrinter,
    progress: Callable[[str], None],
    after_round: Callable[[], None] = lambda: None,
) -> list[Comparison]:
    """One comparison per group. Drafters forget earlier texts before every timed run; the first of the configuration as
    given is printed. `after_round` is called at the end of each (for whatever else is measured beside it)."""
    comparisons = [Comparison(jobs=group.jobs) for group in groups]
    if rounds > 1 or len(deployments) > 1:
        for deployment in deployments.values():
            warm_up(deployment, groups[0].jobs[0], name=f"{run_id}-warm")
    for turn in range(rounds):
        first = 0
        for group, comparison in zip(groups, comparisons, strict=True):
            name = f"{run_id}-{turn}-{first}"
            for variant in _order(deployments, turn):
                shown = variant == "speculative" and turn == 0
                on_tokens = _shower(printer, first) if shown else None
                result = timed_run(
                    deployments[variant], group.jobs, concurrency=concurrency, name=name, on_tokens=on_tokens
                )
                comparison.add(variant, result)
                if shown:
                    printer.finish(result, first=first)
            first += len(group.jobs)
        after_round()
        if rounds > 1:
            progress(f"round {turn + 1} of {rounds} done")
    for comparison in comparisons:
        comparison.judge()
    return comparisons


def _shower(printer: TextPrinter, first: int) -> Callable[[int, list[int], Sequence[str]], None]:
    return lambda index, tokens, kinds: printer.show(first + index, tokens, kinds)


def _order(deployments: Mapping[str, Serving], turn: int) -> list[str]:
    """Every second round the other way round: a drift of the machine favours nobody."""
    names = list(deployments)
    return names if turn % 2 == 0 else names[::-1]


def timed_run(
    deployment: Serving,
    jobs: Sequence[Job],
    *,
    concurrency: int,
    name: str,
    on_tokens: Callable[[int, list[int], Sequence[str]], None] | None = None,
) -> RunResult:
    """A run whose drafters start without anything kept of earlier texts (kept where those may be somebody else's)."""
    if not deployment.shared:
        deployment.client.forget()
    return run_jobs(deployment, jobs, concurrency=concurrency, name=name, on_tokens=on_tokens)


def warm_up(deployment: Serving, job: Job, *, name: str) -> RunResult:
    """A few tokens of the job, so that nothing is done for the first time while it is timed."""
    short = replace(job.sampling, max_tokens=_WARM_UP_TOKENS, min_tokens=0, ignore_eos=True, stop=())
    return run_jobs(deployment, [Job(prompt=job.prompt, sampling=short)], concurrency=1, name=name)


def peer_rates(peer: HuggingFacePeer, jobs: Sequence[Job], tokenizer: Tokenizer) -> dict[str, float]:
    """Tokens per second of transformers' generate over the same jobs, plain and with prompt lookup."""
    rates: dict[str, float] = {}
    for name, lookup in (("hf_plain", False), ("hf_prompt_lookup", True)):
        tokens, seconds = 0, 0.0
        for job in jobs:
            eos = [] if job.sampling.ignore_eos else list(tokenizer.eos_ids)
            out, spent = peer.generate(list(job.prompt), max_tokens=job.sampling.max_tokens, lookup=lookup, eos=eos)
            tokens, seconds = tokens + len(out), seconds + spent
        rates[name] = tokens / seconds
    return rates
