"""The rules `coupled` and `rejection` (sparse and dense laws) side by side, with the same drafter on the same prompts:
`python -m dist_spec.bench.rules --config configs/laptop.yaml`.

Every rule decodes the prompts by synchronous speculation with chains of the same depth, a deployment each. What a drafter
foresees is then computed from the logits of both models along the texts of the coupled run. Without `--drafter`, and
where the configuration has no model drafter, the drafter is the target with its weights rounded to 4 bits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from dist_spec.bench import foresight
from dist_spec.bench.accounts import acceptance_by_depth, transfers
from dist_spec.bench.arguments import at_least_1, check_output
from dist_spec.bench.deployment import Deployment
from dist_spec.bench.foresight import NEXT, Foresight, Row
from dist_spec.bench.generate import encode_prompt, sampling_of
from dist_spec.bench.prompts import builtin_prompts
from dist_spec.bench.rounded import rounded_copy
from dist_spec.bench.rounds import timed_run, warm_up
from dist_spec.bench.run import Job, RunResult
from dist_spec.bench.show import table_of
from dist_spec.config import Config, load_config, parse_config
from dist_spec.exits import run as run_command
from dist_spec.models.loading import LoadedModel, load_model
from dist_spec.models.tokenizer import load_tokenizer

DRAFTER = "small"
RULES: dict[str, dict[str, str]] = {
    "coupled": {"rule": "coupled"},
    "rejection, sparse": {"rule": "rejection", "draft_law": "sparse"},
    "rejection, dense": {"rule": "rejection", "draft_law": "dense"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleFigures:
    """One line of the table.

    Attributes:
        first: share of first guesses that stand (computed, along the texts).
        next_guesses: share of misses whose token is among the next 1, 2, 3 guesses (computed).
        by_depth: share of drafts accepted up to the depth 1, 2, ... (run).
        acceptance_length: tokens per verification (run).
        proposal_bytes, link_bytes: per committed token, of proposals and of all traffic with the drafter (run).
        ids_per_law: mean size of a law; 0 where none travels.
    """

    first: float
    next_guesses: list[float]
    by_depth: list[float]
    acceptance_length: float
    proposal_bytes: float
    link_bytes: float
    ids_per_law: float
    tokens_per_s: float
    num_tokens: int


def rule_config(config: Config, rule: str, *, drafter: dict[str, Any], depth: int) -> Config:
    """The configuration with this rule, one model drafter, and chains of `depth` drafted when asked for."""
    data = config.model_dump(mode="json")
    data["drafters"] = [{**drafter, "name": DRAFTER, "num_draft_tokens": depth}]
    data["speculation"] |= {"growth": "none", "delivery": "pull", "verify_shape": "chain", "on_miss": "plain"}
    data["speculation"]["budget"] = depth
    data["verification"] |= RULES[rule]
    data["telemetry"] |= {"record": None, "trace": None, "decisions": None}
    data["transport"]["bind"] = f"{config.transport.bind.rpartition(':')[0]}:0"
    return parse_config(data)


def drafter_of(config: Config, model: str | None) -> dict[str, Any]:
    """The drafter's entry: of that model, else the configuration's first model drafter, else the rounded target."""
    if model is None:
        for drafter in config.drafters:
            if drafter.kind == "model":
                return drafter.model_dump(mode="json")
        model = str(rounded_copy(config.target.model))
    return {"kind": "model", "model": model, "dtype": config.target.dtype, "device": config.target.device}


def decode(config: Config, jobs: Sequence[Job], *, name: str) -> RunResult:
    """All jobs one after the other in a deployment of their own."""
    with Deployment(name, config) as deployment:
        deployment.wait_ready()
        warm_up(deployment, jobs[0], name="warm")
        return timed_run(deployment, jobs, concurrency=1, name="run")


def logit_pairs(
    target: LoadedModel, draft: LoadedModel, texts: Sequence[tuple[int, list[int]]]
) -> Iterator[tuple[Row, Row]]:
    """(target's, drafter's) logits before every generated token of every text (prompt length, tokens)."""
    for prompt_length, tokens in texts:
        with torch.inference_mode():
            both = [
                one.model(input_ids=torch.tensor([tokens], device=one.device), use_cache=False)
                .logits[0, prompt_length - 1 : -1]
                .float()
                .cpu()
                .numpy()
                for one in (target, draft)
            ]
        width = min(rows.shape[1] for rows in both)
        for rows in zip(*both, strict=True):
            yield rows[0][:width].astype(np.float64), rows[1][:width].astype(np.float64)


def foresee(
    config: Config, drafter: dict[str, Any], texts: Sequence[tuple[int, list[int]]], *, temperature: float
) -> dict[str, Foresight]:
    """Per rule, what the drafter foresees along the texts."""
    target, draft = (
        load_model(one["model"], dtype=one["dtype"], device=one["device"])
        for one in (config.target.model_dump(mode="json"), drafter)
    )
    size = config.verification.law_size
    total = {rule: Foresight.empty() for rule in RULES}
    for place, pair in enumerate(logit_pairs(target, draft, texts)):
        parts = (
            foresight.coupled([pair], temperature=temperature, seed=place * 16),
            foresight.rejection([pair], temperature=temperature, law_size=size),
            foresight.rejection([pair], temperature=temperature, law_size=None),
        )
        for rule, part in zip(RULES, parts, strict=True):
            total[rule] = total[rule].plus(part)
    return total


def figures_of(run: RunResult, seen: Foresight, *, law: bool) -> RuleFigures:
    """Put a run and what was computed together."""
    links = [row for row in transfers(run.stats) if row["peer"] == DRAFTER]
    proposals = sum(row["bytes"] for row in links if row["kind"] == "propose")
    committed = max(run.stats.get("session_committed", 0.0), 1.0)
    return RuleFigures(
        first=seen.first,
        next_guesses=seen.after_a_miss,
        by_depth=[row.acceptance for row in acceptance_by_depth(run.stats)],
        acceptance_length=run.acceptance_length,
        proposal_bytes=proposals / committed,
        link_bytes=sum(row["bytes"] for row in links) / committed,
        ids_per_law=seen.ids_per_law if law else 0.0,
        tokens_per_s=run.tokens_per_s,
        num_tokens=run.num_tokens,
    )


def show(console: Console, figures: dict[str, RuleFigures], *, depth: int) -> None:
    """One line per measure, one column per rule."""
    table = table_of("rules side by side, same drafter and prompts", "measure", *figures)
    columns = list(figures.values())

    def line(name: str, values: Sequence[float], digits: int = 3) -> None:
        table.add_row(name, *(f"{value:.{digits}f}" for value in values))

    line("first guess stands (computed)", [one.first for one in columns])
    for number in range(NEXT):
        line(f"after a miss, among the next {number + 1}", [one.next_guesses[number] for one in columns])
    for place in range(depth):
        line(f"accepted to depth {place + 1} (run)", [dict(enumerate(one.by_depth)).get(place, 0.0) for one in columns])
    line("tokens per verification", [one.acceptance_length for one in columns], 2)
    line("ids per law", [one.ids_per_law for one in columns], 1)
    line("proposal bytes per token", [one.proposal_bytes for one in columns], 0)
    line("all link bytes per token", [one.link_bytes for one in columns], 0)
    line("tokens/s", [one.tokens_per_s for one in columns], 1)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show, and write the figures if asked to."""
    options = _parser().parse_args(arguments)
    overrides = [("sampling.max_tokens", options.max_tokens), ("sampling.temperature", options.temperature)]
    config = load_config(options.config, sets=options.set, overrides=overrides)
    check_output(options.json)
    console = Console(stderr=True)
    tokenizer = load_tokenizer(config.target.model)
    drafter = drafter_of(config, options.drafter)
    sampling = replace(sampling_of(config, temperature=options.temperature, tokenizer=tokenizer), ignore_eos=True)
    jobs = [
        Job(prompt=tuple(encode_prompt(tokenizer, prompt.text, chat=True)), sampling=replace(sampling, seed=seed))
        for seed, prompt in enumerate(builtin_prompts(options.prompts_per_domain))
    ]
    runs: dict[str, RunResult] = {}
    for rule in RULES:
        with console.status(f"{rule} ..."):
            runs[rule] = decode(rule_config(config, rule, drafter=drafter, depth=options.depth), jobs, name="rules")
    streams = runs["coupled"].streams
    texts = [(len(job.prompt), [*job.prompt, *stream.tokens]) for job, stream in zip(jobs, streams, strict=True)]
    with console.status("foresight ..."):
        seen = foresee(config, drafter, texts, temperature=options.temperature)
    figures = {rule: figures_of(runs[rule], seen[rule], law=rule != "coupled") for rule in RULES}
    show(console, figures, depth=options.depth)
    if options.json is not None:
        report = {"drafter": drafter["model"], "temperature": options.temperature, "depth": options.depth}
        report["rules"] = {rule: asdict(one) for rule, one in figures.items()}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="PLACE=VALUE")
    parser.add_argument("--drafter", default=None, help="a model id (default: see above)")
    parser.add_argument("--prompts-per-domain", type=at_least_1, default=1)
    parser.add_argument("--max-tokens", type=at_least_1, default=64)
    parser.add_argument("--depth", type=at_least_1, default=4)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--json", type=Path, default=None)
    return parser


if __name__ == "__main__":
    sys.exit(run_command(main))
