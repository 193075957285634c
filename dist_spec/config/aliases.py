"""Names for settings that users of other systems know, turned into ours. Works on plain data before it is checked; knows
the words, not what a setting does.

| name                                      | where                            | means here                             |
|-------------------------------------------|----------------------------------|----------------------------------------|
| `num_speculative_tokens: N`               | a drafter                        | `num_draft_tokens: N` of it            |
| `num_speculative_tokens: N`               | `speculation`, top level, option | `num_draft_tokens: N` of every drafter |
| `speculative_config: {...}` (vLLM's JSON) | top level, option, `LLM(...)`    | `drafters: [one]`, as follows          |
| `method: ngram`                           | in it                            | `kind: ngram`                          |
| `method: suffix`                          | in it                            | `kind: suffix`                         |
| `method: eagle3, model: M`                | in it                            | `kind: head, model: M`                 |
| `method: draft_model`, or only `model: M` | in it                            | `kind: model, model: M`                |
| `model: ngram`, `model: [ngram]`          | in it                            | `kind: ngram`                          |
| `num_speculative_tokens: N`               | in it                            | `num_draft_tokens: N`                  |
| `prompt_lookup_max: N`                    | in it, with `ngram`              | `max_ngram: N`                         |
| `prompt_lookup_min: N`                    | in it, with `ngram`              | nothing: shorter matches score lower   |
| `max_model_len: N`                        | in it, with a model              | `max_model_len: N`                     |
| `suffix_decoding_max_tree_depth: N`       | in it, with `suffix`             | `num_draft_tokens: N`                  |
| `draft_tensor_parallel_size: 1`           | in it, with a model              | nothing: a drafter has one device      |

`num_draft_tokens` is the depth of the draft tree. How many of its nodes are verified per step is `speculation.budget`,
which these names leave alone: by default the price decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dist_spec.errors import ConfigError, UnsupportedError

ALIAS = "num_speculative_tokens"
OWN = "num_draft_tokens"
SPECULATIVE_CONFIG = "speculative_config"

METHODS = {"ngram": "ngram", "[ngram]": "ngram", "suffix": "suffix", "draft_model": "model", "eagle3": "head"}
_EXISTING = "ngram (prompt lookup), suffix, eagle3 (a draft head), or a smaller model"
_ELSEWHERE = (
    "eagle",
    "medusa",
    "mlp_speculator",
    "mtp",
    "deepseek_mtp",
    "ngram_gpu",
    "extract_hidden_states",
)

_SETTINGS: Mapping[str, Mapping[str, str | None]] = {
    "ngram": {ALIAS: OWN, "prompt_lookup_max": "max_ngram", "prompt_lookup_min": None},
    "suffix": {ALIAS: OWN, "suffix_decoding_max_tree_depth": OWN},
    "head": {ALIAS: OWN, "model": "model", "draft_tensor_parallel_size": None},
    "model": {ALIAS: OWN, "model": "model", "max_model_len": "max_model_len", "draft_tensor_parallel_size": None},
}
"""Per kind of drafter: vLLM's name -> ours (None: taken, and of no effect)."""

_INSTEAD: Mapping[str, str] = {
    "disable_by_batch_size": "leave it out: how much is verified is decided by its price at every step",
    "quantization": "write drafters.0.quantization: {method: ..., its options}",
    "tensor_parallel_size": "leave it out: a drafter has one device",
    "draft_tensor_parallel_size": "leave it out, or 1: a drafter has one device",
    "rejection_sample_method": "set verification.rule",
    "acceptance_method": "set verification.rule",
    "disable_padded_drafter_batch": "leave it out",
    "speculative_token_tree": "leave it out: trees grow by themselves (speculation.verify_shape: tree)",
}


def resolve_aliases(data: Any, *, source: str = "settings") -> Any:
    """The same settings in our names. What is no mapping is given back as it is, for the schema to complain of.

    Raises:
        ConfigError: an alias is given beside the name it stands for, or is malformed.
        UnsupportedError: it asks for a method or setting that is not here.
    """
    if not isinstance(data, dict):
        return data
    data = dict(data)
    if SPECULATIVE_CONFIG in data:
        if data.get("drafters"):
            raise ConfigError(
                f"{source}: {SPECULATIVE_CONFIG} and drafters both say who drafts", fix="keep one of them"
            )
        data["drafters"] = [drafter_of(data.pop(SPECULATIVE_CONFIG), source=source)]
    return _resolve_depth(data, source=source)


