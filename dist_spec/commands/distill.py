"""`dist-spec distill`: its options, and how they become a job. Knows nothing of how drafters are made; imports nothing heavy
before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dist_spec.errors import ConfigError


def distill(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the drafter is written.")],
    target: Annotated[
        str, typer.Option("--target", metavar="MODEL", help="The target: folder, hub name, .gguf.")
    ] = "smollm2",
    kind: Annotated[
        Literal["head", "student"],
        typer.Option("--kind", help="A draft head (EAGLE-3), or a small model of some of the target's layers."),
    ] = "head",
    layers: Annotated[int, typer.Option("--layers", min=1, metavar="N", help="Layers of a student.")] = 4,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE.jsonl",
            help='Your prompts, {"prompt": "..."} or {"messages": [...]} per line (default: built-in templates).',
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", min=1000, metavar="N", help="Tokens the target writes to learn from.")
    ] = 1_500_000,
    positions: Annotated[
        int | None,
        typer.Option(
            "--positions",
            min=1,
            metavar="N",
            help="Places to train on, all passes counted (default: 10,000,000, or as many as --minutes allows).",
            show_default=False,
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", min=0.01, metavar="M", help="Training time at most.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the text, the first weights and the order.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the training that --out holds.")] = False,
    cache: Annotated[
        Path | None,
        typer.Option(
            "--cache",
            metavar="DIR",
            help="The teacher's data (default: a folder of the target's name in the cache of models).",
            show_default=False,
        ),
    ] = None,
    only_data: Annotated[bool, typer.Option("--only-data", help="Make the teacher's data and stop.")] = False,
    worker: Annotated[
        str,
        typer.Option("--worker", metavar="I/N", help="With --only-data: make every N-th part, from I (0 ...) on."),
    ] = "0/1",
    draft_vocab: Annotated[
        int | None,
        typer.Option(
            "--draft-vocab",
            min=16,
            metavar="N",
            help="Ids that a head guesses (default: as many as cover 98.5% of what the target says).",
            show_default=False,
        ),
    ] = None,
    start_from: Annotated[
        str | None,
        typer.Option(
            "--start-from",
            metavar="HEAD",
            help="Begin with this head's weights, shape and draft ids: a folder, an EAGLE-3 one, or a shipped head's name.",
            show_default=False,
        ),
    ] = None,
    num_steps: Annotated[
        int,
        typer.Option(
            "--num-steps", min=1, max=16, metavar="N", help="Steps of its own that a head is trained to take."
        ),
    ] = 4,
    learning_rate: Annotated[float, typer.Option("--learning-rate", metavar="X")] = 1e-3,
    scale_features: Annotated[
        bool, typer.Option("--scale-features/--no-scale-features", help="Bring all feature channels to one size first.")
    ] = True,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, metavar="N", help="Sequences per update.")] = 8,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=8, metavar="N", help="Tokens the target writes per prompt at most.")
    ] = 192,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, metavar="N", help="CPU threads (default: all).", show_default=False),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="cpu|cuda:N", help="Default: the first GPU, else the CPU.", show_default=False)
    ] = None,
) -> None:
    """Make a drafter for a target: it writes its own training text, and a head or a student learns from it. Ctrl-C saves."""
    from dist_spec.distill.job import Job, run_distill
    from dist_spec.distill.settings import TrainSettings

    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file", fix="give a folder")
    if start_from is not None and kind == "student":
        raise ConfigError(
            "--start-from names a head, and --kind student makes no head",
            fix="leave it out: a student begins with layers of its target",
        )
    if start_from is not None and draft_vocab is not None:
        raise ConfigError("--start-from keeps that head's draft ids", fix="leave out --draft-vocab")
    budget = positions or (10**9 if minutes is not None else 10_000_000)
    settings = TrainSettings(
        positions=budget,
        minutes=minutes,
        num_steps=num_steps,
        learning_rate=learning_rate,
        batch_size=batch_size,
        scale_features=scale_features,
        seed=seed,
    )
    run_distill(
        Job(
            target=target,
            kind=kind,
            layers=layers,
            out=out,
            prompts=prompts,
            tokens=tokens,
            settings=settings,
            resume=resume,
            cache=cache,
            only_data=only_data,
            worker=_worker(worker),
            draft_vocab=draft_vocab,
            start_from=start_from,
            max_new_tokens=max_new_tokens,
            threads=threads,
            device=device,
        )
    )


def _worker(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not slash or not index.isdecimal() or not count.isdecimal() or int(index) >= int(count):
        raise ConfigError(f"--worker {text}", fix="give I/N with I below N, e.g. 0/2 and 1/2 for two processes")
    return int(index), int(count)
