"""`dist-spec score`: its options, and how they become a job. Knows nothing of how drafters are scored; imports nothing heavy
before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from typer.core import TyperCommand

from dist_spec.commands.generate_options import BuiltinOption, with_number
from dist_spec.commands.options import ConfigOption, DeviceOption, SetOption, TargetOption, option_overrides
from dist_spec.errors import RequestError

if TYPE_CHECKING:
    from dist_spec.bench.score.live import Mode

LIVE = ("synchronous", "streamed", "configured", "none")


class ScoreCommand(TyperCommand):
    """`--builtin-prompts` may be given without its number."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        return super().parse_args(ctx, with_number("--builtin-prompts", args))


def score(
    config: ConfigOption = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            "--drafter",
            metavar="NAME",
            help="A drafter of the configuration (its name or kind), or ngram, suffix, or a model (default: the only one).",
            show_default=False,
        ),
    ] = None,
    num_draft_tokens: Annotated[
        int, typer.Option("--num-draft-tokens", min=1, max=64, metavar="N", help="Length of the live chain.")
    ] = 4,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE.jsonl",
            help='One {"prompt": "...", "domain": "..."} per line (default: the built-in prompts).',
            show_default=False,
        ),
    ] = None,
    builtin_prompts: BuiltinOption = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", help="Tokens at most, per prompt.")] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            "--temperature",
            min=0.0,
            metavar="T",
            help="Repeatable; 0 is greedy. The first gives the headline (default: 0 and 0.8).",
            show_default=False,
        ),
    ] = None,
    live: Annotated[
        list[str] | None,
        typer.Option(
            "--live",
            metavar="|".join(LIVE),
            help="How it is run live, repeatable: as a chain on demand, as a chain drafted ahead, with the switches of the "
            "configuration, or not at all (default: synchronous and streamed).",
            show_default=False,
        ),
    ] = None,
    chat: Annotated[bool, typer.Option(help="Put prompts into the model's chat template.")] = True,
    sets: SetOption = None,
    target: TargetOption = None,
    device: DeviceOption = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report there; keys: docs/drafters.md.")
    ] = None,
) -> None:
    """Measure what a drafter is worth to a target: acceptance by depth and domain, live and teacher-forced, its cost, and
    the tokens to expect from chains and trees of several sizes."""
    from dist_spec.config import load_config

    overrides = option_overrides(target=target, device=device, max_tokens=max_tokens)
    settings = load_config(config, sets=sets or (), overrides=overrides)
    modes = live_modes(live or ("synchronous", "streamed"))
    from dist_spec.bench.score.score import Options
    from dist_spec.bench.score.score import score as run_score

    options = Options(
        drafter=drafter,
        num_draft_tokens=num_draft_tokens,
        prompt_file=prompts,
        builtin=builtin_prompts,
        temperatures=tuple(dict.fromkeys(temperature or (0.0, 0.8))),
        live=modes,
        chat=chat,
        json_file=json_file,
    )
    run_score(settings, options)


def live_modes(names: Sequence[str]) -> tuple[Mode, ...]:
    """The ways to run it, each once; empty for `none`.

    Raises:
        RequestError: a name is unknown, or `none` stands beside others.
    """
    modes = list(dict.fromkeys(names))
    unknown = [name for name in modes if name not in LIVE]
    if unknown:
        raise RequestError(f"--live: there is no way called {unknown[0][:100]!r}", fix=f"use some of {', '.join(LIVE)}")
    if "none" in modes and len(modes) > 1:
        raise RequestError("--live none excludes the others", fix="leave one of them out")
    return tuple(cast("Mode", mode) for mode in modes if mode != "none")
