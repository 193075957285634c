"""The job behind `dist-spec generate`: prompts in, streamed text, figures and comparisons out. It starts deployments and
asks; it computes no figure itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from dist_spec.bench.compare import CONTROLS, VARIANTS, Comparison, merge_comparisons, variant_config
from dist_spec.bench.connection import WAIT_S, Connection, Serving
from dist_spec.bench.deployment import Deployment
from dist_spec.bench.figures import figures, speeds
from dist_spec.bench.peers import HuggingFacePeer
from dist_spec.bench.printer import LEGEND, TextPrinter, may_colour
from dist_spec.bench.prompts import DEMO_PROMPTS, Prompt, builtin_prompts
from dist_spec.bench.rounds import Group, peer_rates, run_rounds
from dist_spec.bench.run import Job
from dist_spec.bench.show import show_comparison, show_domains, show_loops, show_peers, show_stats
from dist_spec.config import Config, ModelDrafterConfig
from dist_spec.core.types import Sampling
from dist_spec.errors import RequestError, UnsupportedError, WorkerError
from dist_spec.models.source import resolve
from dist_spec.models.tokenizer import Tokenizer, load_tokenizer
from dist_spec.server.params import SamplingParams
from dist_spec.topology import TARGET, assign_cores, available_cores
from dist_spec.workers.files import check_file, check_files

ROUNDS = 3
"""Turns of every variant when they are compared; ratios are medians over them."""
DEMO_TEMPERATURES = (0.0, 0.8)
MAX_DOMAIN = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What to run beyond the configuration, and what to show.

    Attributes:
        chat: put prompts into the model's chat template.
        builtin: run the built-in prompts, so many of each domain (0: all), domain by domain.
        domain: label of the prompts given.
        stats, compare_plain, controls, compare_hf: what to run beside it and to show.
        colour: mark accepted, recovered and bonus tokens in the text.
        rounds, concurrency: turns of every variant, requests at a time (None: chosen).
        connect: address of a running target to ask instead of starting one; `wait_s`: how long to wait for it;
            `await_drafters`: how many drafters to wait for.
    """

    chat: bool = True
    builtin: int | None = None
    domain: str = ""
    stats: bool = False
    compare_plain: bool = False
    controls: bool = False
    compare_hf: bool = False
    colour: bool = False
    rounds: int | None = None
    concurrency: int | None = None
    json_file: Path | None = None
    quiet: bool = False
    connect: str | None = None
    wait_s: float = WAIT_S
    await_drafters: int = 0

    @property
    def variants(self) -> tuple[str, ...]:
        """What runs in turns with the configuration as given."""
        asked = VARIANTS if self.compare_plain else ("speculative", "plain", "ready") if self.controls else VARIANTS[:1]
        return (*asked, *CONTROLS) if self.controls else asked


def generate(config: Config, *, prompts: Sequence[str], options: Options) -> None:
    """Run the prompts together (none: the built-in demonstration, one by one, greedy and sampled).

    Raises:
        RequestError: a prompt is empty or cannot be served, or two kinds of prompts are asked for.
        ConfigError: a file to be written has no place to go.
        WorkerError: also when the texts of a comparison differ (after everything was shown and written).
        UnsupportedError, ModelError, TransportError: see their texts.
    """
    console = Console(stderr=True)
    chosen = _chosen_prompts(prompts, options)
    demo = not prompts and options.builtin is None
    temperatures = DEMO_TEMPERATURES if demo else (config.sampling.temperature,)
    check_files(config.telemetry)
    if options.json_file is not None:
        check_file(options.json_file, place="--json")
    drafters = [] if options.connect else [d.model for d in config.drafters if isinstance(d, ModelDrafterConfig)]
    for model in [config.target.model, *drafters]:
        resolve(model, progress=lambda line: console.print(f"[dim]{line}[/dim]"))
    if options.compare_hf:
        _check_peer(config, temperatures=temperatures)
    tokenizer = load_tokenizer(config.target.model)
    ids = [encode_prompt(tokenizer, prompt.text, chat=options.chat) for prompt in chosen]
    with ExitStack() as stack:
        session = _Session(config, options, tokenizer=tokenizer, console=console, stack=stack)
        reports: list[dict[str, Any]] = []
        for temperature in temperatures:
            if len(temperatures) > 1 and not options.quiet:
                console.rule(f"temperature {temperature:g}")
            sampling = sampling_of(config, temperature=temperature, tokenizer=tokenizer)
            report = session.run(chosen, ids, sampling=sampling, one_by_one=not prompts)
            reports.append({"temperature": temperature, **report})
    if options.json_file is not None:
        content = reports[0] if len(reports) == 1 else {"runs": reports}
        options.json_file.write_text(json.dumps(content, indent=2) + "\n")
    if any(report["equal"] is False for report in reports):
        raise WorkerError("the text with drafting is not that of plain decoding", fix="this is a bug: please report it")


def encode_prompt(tokenizer: Tokenizer, text: str, *, chat: bool) -> list[int]:
    """Token ids of one prompt. RequestError when there is nothing in it."""
    if not text.strip():
        raise RequestError("the prompt is empty", fix="give some text, --prompt-file FILE, or - for standard input")
    if chat and tokenizer.chat_template is not None:
        return tokenizer.apply_chat([{"role": "user", "content": text}])
    return tokenizer.encode(text)


