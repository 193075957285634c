"""The job behind `dist-spec generate`: prompts in, streamed text, figures and comparisons out. It starts deployments and
asks; it computes no figure itself."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from dist_spec.bench.compare import VARIANTS, Comparison, variant_config
from dist_spec.bench.deployment import Deployment
from dist_spec.bench.figures import figures
from dist_spec.bench.peers import HuggingFacePeer
from dist_spec.bench.prompts import DEMO_PROMPTS
from dist_spec.bench.run import Job, RunResult, run_jobs
from dist_spec.bench.show import TextPrinter, show_comparison, show_peers, show_stats
from dist_spec.config import Config, ModelDrafterConfig
from dist_spec.core.types import Sampling
from dist_spec.errors import ConfigError, RequestError, UnsupportedError, WorkerError
from dist_spec.models.source import resolve
from dist_spec.models.tokenizer import Tokenizer, load_tokenizer
from dist_spec.topology import TARGET, assign_cores, available_cores

ROUNDS = 3
"""Turns of every variant when they are compared; ratios are medians over them."""
DEMO_TEMPERATURES = (0.0, 0.8)
_WARM_UP_TOKENS = 8


def generate(
    config: Config,
    *,
    prompts: Sequence[str],
    chat: bool,
    stats: bool,
    compare_plain: bool,
    json_file: Path | None,
    quiet: bool,
    compare_hf: bool = False,
) -> None:
    """Run the prompts together (none: the built-in demonstration, one by one, greedy and sampled).

    Raises:
        RequestError: a prompt is empty or cannot be served.
        ConfigError: a file to be written has no place to go.
        WorkerError: also when the texts of a comparison differ (after everything was shown and written).
        UnsupportedError, ModelError, TransportError: see their texts.
    """
    console = Console(stderr=True)
    temperatures = (config.sampling.temperature,) if prompts else DEMO_TEMPERATURES
    _check_outputs(json_file, record=config.telemetry.record)
    for model in [config.target.model, *(d.model for d in config.drafters if isinstance(d, ModelDrafterConfig))]:
        resolve(model, progress=lambda line: console.print(f"[dim]{line}[/dim]"))
    if compare_hf:
        _check_peer(config, temperatures=temperatures)
    tokenizer = load_tokenizer(config.target.model)
    texts = list(prompts) or [prompt.text for prompt in DEMO_PROMPTS]
    concurrency = config.target.max_sequences if prompts else 1
    ids = [encode_prompt(tokenizer, text, chat=chat) for text in texts]
    reports: list[dict[str, Any]] = []
    with ExitStack() as stack:
        deployments = _deploy(config, stack, console, compare=compare_plain)
        peer = _peer(config, stack, console) if compare_hf else None
        for temperature in temperatures:
            jobs = [Job(prompt=tuple(one), sampling=sampling_of(config, temperature=temperature)) for one in ids]
            live = concurrency == 1 or len(jobs) == 1
            printer = TextPrinter(tokenizer, texts=texts, live=live, quiet=quiet, stops=config.sampling.stop)
            if len(temperatures) > 1 and not quiet:
                console.rule(f"temperature {temperature:g}")
            comparison, hf = _run_rounds(
                deployments,
                jobs,
                concurrency=concurrency,
                printer=printer,
                console=console,
                peer=peer,
                tokenizer=tokenizer,
            )
            report = figures(comparison, texts=printer.outputs(comparison), hf=hf)
            reports.append({"temperature": temperature, **report})
            if stats:
                show_stats(console, comparison.runs["speculative"][0])
            if compare_plain:
                show_comparison(console, comparison, report)
            if hf:
                show_peers(console, report)
    if json_file is not None:
        json_file.write_text(json.dumps(reports[0] if len(reports) == 1 else {"runs": reports}, indent=2) + "\n")
    if any(report["equal"] is False for report in reports):
        raise WorkerError("the text with drafting is not that of plain decoding", fix="this is a bug: please report it")


def encode_prompt(tokenizer: Tokenizer, text: str, *, chat: bool) -> list[int]:
    """Token ids of one prompt. RequestError when there is nothing in it."""
    if not text.strip():
        raise RequestError("the prompt is empty", fix="give some text, --prompt-file FILE, or - for standard input")
    if chat and tokenizer.chat_template is not None:
        return tokenizer.apply_chat([{"role": "user", "content": text}])
    return tokenizer.encode(text)


def sampling_of(config: Config, *, temperature: float) -> Sampling:
    sampling = config.sampling
    return Sampling(
        temperature=temperature,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        stop=sampling.stop,
        ignore_eos=sampling.ignore_eos,
    )


def _deploy(config: Config, stack: ExitStack, console: Console, *, compare: bool) -> dict[str, Deployment]:
    """All variants at once, so that their turns can alternate; those not in turn sleep."""
    deployments: dict[str, Deployment] = {}
    for variant in VARIANTS if compare else VARIANTS[:1]:
        settings = variant_config(config, variant)
        if settings is not None:
            deployments[variant] = stack.enter_context(Deployment(variant.replace("_", "-"), settings))
    with console.status("starting target and drafters ..."):
        for deployment in deployments.values():
            deployment.wait_ready()
    return deployments


def _check_outputs(json_file: Path | None, *, record: str | None) -> None:
    """ConfigError when what is to be written in the end has no place to go."""
    for place, file in (("--json", json_file), ("telemetry.record", Path(record) if record else None)):
        if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
            raise ConfigError(f"{place}: {file} cannot be written", fix="name a file in a folder that is there")


def _check_peer(config: Config, *, temperatures: Sequence[float]) -> None:
    if config.target.device != "cpu":
        raise UnsupportedError("--compare-hf measures on the CPU only", fix="leave it out, or set target.device: cpu")
    if all(temperature > 0 for temperature in temperatures):
        raise RequestError("--compare-hf compares greedy decoding only", fix="set sampling.temperature: 0")
    if resolve(config.target.model).folder is None:
        raise RequestError("--compare-hf needs a model in a folder", fix="give a target that is not random:...")


def _peer(config: Config, stack: ExitStack, console: Console) -> HuggingFacePeer:
    folder = resolve(config.target.model).folder
    assert folder is not None  # see _check_peer
    core = assign_cores(config, available=available_cores())[TARGET][0]
    peer = stack.enter_context(HuggingFacePeer(folder=folder, dtype=config.target.dtype, core=core))
    with console.status("starting transformers' generate ..."):
        peer.wait_ready()
    return peer


def _run_rounds(
    deployments: dict[str, Deployment],
    jobs: Sequence[Job],
    *,
    concurrency: int,
    printer: TextPrinter,
    console: Console,
    peer: HuggingFacePeer | None,
    tokenizer: Tokenizer,
) -> tuple[Comparison, dict[str, list[float]]]:
    comparison = Comparison(jobs=jobs)
    hf: dict[str, list[float]] = {}
    greedy = all(job.sampling.temperature == 0 for job in jobs)
    rounds = ROUNDS if len(deployments) > 1 or peer is not None else 1
    run_id = f"t{jobs[0].sampling.temperature:g}"
    for number in range(rounds):
        for variant, deployment in deployments.items():
            if number == 0 and rounds > 1:
                _warm_up(deployment, jobs[0], name=f"{run_id}-warm")
            first = variant == "speculative" and number == 0
            result = run_jobs(
                deployment,
                jobs,
                concurrency=concurrency,
                name=f"{run_id}-{number}",
                on_tokens=printer.show if first else None,
            )
            comparison.add(variant, result)
            if first:
                printer.finish(result)
        if peer is not None and greedy:
            for name, seconds in _peer_turn(peer, jobs, tokenizer).items():
                hf.setdefault(name, []).append(seconds)
        if rounds > 1:
            console.print(f"[dim]round {number + 1} of {rounds} done[/dim]")
    comparison.judge()
    return comparison, hf


def _warm_up(deployment: Deployment, job: Job, *, name: str) -> RunResult:
    sampling = Sampling(temperature=job.sampling.temperature, max_tokens=_WARM_UP_TOKENS, ignore_eos=True)
    return run_jobs(deployment, [Job(prompt=job.prompt, sampling=sampling)], concurrency=1, name=name)


def _peer_turn(peer: HuggingFacePeer, jobs: Sequence[Job], tokenizer: Tokenizer) -> dict[str, float]:
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
