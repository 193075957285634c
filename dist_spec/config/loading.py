"""Reads settings from a YAML file, from `--set` and from options. Knows the schema, not what the settings do."""

from __future__ import annotations

import copy
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from pydantic import ValidationError

from dist_spec.config.aliases import resolve_aliases
from dist_spec.config.problems import config_error
from dist_spec.config.schema import Config
from dist_spec.errors import ConfigError

Override: TypeAlias = tuple[str, Any]
"""(dotted place, value); `*` in the place stands for every item of a list."""

MAX_FILE_BYTES = 1 << 20
HEAD_FILE = "head.json"
"""What tells the folder of a draft head from that of a model."""


class _Loader(yaml.SafeLoader):
    """YAML as people expect it: 1e-3 is a number, a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is there twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def load_config(
    path: str | Path | Mapping[str, Any] | None, *, sets: Sequence[str] = (), overrides: Iterable[Override] = ()
) -> Config:
    """The checked settings.

    Args:
        path: a YAML file, plain data as such a file holds it, or None when everything is given by `sets` and `overrides`.
        sets: "drafters.0.num_draft_tokens=6" and the like; values are YAML. Applied last.
        overrides: places and values from options of the command line.

    Raises:
        ConfigError: the file cannot be read, or a setting is wrong (names the place, the allowed values and a fix).
        UnsupportedError: a setting asks for something that is not in this release.
    """
    # Aliases of the file first, so that an option overrides a setting under whichever name the file has it.
    source = "settings" if isinstance(path, Mapping) else str(path) if path is not None else "command line"
    given = copy.deepcopy(dict(path)) if isinstance(path, Mapping) else _read(Path(path)) if path is not None else {}
    data = resolve_aliases(given, source=source)
    for place, value in overrides:
        _assign(data, place.split("."), value, option=place)
    for text in sets:
        place, value = parse_set(text)
        _assign(data, place.split("."), value, option=f"--set {text}")
    if not data.get("target") and path is None:
        raise ConfigError("no target model is given", fix="give --config FILE, or --target ID (and --drafter ID)")
    return parse_config(data, source=source)


def parse_config(data: Any, *, source: str = "settings") -> Config:
    """Checked settings from plain data (dicts, lists, numbers, strings)."""
    data = resolve_aliases(data, source=source)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise config_error(error, source=source) from None


def parse_set(text: str) -> Override:
    """Splits "place=value"; the value is YAML (6, true, null, [0, 1], {kind: ngram})."""
    place, equals, value = text.partition("=")
    place = place.strip()
    if not equals or not all(place.split(".")):
        raise ConfigError(f"--set {text}: not of the form place=value", fix="for instance --set speculation.budget=8")
    try:
        return place, yaml.load(value, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a date that is none, a number of 5000 digits
        raise ConfigError(f"--set {text[:200]}: the value is not YAML", fix="put quotes around a text") from None


def parse_drafter_option(text: str) -> dict[str, Any]:
    """`--drafter ngram` is prompt lookup, `suffix` lookup in all that was said, `head` the draft head that is shipped for
    the target; anything else is the folder of a head or the name of a model."""
    if text in ("ngram", "suffix", "head"):
        return {"kind": text}
    return {"kind": "head" if (Path(text).expanduser() / HEAD_FILE).is_file() else "model", "model": text}


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: too large for a configuration", fix="is it the right file?")
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file", fix=_nearby_files(path)) from None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror})", fix="check the path and its permissions"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not text in UTF-8", fix="is it the right file?") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: is not valid YAML: {reason}", fix="correct the line named above") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must hold key: value pairs, found {type(data).__name__}", fix="see configs/")
    return data


def _nearby_files(path: Path) -> str:
    folder = path.parent if path.parent.is_dir() else Path("configs")
    names = sorted(str(file) for file in folder.glob("*.yaml"))[:8]
    return f"files there: {', '.join(names)}" if names else "check the path"


def _assign(node: Any, parts: list[str], value: Any, *, option: str) -> None:
    """Writes `value` at the place, making missing sections; a list may grow by one item."""
    part, rest = parts[0], parts[1:]
    if isinstance(node, list):
        if part == "*":
            for index in range(len(node)):
                _assign(node, [str(index), *rest], copy.deepcopy(value), option=option)
            return
        if not part.isdecimal() or int(part) > len(node):
            known = f"0 to {len(node) - 1}" if node else "none"
            raise ConfigError(f"{option}: {part!r} is no item of the list", fix=f"items there are: {known}")
        key: Any = int(part)
        if key == len(node):
            node.append({})
    elif isinstance(node, dict):
        key = part
        if rest and node.get(key) is None:
            node[key] = [] if rest[0].isdecimal() or rest[0] == "*" else {}
    else:
        raise ConfigError(f"{option}: what stands before {part!r} has no keys", fix="see the places in configs/*.yaml")
    if rest:
        _assign(node[key], rest, value, option=option)
    else:
        node[key] = value
