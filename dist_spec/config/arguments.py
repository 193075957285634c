"""Settings given as arguments of a Python call, as overrides of a settings file. Knows the words, not what they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from dist_spec.config.aliases import ALIAS, OWN, drafter_of, one_name
from dist_spec.config.loading import Override, parse_drafter_option
from dist_spec.errors import ConfigError


def argument_overrides(
    sections: Mapping[str, Any],
    *,
    drafters: Sequence[str | PathLike[str] | Mapping[str, Any]] | None,
    speculative_config: Mapping[str, Any] | None,
    num_speculative_tokens: int | None,
) -> list[Override]:
    """(place, value) pairs. Sections are merged key by key into what a file says; a list of drafters replaces its list.

    Args:
        sections: settings by section; a text or path for `target` is its model; None: not given.

    Raises:
        ConfigError: two arguments say the same thing.
        UnsupportedError: vLLM's words ask for something that is not here.
    """
    places: list[Override] = []
    for section, value in sections.items():
        if section == "target" and isinstance(value, str | PathLike):
            places.append(("target.model", fspath(value)))
        elif isinstance(value, Mapping):
            places += [(f"{section}.{key}", setting) for key, setting in value.items()]
        elif value is not None:
            places.append((section, value))
    one_name({"drafters": drafters or None, "speculative_config": speculative_config})
    if drafters is not None or speculative_config is not None:
        entries = drafter_entries(drafters or (), speculative_config=speculative_config)
        if any(name in entry for entry in entries for name in (ALIAS, OWN)):
            one_name({"num_speculative_tokens": num_speculative_tokens, "the depth of a drafter": True})
        places.append(("drafters", entries))
    if num_speculative_tokens is not None:
        places.append((f"drafters.*.{OWN}", num_speculative_tokens))
    return places


def drafter_entries(
    drafters: Sequence[str | PathLike[str] | Mapping[str, Any]], *, speculative_config: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """The section `drafters` of both ways to name them."""
    if isinstance(drafters, str | Mapping | PathLike) or not isinstance(drafters, Sequence):
        raise ConfigError(f"drafters: {drafters!r} is no list", fix=f"say drafters=[{drafters!r}]")
    if speculative_config is not None:
        return [drafter_of(speculative_config, source="LLM")]
    entries: list[dict[str, Any]] = []
    for one in drafters:
        if not isinstance(one, str | PathLike | Mapping):
            raise ConfigError(f"drafters: {one!r} is no drafter", fix='say "ngram", "suffix", a model, or a dict')
        entries.append(dict(one) if isinstance(one, Mapping) else parse_drafter_option(fspath(one)))
    return entries
