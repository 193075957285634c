"""Options that several commands share, and how they become settings. Knows nothing of what a command does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from dist_spec.config import Config, Override

ConfigArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="Settings file (YAML); see configs/ for examples.", show_default=False)
]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PLACE=VALUE",
        help="Override one setting, e.g. drafters.0.num_draft_tokens=6. May be repeated; wins over all else.",
        show_default=False,
    ),
]
BindOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--bind", metavar="tcp://HOST:PORT", help="Where to listen (default: transport.bind)."),
]


def option_overrides(
    *,
    target: str | None = None,
    drafters: Sequence[str] | None = None,
    num_draft_tokens: int | None = None,
    device: str | None = None,
    drafter_device: str | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    max_tokens: int | None = None,
) -> list[Override]:
    """Options of the command line as (place, value) pairs; those not given (None) are left out."""
    from dist_spec.config import parse_drafter_option

    entries: list[dict[str, Any]] = [parse_drafter_option(text) for text in drafters or () if text != "none"]
    for entry in entries:
        if entry["kind"] == "model" and (drafter_device or device):
            entry["device"] = drafter_device or device
    places: list[Override] = [
        ("target.model", target),
        ("target.device", device),
        ("drafters", entries if drafters else None),
        ("drafters.*.num_draft_tokens", num_draft_tokens),
        ("sampling.temperature", temperature),
        ("sampling.seed", seed),
        ("sampling.max_tokens", max_tokens),
    ]
    return [(place, value) for place, value in places if value is not None]


def read_config(path: Path, sets: Sequence[str] | None) -> Config:
    """The settings of a command that takes a file and `--set`."""
    from dist_spec.config import load_config

    return load_config(path, sets=sets or ())