def _resolve_depth(data: dict[str, Any], *, source: str) -> dict[str, Any]:
    """`num_speculative_tokens` wherever it may stand."""
    general: list[tuple[str, Any]] = []
    if ALIAS in data:
        general.append((ALIAS, data.pop(ALIAS)))
    if isinstance(data.get("speculation"), dict) and ALIAS in data["speculation"]:
        data["speculation"] = dict(data["speculation"])
        general.append((f"speculation.{ALIAS}", data["speculation"].pop(ALIAS)))
    if len(general) > 1:
        raise ConfigError(f"{source}: {general[0][0]} and {general[1][0]} are both given", fix="keep one of them")
    if not isinstance(data.get("drafters"), list | tuple):
        return data
    drafters = []
    for index, entry in enumerate(data["drafters"]):
        if isinstance(entry, dict):
            own = [(f"drafters.{index}.{name}", entry[name]) for name in (ALIAS, OWN) if name in entry]
            given = [*own, *general]
            if len(given) > 1:
                raise ConfigError(
                    f"{source}: {given[0][0]} and {given[1][0]} say the same thing twice", fix="keep one of them"
                )
            entry = {name: value for name, value in entry.items() if name != ALIAS}
            entry |= {OWN: given[0][1]} if given else {}
        drafters.append(entry)
    return {**data, "drafters": drafters}


def one_name(given: Mapping[str, Any]) -> Any:
    """The value of the only one given (not None) of several names of one thing, if any. ConfigError for two."""
    found = [name for name, value in given.items() if value is not None]
    if len(found) > 1:
        raise ConfigError(f"{found[0]} and {found[1]} say the same thing", fix="give one of them")
    return given[found[0]] if found else None


def parse_speculative_config(text: str) -> dict[str, Any]:
    """The drafter meant by `--speculative-config JSON`. ConfigError when it is no JSON object."""
    option = "--speculative-config"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{option}: {text[:200]!r} is not JSON", fix=f'for instance {option} \'{{"method": "ngram"}}\''
        ) from None
    return drafter_of(value, source=option)


def drafter_of(value: Any, *, source: str = "settings") -> dict[str, Any]:
    """The entry of `drafters` that one of vLLM's speculative configurations means."""
    place = source if source.startswith("--") else f"{source}: {SPECULATIVE_CONFIG}"
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place} must be a section, got {value!r}", fix='for instance {"method": "ngram"}')
    kind = _kind(value, place=place)
    entry: dict[str, Any] = {"kind": kind}
    for name, setting in value.items():
        if name == "method" or setting is None or (name == "model" and kind not in ("model", "head")):
            continue
        if name == "draft_tensor_parallel_size" and setting != 1:
            raise UnsupportedError(f"{place}: {name}: {setting} is not supported", fix=_INSTEAD[name])
        if name not in _SETTINGS[kind]:
            known = ", ".join(_SETTINGS[kind])
            raise UnsupportedError(
                f"{place}: {name} is not supported with {kind}", fix=_INSTEAD.get(name, f"there are: {known}")
            )
        ours = _SETTINGS[kind][name]
        if ours is None:
            continue
        if entry.get(ours, setting) != setting:
            raise ConfigError(f"{place}: {name} contradicts another setting of {ours}", fix="keep one of them")
        entry[ours] = setting
    return entry


def _kind(value: Mapping[str, Any], *, place: str) -> str:
    method, model = value.get("method"), value.get("model")
    if method is None and model in ("ngram", "[ngram]"):
        method = "ngram"
    if method is None and model is None:
        raise ConfigError(f"{place}: it names neither a method nor a model", fix=f"there are: {_EXISTING}")
    if method in _ELSEWHERE:
        raise UnsupportedError(f"{place}: method {method} is not in this release", fix=f"there are: {_EXISTING}")
    if method is not None and (not isinstance(method, str) or method not in METHODS):
        raise ConfigError(f"{place}: unknown method {method!r}", fix=f"there are: {_EXISTING}")
    kind = METHODS[method] if method is not None else "model"
    if kind == "model" and model is None:
        raise ConfigError(f"{place}: method draft_model needs a model", fix='say "model": "..."')
    if kind not in ("model", "head") and model not in (None, "ngram", "[ngram]", "suffix"):
        raise ConfigError(f"{place}: method {method} contradicts model {model!r}", fix="keep one of them")
    return kind
