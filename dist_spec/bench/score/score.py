"""The job behind `dist-spec score`: prompts in, texts by live runs, the drafter followed along them, tables and a report
out. It computes no figure itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dist_spec.bench.generate import by_domain, encode_prompt, sampling_of
from dist_spec.bench.prompts import Prompt, builtin_prompts
from dist_spec.bench.rounds import Group
from dist_spec.bench.run import Job
from dist_spec.bench.score.expected import CHAINS, TREES, Seconds, choices
from dist_spec.bench.score.forced import Spot, follow, laws
from dist_spec.bench.score.live import LiveRun, Mode, run_live
from dist_spec.bench.score.overlap import Overlap
from dist_spec.bench.score.pair import LOOKUPS, Pair, chosen_drafter, load_pair
from dist_spec.bench.score.report import Scored, report_of, whole_report
from dist_spec.bench.score.show import show_all
from dist_spec.bench.score.teacher import Reading, Teacher, distributions
from dist_spec.bench.score.texts import Text, read_prompt_file
from dist_spec.bench.score.timing import on_cores, time_steps, verify_cost
from dist_spec.config import Config, DrafterConfig
from dist_spec.core.law import DraftLaw
from dist_spec.drafters.base import Remembering
from dist_spec.errors import RequestError
from dist_spec.models.tokenizer import Tokenizer, load_tokenizer
from dist_spec.topology import TARGET, assign_cores, available_cores
from dist_spec.workers.files import check_file

DEPTH = 8
"""Tokens ahead that a drafter is followed at least."""
WIDTH = 8
"""Guesses asked for below each token: ranks beyond it count as misses."""
_MOST_LOGITS = 1 << 28
"""Of texts that are followed side by side: the target's rows along all of them are kept meanwhile, and as many of laws."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What to score beyond the configuration.

    Attributes:
        drafter: see `pair.chosen_drafter`.
        num_draft_tokens: of the live chain and the headline.
        prompt_file: JSONL; None: the built-in prompts, `builtin` of each domain (None or 0: all).
        temperatures: greedy and sampled ones; the first gives the headline.
        live: ways to run it; none: texts are made without a drafter.
        rounds: of the timing.
    """

    drafter: str | None = None
    num_draft_tokens: int = 4
    prompt_file: Path | None = None
    builtin: int | None = None
    temperatures: tuple[float, ...] = (0.0, 0.8)
    live: tuple[Mode, ...] = ("synchronous", "streamed")
    chat: bool = True
    rounds: int = 30
    json_file: Path | None = None


def score(config: Config, options: Options) -> dict[str, Any]:
    """Score, show, and write the report where asked to.

    Raises:
        RequestError: a prompt file or an option is not what it should be.
        ConfigError, ModelError, UnsupportedError, TransportError, WorkerError: see their texts.
    """
    console = Console(stderr=True)
    entry = chosen_drafter(config, options.drafter)
    prompts = _prompts(options)
    if options.json_file is not None:
        check_file(options.json_file, place="--json")
    tokenizer = load_tokenizer(config.target.model)
    jobs = {one: _jobs(config, prompts, one, tokenizer, chat=options.chat) for one in options.temperatures}
    with _progress(console) as progress:
        session = _Session(config, entry, options, tokenizer=tokenizer, progress=progress)
        live = session.run_all(jobs)
        report = session.score_all(jobs, live)
    show_all(console, report)
    if options.json_file is not None:
        options.json_file.write_text(json.dumps(report, indent=2) + "\n")
    return report


def _prompts(options: Options) -> list[Prompt]:
    if options.prompt_file is not None and options.builtin is not None:
        raise RequestError("--prompts and --builtin-prompts exclude each other", fix="leave one of them out")
    if options.prompt_file is not None:
        return read_prompt_file(options.prompt_file)
    return list(builtin_prompts(options.builtin or None))


def _jobs(
    config: Config, prompts: Sequence[Prompt], temperature: float, tokenizer: Tokenizer, *, chat: bool
) -> list[Job]:
    """Every text has noise of its own, so that a position is not sampled alike in all of them."""
    sampling = sampling_of(config, temperature=temperature, tokenizer=tokenizer)
    return [
        Job(
            prompt=tuple(encode_prompt(tokenizer, prompt.text, chat=chat)),
            sampling=replace(sampling, seed=(sampling.seed + number) % 2**64),
            domain=prompt.domain,
        )
        for number, prompt in enumerate(prompts)
    ]


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


class _Session:
    """One pair, through live runs and along the texts."""

    def __init__(
        self, config: Config, entry: DrafterConfig, options: Options, *, tokenizer: Tokenizer, progress: Progress
    ) -> None:
        self._config = config
        self._entry = entry
        self._options = options
        self._tokenizer = tokenizer
        self._progress = progress
        self._depth = max(DEPTH, options.num_draft_tokens)
        self._life = 0

    def run_all(self, jobs: dict[float, list[Job]]) -> dict[Mode, dict[float, LiveRun]]:
        """Every way of running it; the first one's texts are those that are scored."""
        groups: dict[float, Sequence[Group]] = {temperature: by_domain(some) for temperature, some in jobs.items()}
        tokens = sum(job.sampling.max_tokens for some in jobs.values() for job in some)
        found: dict[Mode, dict[float, LiveRun]] = {}
        for mode in self._options.live or ("plain",):
            task = self._progress.add_task(f"live, {mode}", total=tokens)
            found[mode] = run_live(
                self._config,
                self._entry,
                groups,
                mode=mode,
                depth=self._options.num_draft_tokens,
                on_tokens=lambda count, task=task: self._progress.advance(task, count),  # type: ignore[misc]
            )
            self._progress.update(task, completed=tokens)
        return found

    def score_all(self, jobs: dict[float, list[Job]], live: dict[Mode, dict[float, LiveRun]]) -> dict[str, Any]:
        """The report."""
        first = next(iter(live.values()))
        texts = {temperature: _texts(some, first[temperature]) for temperature, some in jobs.items()}
        longest = max(len(text.tokens) for some in texts.values() for text in some) + self._depth
        sampled = any(temperature > 0 for temperature in texts)
        cores = assign_cores(self._config, available=available_cores())[TARGET]
        with on_cores(cores):
            pair = load_pair(
                self._config,
                self._entry,
                tokenizer=self._tokenizer,
                longest=max(longest, 192) + TREES[-1],
                with_laws=sampled,
            )
            seconds = self._time(pair, next(iter(texts.values())))
            scored = {temperature: self._follow(pair, some) for temperature, some in texts.items()}
        runs = []
        for temperature, one in scored.items():
            one.live = {mode: runs_[temperature] for mode, runs_ in live.items()}
            runs.append(self._report(one, seconds))
        return whole_report(self._head(jobs), seconds, runs)

    def _report(self, scored: Scored, seconds: Seconds) -> dict[str, Any]:
        wanted = self._options.num_draft_tokens
        table = choices(
            scored.trails(),
            seconds,
            chains=sorted({*CHAINS, wanted}),
            one_by_one=self._entry.kind not in LOOKUPS,
        )
        return report_of(scored, num_draft_tokens=wanted, depth=self._depth, table=table)

    def _head(self, jobs: dict[float, list[Job]]) -> dict[str, Any]:
        config = self._config
        some = next(iter(jobs.values()))
        return {
            "target": config.target.model,
            "drafter": self._entry.model_dump(mode="json"),
            "num_draft_tokens": self._options.num_draft_tokens,
            "prompts": str(self._options.prompt_file or "built-in"),
            "num_prompts": len(some),
            "max_tokens": some[0].sampling.max_tokens,
            "sampling": config.sampling.model_dump(mode="json", exclude={"temperature"}),
        }

    def _time(self, pair: Pair, texts: Sequence[Text]) -> Seconds:
        task = self._progress.add_task("costs", total=1)
        verify = verify_cost(pair.runner, max_model_len=pair.max_model_len, max_nodes=TREES[-1])
        text = max(texts, key=lambda one: len(one.tokens))
        features = Teacher(pair.runner, layers=pair.layers).read(text).features if pair.layers else None
        seconds = time_steps(
            pair.drafter,
            pair.runner,
            text.tokens,
            sampling=text.sampling,
            features=features,
            width=WIDTH,
            rounds=self._options.rounds,
            verify=verify,
            step_s=pair.step_s,
        )
        self._progress.update(task, completed=1)
        return seconds

    def _follow(self, pair: Pair, texts: Sequence[Text]) -> Scored:
        """Domain by domain, as the live runs do: what a drafter remembers of earlier texts is of the same domain."""
        temperature = texts[0].sampling.temperature
        scored = Scored(temperature=temperature)
        total = sum(len(text.output) for text in texts)
        task = self._progress.add_task(f"teacher-forced, temperature {temperature:g}", total=total)
        for domain in dict.fromkeys(text.domain for text in texts):
            mine = [text for text in texts if text.domain == domain]
            if isinstance(pair.drafter, Remembering):
                pair.drafter.forget()
            overlap = Overlap()
            spots: list[list[Spot]] = []
            longest = max(len(text.output) for text in mine)
            count = max(1, min(pair.batch, _MOST_LOGITS // max(longest * pair.runner.vocab_size, 1)))
            for first in range(0, len(mine), count):
                part = mine[first : first + count]
                spots += self._follow_part(pair, part, overlap, task=task)
            scored.spots[domain] = spots
            if overlap.positions:
                scored.overlaps[domain] = overlap
        return scored

    def _follow_part(self, pair: Pair, texts: Sequence[Text], overlap: Overlap, *, task: Any) -> list[list[Spot]]:
        self._life += 1
        sampled = texts[0].sampling.temperature > 0
        readings: list[Reading | None] = [None] * len(texts)
        if sampled or pair.layers:
            teacher = Teacher(pair.runner, layers=pair.layers)
            readings = [teacher.read(text) for text in texts]
        features = [None if one is None else one.features for one in readings]
        spots = follow(
            pair.drafter,
            texts,
            depth=self._depth,
            width=WIDTH,
            features=features,
            life=self._life,
            step=lambda count: self._progress.advance(task, count),
        )
        if sampled:
            drawn = _laws(pair, texts, features, life=self._life)
            for text, reading, own, told in zip(texts, readings, spots, drawn, strict=True):
                assert reading is not None  # read above
                rows = distributions(text, reading, end_ids=self._tokenizer.eos_ids)
                for probs, spot, law in zip(rows, own, told, strict=True):
                    overlap.add(probs, law=law, guesses=spot.guesses)
        return spots


def _laws(pair: Pair, texts: Sequence[Text], features: Sequence[Any], *, life: int) -> list[list[DraftLaw | None]]:
    """Per text and position; None where the guess is a function of the text."""
    found: list[list[DraftLaw | None]] = [[None] * len(text.output) for text in texts]
    if pair.lawful is not None:
        for position in laws(pair.lawful, texts, features=features, life=life):
            for text, at, law in position:
                found[text][at] = law
    return found


def _texts(jobs: Sequence[Job], run: LiveRun) -> list[Text]:
    streams = [stream for part in run.by_domain.values() for stream in part.streams]
    return [
        Text(domain=job.domain, prompt=job.prompt, output=tuple(stream.tokens), sampling=job.sampling)
        for job, stream in zip(jobs, streams, strict=True)
    ]
