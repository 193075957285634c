"""Options of `generate` that say what is run beside it and what is written. Knows nothing of how that is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
ConnectOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--connect", metavar="tcp://HOST:PORT",
        help="Ask a running target there instead of starting one; --target or --config says whose tokenizer.",
        show_default=False,
    ),
]  # fmt: skip
WaitOption: TypeAlias = Annotated[
    float,
    typer.Option(
        "--wait-s",
        min=0.1,
        metavar="S",
        help="With --connect: wait so long for a target that is not (or no longer) there.",
    ),
]
AwaitOption: TypeAlias = Annotated[
    int,
    typer.Option(
        "--await-drafters", min=0, metavar="N",
        help="With --connect: begin once so many drafters are attached to the target (or after half a minute).",
    ),
]  # fmt: skip
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


def check_connect(connect: str | None, given: Mapping[str, object]) -> None:
    """With --connect: refuse what only processes that we start ourselves can do.

    Args:
        given: options by name; those with a true value, or a number, were given.

    Raises:
        ConfigError: names the first of them, or the address that is none.
    """
    from dist_spec.errors import ConfigError
    from dist_spec.topology import split_address

    if connect is None:
        return
    split_address(connect)
    for option, value in given.items():
        if value is not None and value is not False and value != []:
            raise ConfigError(
                f"{option} says how processes are started, and with --connect they are there already",
                fix=f"leave {option} out, or give it where the target is started",
            )
