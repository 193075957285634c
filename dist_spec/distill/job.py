"""`dist-spec distill` at work: loads the target, has the data and the drafter made, and shows how far it is."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dist_spec.distill.cache import Cache
from dist_spec.distill.card import head_card
from dist_spec.distill.collect import Prompts, make_recipe
from dist_spec.distill.fill import Wanted, corpora, default_folder, fill
from dist_spec.distill.make_head import Made, make_head
from dist_spec.distill.make_student import MadeStudent, make_student
from dist_spec.distill.ranks import Ranks, has_bfloat16, join_ranks
from dist_spec.distill.settings import TrainSettings
from dist_spec.distill.student_card import student_card
from dist_spec.distill.teacher import Teacher
from dist_spec.errors import ConfigError
from dist_spec.models.head_formats import WEIGHTS_FILE, read_head_config
from dist_spec.models.head_target import facts_of
from dist_spec.models.loading import LoadedModel, load_model, usable_device
from dist_spec.models.source import cache_folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What `dist-spec distill` was asked for; see `commands.distill`."""

    target: str
    kind: str
    layers: int
    out: Path
    prompts: Path | None
    tokens: int
    settings: TrainSettings
    resume: bool
    cache: Path | None
    only_data: bool
    worker: tuple[int, int]
    draft_vocab: int | None
    start_from: str | None
    max_new_tokens: int
    threads: int | None
    device: str | None


def run_distill(job: Job, *, console: Console | None = None) -> None:
    """Data first, then the drafter, then its card.

    Raises:
        DistSpecError: the target, the prompts or the cache cannot be used; each names the fix.
    """
    console = console or Console()
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    ranks = join_ranks(usable_device(job.device or ("cuda" if torch.cuda.is_available() else "cpu")))
    if not job.only_data:
        _make_room(job.out)  # before hours go into the data
    say = console.print if ranks.rank == 0 else (lambda *_, **__: None)
    prompts = Prompts(job.prompts, seed=job.settings.seed)
    dtype = "bfloat16" if has_bfloat16(ranks.device) else "float32"
    target = load_model(
        job.target, dtype=dtype, device=str(ranks.device), progress=lambda line: say(line, style="dim", markup=False)
    )
    layers = None
    if job.start_from is not None:
        layers = read_head_config(job.start_from, target=facts_of(target)).feature_layers
    recipe = make_recipe(
        target, prompts=prompts, feature_layers=layers, seed=job.settings.seed, max_new_tokens=job.max_new_tokens
    )
    folder = job.cache or default_folder(cache_folder(), target)
    cache = Cache(folder, recipe=recipe)
    _fill(job, cache, prompts, target, ranks, console)
    if job.only_data:
        return
    if job.kind == "student":
        _student(job, cache, target, ranks, console)
    else:
        _head(job, cache, target, ranks, console)


def _make_room(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be made: {error.strerror}", fix="give another folder") from error
    if not os.access(out, os.W_OK):
        raise ConfigError(f"--out {out} cannot be written", fix="give another folder")


def _fill(job: Job, cache: Cache, prompts: Prompts, target: LoadedModel, ranks: Ranks, console: Console) -> None:
    """Ranks share the shards; a single process may be told its part (`--worker`)."""
    index, count = (ranks.rank, ranks.size) if ranks.size > 1 else job.worker
    wanted = Wanted(tokens=job.tokens, worker=index, workers=count)
    with _bar(console, ranks, "text by the target", total=job.tokens) as (bar, task):
        fill(
            cache,
            prompts,
            wanted=wanted,
            teacher=lambda: Teacher(target, feature_layers=cache.recipe.feature_layers),
            tell=lambda tokens: bar.update(task, completed=tokens),
        )
    ranks.decide(0.0)  # nobody goes on before all shards are there


def _head(job: Job, cache: Cache, target: LoadedModel, ranks: Ranks, console: Console) -> None:
    train, held_out, refresh = corpora(cache)
    with stopping() as stop, _bar(console, ranks, "training", total=1.0) as (bar, task):
        made = make_head(
            target,
            cache,
            corpora=(train, held_out, refresh),
            folder=job.out,
            settings=job.settings,
            ranks=ranks,
            draft_vocab_size=job.draft_vocab,
            start_from=job.start_from,
            resume=job.resume,
            tell=_teller(bar, task),
            stop=stop,
        )
    if ranks.rank == 0:
        card = head_card(
            made,
            recipe=cache.recipe,
            settings=job.settings,
            command=_command(),
            tokens=train.num_generated,
            file_bytes=(job.out / WEIGHTS_FILE).stat().st_size,
        )
        _finish(job, card, made, console=console)


def _student(job: Job, cache: Cache, target: LoadedModel, ranks: Ranks, console: Console) -> None:
    train, held_out, refresh = corpora(cache)
    with stopping() as stop, _bar(console, ranks, "training", total=1.0) as (bar, task):
        made = make_student(
            target,
            cache,
            corpora=(train, held_out, refresh),
            folder=job.out,
            settings=job.settings,
            ranks=ranks,
            num_layers=job.layers,
            resume=job.resume,
            tell=_teller(bar, task),
            stop=stop,
        )
    if ranks.rank == 0:
        card = student_card(
            made, recipe=cache.recipe, settings=job.settings, command=_command(), tokens=train.num_generated
        )
        _finish(job, card, made, console=console)


def _command() -> str:
    return shlex.join(["dist-spec", *sys.argv[1:]])


def _teller(bar: Progress, task: Any) -> Callable[[Any, float], None]:
    """Shows how far a training is, and how good."""

    def tell(progress: Any, share: float) -> None:
        agreement = " ".join(f"{a:.3f}" for a in progress.agreement)
        held = progress.history[-1] if progress.history else None
        text = f"loss {progress.loss:.3f}  agreement {agreement}"
        if held is not None:
            text += "  held out " + " ".join(f"{a:.3f}" for a in held["agreement"])
        bar.update(task, completed=share, description=text)

    return tell


def _finish(job: Job, card: str, made: Made | MadeStudent, *, console: Console) -> None:
    (job.out / "README.md").write_text(card)
    console.print(
        f"wrote {job.out}: agreement by step on held-out text "
        + " ".join(f"{a:.3f}" for a in made.evaluation.agreement),
        markup=False,
    )
    if made.interrupted:
        console.print("interrupted; --resume goes on from here")


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """While it lasts, the first Ctrl-C (or SIGTERM) only asks to stop: an update is never cut in two. A second Ctrl-C ends
    at once, and the last checkpoint is what is left."""
    asked = False

    def stop(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _bar(console: Console, ranks: Ranks, title: str, *, total: float) -> Iterator[tuple[Progress, Any]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=ranks.rank > 0)
    with bar:
        yield bar, bar.add_task(title, total=total)
