"""Options of `generate` that say what is run beside it and what is written. Knows nothing of how that is done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from dist_spec.config import Override

ALL = "0"
"""What `--builtin-prompts` without a number stands for."""

BuiltinOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--builtin-prompts",
        min=0,
        metavar="[N]",
        help="Run the built-in prompts: the first N of each domain (without N: all), one by one.",
        show_default=False,
    ),
]
DomainOption: TypeAlias = Annotated[
    str,
    typer.Option("--domain", metavar="NAME", help="Label of the prompts in --decisions.", show_default=False),
]
StatsOption: TypeAlias = Annotated[
    bool, typer.Option("--stats", help="Show where the time went, what was accepted, what the links carried.")
]
ComparePlainOption: TypeAlias = Annotated[
    bool, typer.Option("--compare-plain", help="Also run without drafting; report equality and speed ratios.")
]
ControlsOption: TypeAlias = Annotated[
    bool,
    typer.Option("--controls", help="Also run a random drafter, drafting off, and synchronous drafting (none/pull)."),
]
CompareHfOption: TypeAlias = Annotated[
    bool, typer.Option("--compare-hf", help="Also time transformers' own generate and prompt lookup (greedy).")
]
RoundsOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--rounds", min=1, metavar="N", help="Turns of everything that is compared (default: 3; alone: 1)."),
]
ConcurrencyOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--concurrency", min=1, metavar="N",
        help="Prompts at a time (default: those given together, built-in ones one by one).",
    ),
]  # fmt: skip
ColorOption: TypeAlias = Annotated[
    bool,
    typer.Option("--color", help="Mark accepted, recovered and bonus tokens (on a terminal, or with FORCE_COLOR=1)."),
]
TraceOption: TypeAlias = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Write a Chrome / Perfetto trace of all processes.")
]
DecisionsOption: TypeAlias = Annotated[
    Path | None, typer.Option("--decisions", metavar="FILE", help="Write one JSON record per step and request.")
]
JsonOption: TypeAlias = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write results there; keys: docs/operating.md.")
]
QuietOption: TypeAlias = Annotated[bool, typer.Option("--quiet", help="Do not stream the text.")]


class GenerateCommand(TyperCommand):
    """`--builtin-prompts` may be given without its number."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        return super().parse_args(ctx, with_number("--builtin-prompts", args))


def with_number(option: str, arguments: Sequence[str]) -> list[str]:
    """The arguments with `ALL` after every `option` that no number follows; what comes after "--" stays as it is."""
    done: list[str] = []
    for index, argument in enumerate(arguments):
        if argument == "--":
            return [*done, *arguments[index:]]
        done.append(argument)
        if argument == option and not "".join(arguments[index + 1 : index + 2]).isdigit():
            done.append(ALL)
    return done


def file_overrides(*, trace: Path | None, decisions: Path | None) -> list[Override]:
    """Files as settings; absolute, as other processes write them."""
    places = (("telemetry.trace", trace), ("telemetry.decisions", decisions))
    return [(place, str(path.absolute())) for place, path in places if path is not None]
