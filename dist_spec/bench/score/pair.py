"""The pair that is scored, in this process: the target's runner, the drafter as its own process would have it, and (where
its guesses can be drawn) a second one that tells the laws. It starts no process and measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_spec.config import Config, DrafterConfig, ModelDrafterConfig, parse_config, parse_drafter_option
from dist_spec.core.messages import Hello
from dist_spec.core.vocabulary import refusal
from dist_spec.drafters.base import Drafter
from dist_spec.drafters.build import BuiltDrafter, build_drafter
from dist_spec.drafters.draw import LawSettings
from dist_spec.errors import ConfigError
from dist_spec.models.loading import load_model
from dist_spec.models.runner import ModelRunner
from dist_spec.models.tokenizer import Tokenizer
from dist_spec.workers.draft_app import refusal_error

LOOKUPS = ("ngram", "suffix")
"""Kinds whose guesses are chains that cost the same at any length, and that look at one text at a time."""

ADDED = (*LOOKUPS, "head")
"""What can be scored without an entry in the configuration, beside models."""

_WITHOUT_LAWS = (*LOOKUPS, "scripted", "plugin")
_BLOCK = 16


def chosen_drafter(config: Config, name: str | None) -> DrafterConfig:
    """The drafter that `--drafter` means: one of the configuration, by name or by kind; one of `ADDED`; or a model.

    Raises:
        ConfigError: there is none of that name, or several to choose from.
    """
    known = [one.name for one in config.drafters]
    listed = f"drafters in this configuration: {', '.join(known) or 'none'}"
    if name is None:
        if len(config.drafters) == 1:
            return config.drafters[0]
        raise ConfigError(f"--drafter: which of {len(known)} drafters?", fix=f"give a name; {listed}")
    if name in known:
        return config.drafter(name)
    of_kind = [one for one in config.drafters if one.kind == name]
    if len(of_kind) > 1:
        raise ConfigError(f"--drafter {name}: {len(of_kind)} drafters are of this kind", fix=f"give a name; {listed}")
    if of_kind:
        return of_kind[0]
    if name not in ADDED and not _looks_like_a_model(name):
        raise ConfigError(
            f"--drafter: no drafter is called {name[:100]!r}",
            fix=f"{listed}; besides: {', '.join(ADDED)}, or a model (a folder, a .gguf file, OWNER/NAME)",
        )
    entry = {**parse_drafter_option(name), "name": "scored"}
    if entry["kind"] in ("model", "head"):
        entry |= {"dtype": config.target.dtype, "device": config.target.device}
    return parse_config({**config.model_dump(mode="json"), "drafters": [entry]}).drafters[0]


def _looks_like_a_model(name: str) -> bool:
    return any(mark in name for mark in "/:.") or name == "smollm2" or Path(name).is_dir()


@dataclass(kw_only=True, slots=True)
class Pair:
    """Both models, ready.

    Attributes:
        runner: the target's, with a cache for one sequence.
        drafter: ranks its guesses with the target's noise.
        lawful: draws its guesses and tells the laws; None: guesses are a function of the text.
        layers: whose features the drafter takes; empty: it takes none.
        max_model_len: longest text that fits.
        batch: texts drafted for side by side.
        step_s: what every step of the drafter is made to take beside its own work.
    """

    runner: ModelRunner
    drafter: Drafter
    lawful: Drafter | None
    layers: tuple[int, ...]
    max_model_len: int
    batch: int
    step_s: float


def load_pair(config: Config, entry: DrafterConfig, *, tokenizer: Tokenizer, longest: int, with_laws: bool) -> Pair:
    """Load both.

    Args:
        longest: tokens of the longest text, and what is drafted and verified beyond.
        with_laws: sampled texts are scored too.

    Raises:
        ModelError, UnsupportedError, ConfigError: one of them cannot be loaded or run.
        TokenizerMismatchError: they do not fit together.
    """
    target = config.target
    batch = 1 if entry.kind in LOOKUPS else max(target.max_sequences, 1)
    built = _build(config, entry, laws=None, batch=batch, longest=longest, tokenizer=tokenizer)
    check_vocabulary(entry.name, entry.kind, built, tokenizer)
    lawful: Drafter | None = None
    if with_laws and entry.kind not in _WITHOUT_LAWS:
        lawful = _lawful(config, entry, like=built.drafter, batch=batch, longest=longest, tokenizer=tokenizer)
    loaded = load_model(
        target.model, dtype=target.dtype, device=target.device, trust_remote_code=target.trust_remote_code
    )
    blocks = -(-longest // _BLOCK)
    runner = ModelRunner(loaded, num_blocks=blocks, block_size=_BLOCK, batch_invariant=target.batch_invariant)
    return Pair(
        runner=runner,
        drafter=built.drafter,
        lawful=lawful,
        layers=built.features.layers if built.features is not None else (),
        max_model_len=min(longest, loaded.max_positions),
        batch=batch,
        step_s=built.step_s,
    )


def _lawful(
    config: Config, entry: DrafterConfig, *, like: Drafter, batch: int, longest: int, tokenizer: Tokenizer
) -> Drafter | None:
    """The same drafter with laws; None where it has none (one that translates by text)."""
    laws = LawSettings(dense=True)
    try:
        drafter = _build(config, entry, laws=laws, batch=batch, longest=longest, tokenizer=tokenizer).drafter
    except ConfigError:
        return None
    return drafter if type(drafter) is type(like) else None


def _build(
    config: Config, entry: DrafterConfig, *, laws: LawSettings | None, batch: int, longest: int, tokenizer: Tokenizer
) -> BuiltDrafter:
    """As its own process would, with room for no more than the longest text."""
    settings = entry
    if "max_model_len" in type(entry).model_fields:
        limit = min(getattr(entry, "max_model_len", None) or longest, longest)
        settings = entry.model_copy(update={"max_model_len": limit})
    itself = isinstance(entry, ModelDrafterConfig) and entry.is_model_of(config.target)
    return build_drafter(
        settings,
        max_requests=batch,
        batch_invariant=itself and config.target.batch_invariant,
        laws=laws,
        tokenizer=lambda: tokenizer,
        target=config.target.model,
    )


def check_vocabulary(name: str, kind: str, built: BuiltDrafter, tokenizer: Tokenizer) -> None:
    """As the leader does when a drafter greets it. TokenizerMismatchError with the first id that differs."""
    tokens: Sequence[str] = tokenizer.token_map
    hello = Hello(role="drafter", name=name, kind=kind, vocabulary=built.vocabulary, vocab_size=len(built.tokens))
    no = refusal(hello, tokenizer.vocabulary_hashes(), tokens)
    if no is not None:
        raise refusal_error(name, no, built)
