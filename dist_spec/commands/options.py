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
SpeculativeConfigOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--speculative-config",
        metavar="JSON",
        help='The drafter in vLLM\'s words, e.g. \'{"method": "ngram", "num_speculative_tokens": 5}\'.',
        show_default=False,
    ),
]
NumSpeculativeOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--num-speculative-tokens", metavar="N", help="The same as --num-draft-tokens.", show_default=False),
]
ConfigOption: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings file (YAML).", show_default=False)
]
TargetOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Target model: folder, hub name, .gguf.", show_default=False)
]
DrafterOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL",
        help="Drafter: a model, `ngram` (prompt lookup), `suffix` or `none`; repeatable.",
        show_default=False,
    ),
]
DepthOption: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Depth of the draft trees, of every drafter.", show_default=False)
]
DeviceOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="cpu|cuda:N", help="Device of the target.", show_default=False)
]
DrafterDeviceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="cpu|cuda:N", help="Device of drafters given by --drafter (default: --device).", show_default=False
    ),
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
    speculative_config: str | None = None,
    num_speculative_tokens: int | None = None,
) -> list[Override]:
    """Options of the command line as (place, value) pairs; those not given (None) are left out.

    Raises:
        ConfigError: two options say the same thing, or `speculative_config` is not what it should be.
    """
    from dist_spec.config import parse_drafter_option
    from dist_spec.config.aliases import one_name, parse_speculative_config

    depth = one_name({"--num-draft-tokens": num_draft_tokens, "--num-speculative-tokens": num_speculative_tokens})
    one_name({"--drafter": drafters or None, "--speculative-config": speculative_config})
    entries: list[dict[str, Any]] = [parse_drafter_option(text) for text in drafters or () if text != "none"]
    if speculative_config is not None:
        entries = [parse_speculative_config(speculative_config)]
        one_name({"--speculative-config with a depth": entries[0].get("num_draft_tokens"), "an option for it": depth})
    for entry in entries:
        if entry["kind"] in ("model", "head") and (drafter_device or device):
            entry["device"] = drafter_device or device
    places: list[Override] = [
        ("target.model", target),
        ("target.device", device),
        ("drafters", entries if drafters or speculative_config is not None else None),
        ("drafters.*.num_draft_tokens", depth),
        ("sampling.temperature", temperature),
        ("sampling.seed", seed),
        ("sampling.max_tokens", max_tokens),
    ]
    return [(place, value) for place, value in places if value is not None]


def read_config(path: Path, sets: Sequence[str] | None, *, speculative_config: str | None = None) -> Config:
    """The settings of a command that takes a file, `--set` and perhaps `--speculative-config`."""
    from dist_spec.config import load_config

    return load_config(path, sets=sets or (), overrides=option_overrides(speculative_config=speculative_config))
