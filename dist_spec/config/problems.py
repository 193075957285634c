"""Turns what pydantic found into one error that names the place, what is allowed there, and the nearest known key.
Knows the schema, not where the settings came from."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dist_spec.config.schema import Config, DrafterConfig, LinkConfig
from dist_spec.errors import ConfigError, DistSpecError, UnsupportedError

DRAFTER_KINDS: dict[str, type[BaseModel]] = {
    get_args(model.model_fields["kind"].annotation)[0]: model for model in get_args(get_args(DrafterConfig)[0])
}

NOT_YET_KEYS: Mapping[str, Sequence[str]] = {
    "sampling": ("grammar", "n", "best_of", "use_beam_search", "typical_p", "no_repeat_ngram_size"),
    "target": ("lora", "adapter"),
    "transport": ("curve", "link"),
    "drafter": ("lora", "adapter"),
}  # fmt: skip
"""Keys that exist in the design or elsewhere, refused by name so that nobody hunts for a spelling mistake."""

NEVER_KEYS: Mapping[str, Mapping[str, str]] = {
    "target": {
        "quantization": "the output must be the model's own, and quantised weights are another model's: only drafters may",
        **dict.fromkeys(
            ("device_map", "max_memory", "offload_folder"),
            "the target is spread over devices by sharding (parallel.tp_size): only drafters may",
        ),
    },
}
"""Keys that drafters have and another section has not, with the reason."""

NOT_YET_VALUES: Mapping[str, Sequence[str]] = {
    "rule": ("block", "traversal"),
    "kind": ("eagle", "medusa"),
    "dtype": ("float8", "fp8", "float8_e4m3fn", "int8", "int4"),
}
"""The same for values, by the name of their key."""

WANTED: Mapping[str, str] = {
    "string_type": "should be a text",
    "int_type": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
    "tuple_type": "should be a list",
    "dict_type": "should be a section (key: value pairs)",
    "model_type": "should be a section (key: value pairs)",
    "model_attributes_type": "should be a section (key: value pairs)",
    "invalid_key": "keys should be texts",
}
"""What is allowed in a place, in the words of a YAML file rather than of Python."""


def config_error(error: ValidationError, *, source: str) -> DistSpecError:
    """One error for all that is wrong; `source` names the file or command line it came from."""
    found = error.errors(include_url=False)
    for details in found:
        refusal = _not_yet(details, source=source)
        if refusal is not None:
            return refusal
    problems = [_describe(details) for details in found]
    if len(problems) == 1:
        text, fix = problems[0]
        return ConfigError(f"{source}: {text}", fix=fix)
    lines = "".join(f"\n  {text} ({fix})" for text, fix in problems)
    return ConfigError(f"{source}: {len(problems)} settings are wrong:{lines}", fix="correct these and try again")


def suggest(word: str, known: Sequence[str]) -> str | None:
    """The known word nearest to this one, if any is near."""
    matches = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return matches[0] if matches else None


def _not_yet(details: ErrorDetails, *, source: str) -> UnsupportedError | None:
    place, value = _place(details), details["input"]
    section, key = _section(details), str(details["loc"][-1]) if details["loc"] else ""
    if details["type"] == "extra_forbidden" and key in NOT_YET_KEYS.get(section, ()):
        return UnsupportedError(f"{source}: {place} is not in this release", fix=f"remove {place}")
    if details["type"] == "union_tag_invalid":
        tag = str(details["ctx"]["tag"])
        if tag in NOT_YET_VALUES["kind"]:
            known = ", ".join(DRAFTER_KINDS)
            return UnsupportedError(f"{source}: {place}.kind: {tag} is not in this release", fix=f"use one of: {known}")
    if details["type"] == "literal_error" and value in NOT_YET_VALUES.get(key, ()):
        return UnsupportedError(
            f"{source}: {place}: {value} is not in this release", fix=f"use {details['ctx']['expected']}"
        )
    return None


def _describe(details: ErrorDetails) -> tuple[str, str]:
    """(what is wrong and where, how to mend it)."""
    place, value, context = _place(details), details["input"], details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            known = _known_keys(details)
            reason = NEVER_KEYS.get(_section(details), {}).get(str(details["loc"][-1]))
            if reason is not None:
                return f"{place}: {reason}", f"remove {place}, or write it below a drafter of kind: model"
            near = suggest(str(details["loc"][-1]), known) or _elsewhere(str(details["loc"][-1]))
            hint = f"; did you mean {near!r}?" if near else ""
            return f"{place}: unknown key{hint}", f"known keys here: {', '.join(known)}"
        case "missing":
            return f"{place}: missing", f"give it a value, say --set {place}=..."
        case "union_tag_not_found":
            return f"{place}: it has no kind", f"set {place}.kind to one of: {', '.join(DRAFTER_KINDS)}"
        case "union_tag_invalid":
            tag = str(context["tag"])
            near = suggest(tag, list(DRAFTER_KINDS))
            hint = f"; did you mean {near!r}?" if near else ""
            return f"{place}.kind: unknown kind {tag!r}{hint}", f"use one of: {', '.join(DRAFTER_KINDS)}"
        case "literal_error":
            return f"{place}: {value!r} is not allowed", f"use {context['expected']}"
        case "string_pattern_mismatch":
            return f"{place}: {value!r} is not of the right form", _pattern_fix(place, str(context["pattern"]))
        case _:
            wanted = WANTED.get(details["type"], _lower(details["msg"]).removeprefix("input "))
            return f"{place}: {wanted}, got {_shown(value)}", f"change {place}"


def _pattern_fix(place: str, pattern: str) -> str:
    match place.rsplit(".", 1)[-1]:
        case "device":
            return "use cpu or cuda:0, cuda:1, ..."
        case "bind":
            return "use tcp://HOST:PORT, for instance tcp://127.0.0.1:5555"
        case "name":
            return "use letters, digits, _ . and -, beginning with a letter or digit"
        case "target":
            return "use package.module:Class"
        case _:
            return f"it must match {pattern}"


def _shown(value: Any) -> str:
    """A value as it may be quoted in one line, with its kind in the words of a YAML file."""
    kinds = {str: "a text", bool: "true/false", int: "a number", float: "a number", dict: "a section", list: "a list"}
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({kinds.get(type(value), type(value).__name__)})"


def _elsewhere(key: str) -> str | None:
    """The place of this key in another section, for settings written one level too high or too low."""
    for name, field in Config.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel) and key in section.model_fields:
            return f"{name}.{key}"
    return None


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _path(details: ErrorDetails) -> Iterator[str]:
    """The dotted place as the user wrote it: without the union tags that pydantic adds after a drafter's index."""
    loc = details["loc"]
    for index, part in enumerate(loc):
        if index == 2 and loc[0] == "drafters" and part in DRAFTER_KINDS:
            continue
        if index == 2 and loc[:2] == ("speculation", "budget"):
            continue
        if index == 4 and loc[0] == "drafters" and loc[3] == "device_map":
            continue
        yield str(part)


def _place(details: ErrorDetails) -> str:
    return ".".join(_path(details)) or "the settings"


def _section(details: ErrorDetails) -> str:
    loc = details["loc"]
    return "drafter" if loc and loc[0] == "drafters" else str(loc[0]) if loc else ""


def _known_keys(details: ErrorDetails) -> list[str]:
    loc = details["loc"]
    if len(loc) == 1:
        return list(Config.model_fields)
    if loc[0] == "drafters" and len(loc) > 4 and loc[3] == "link":
        return list(LinkConfig.model_fields)
    if loc[0] == "drafters":
        return list(DRAFTER_KINDS[str(loc[2])].model_fields)
    section = Config.model_fields[str(loc[0])].annotation
    assert isinstance(section, type)
    assert issubclass(section, BaseModel)
    return list(section.model_fields)