def sampling_of(config: Config, *, temperature: float, tokenizer: Tokenizer) -> Sampling:
    """What the target is told. Raises RequestError for a value out of range."""
    params = SamplingParams.from_config(config.sampling, temperature=temperature)
    return params.to_sampling(
        lambda text: tokenizer.encode(text, add_special=False), seed=config.sampling.seed, sample_index=0
    )


def _chosen_prompts(prompts: Sequence[str], options: Options) -> list[Prompt]:
    if options.builtin is not None and prompts:
        raise RequestError("prompts and --builtin-prompts exclude each other", fix="leave one of them out")
    if ":" in options.domain or len(options.domain) > MAX_DOMAIN:
        raise RequestError(
            f"--domain {options.domain[:100]!r} is no label",
            fix=f"at most {MAX_DOMAIN} characters, none of them a colon",
        )
    if options.builtin is not None:
        return list(builtin_prompts(options.builtin or None))
    return [Prompt(domain=options.domain, text=text) for text in prompts] or list(DEMO_PROMPTS)


class _Session:
    """Deployments of all variants, and one temperature after another run through them."""

    def __init__(
        self, config: Config, options: Options, *, tokenizer: Tokenizer, console: Console, stack: ExitStack
    ) -> None:
        self._config = config
        self._options = options
        self._tokenizer = tokenizer
        self._console = console
        self._colour = options.colour and may_colour()
        if self._colour and not options.quiet:
            console.print(LEGEND, highlight=False)
        self._deployments = self._deploy(stack)
        self._peer = _peer(config, stack, console) if options.compare_hf else None

    def run(
        self, prompts: Sequence[Prompt], ids: Sequence[Sequence[int]], *, sampling: Sampling, one_by_one: bool
    ) -> dict[str, Any]:
        """Run, show and report all prompts with one way of sampling."""
        options = self._options
        jobs = [Job(prompt=tuple(one), sampling=sampling, domain=p.domain) for one, p in zip(ids, prompts, strict=True)]
        concurrency = options.concurrency or (1 if one_by_one else self._config.target.max_sequences)
        printer = TextPrinter(
            self._tokenizer,
            texts=[prompt.text for prompt in prompts],
            live=concurrency == 1 or len(jobs) == 1,
            quiet=options.quiet,
            stops=self._config.sampling.stop,
            colour=self._colour,
        )
        rates: dict[str, list[float]] = {}
        groups = by_domain(jobs) if options.builtin is not None else [Group(domain="", jobs=jobs)]
        several = len(self._deployments) > 1 or self._peer is not None
        parts = run_rounds(
            self._deployments,
            groups,
            rounds=options.rounds or (ROUNDS if several else 1),
            concurrency=concurrency,
            run_id=f"t{sampling.temperature:g}",
            printer=printer,
            progress=lambda line: self._console.print(f"[dim]{line}[/dim]"),
            after_round=lambda: self._ask_peer(jobs, rates),
        )
        comparison = merge_comparisons(parts)
        if self._config.verification.rule == "rejection" and sampling.temperature > 0:
            comparison.equalities = []  # it keeps the law, not the text
        report = figures(
            comparison,
            texts=printer.outputs(comparison),
            hf=rates,
            detokenise_s=printer.detokenise_s,
        )
        if options.builtin is not None:
            report["domains"] = {
                group.domain: speeds(part) for group, part in zip(groups, parts, strict=True) if group.domain
            }
        self._show(comparison, report)
        return report

    def _show(self, comparison: Comparison, report: dict[str, Any]) -> None:
        if self._options.stats:
            show_stats(self._console, comparison.runs["speculative"][0], report)
        if len(comparison.runs) > 1:
            show_comparison(self._console, comparison, report)
        if "domains" in report:
            show_domains(self._console, report["domains"])
        if "domains" in report or report["looping_tails"]["num_texts"]:
            show_loops(self._console, report["looping_tails"], num_texts=len(report["texts"]))
        if "hf_prompt_lookup_speedup" in report:
            show_peers(self._console, report)

    def _ask_peer(self, jobs: Sequence[Job], rates: dict[str, list[float]]) -> None:
        """transformers' turn of this round (greedy only)."""
        if self._peer is not None and all(job.sampling.temperature == 0 for job in jobs):
            for name, rate in peer_rates(self._peer, jobs, self._tokenizer).items():
                rates.setdefault(name, []).append(rate)

    def _deploy(self, stack: ExitStack) -> dict[str, Serving]:
        address = self._options.connect
        if address is None:
            return self._start(stack)
        connection = stack.enter_context(
            Connection(address, self._config, tokenizer=self._tokenizer, wait_s=self._options.wait_s)
        )
        with self._console.status(f"waiting for the target at {connection.address} ..."):
            connection.wait_ready(num_drafters=self._options.await_drafters)
        return {VARIANTS[0]: connection}

    def _start(self, stack: ExitStack) -> dict[str, Serving]:
        """All variants stay up, so that their turns can alternate; those not in turn sleep. They start one after the
        other: each measures what its verifications cost, on cores that they share."""
        deployments: dict[str, Serving] = {}
        with self._console.status("starting target and drafters ..."):
            for variant in self._options.variants:
                settings = variant_config(self._config, variant, vocab_size=self._tokenizer.size)
                if settings is not None:
                    deployment = stack.enter_context(Deployment(variant.replace("_", "-"), settings))
                    deployment.wait_ready()
                    deployments[variant] = deployment
        return deployments


def by_domain(jobs: Sequence[Job]) -> list[Group]:
    """Jobs grouped by domain, in order of first appearance; they must be sorted so already."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.domain, []).append(job)
    return [Group(domain=domain, jobs=members) for domain, members in groups.items()]


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
