"""From a drafter's settings to the drafter; the one place that lists the kinds."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from dist_spec.config import (
    DrafterConfig,
    HeadDrafterConfig,
    ModelDrafterConfig,
    NgramDrafterConfig,
    PluginDrafterConfig,
    ScriptedDrafterConfig,
    SuffixDrafterConfig,
)
from dist_spec.core.messages import FeatureWish
from dist_spec.drafters.base import Drafter, RequestKey
from dist_spec.drafters.draw import LawSettings
from dist_spec.drafters.ngram import NgramDrafter
from dist_spec.drafters.scripted import RankLaw, ScriptedDrafter
from dist_spec.drafters.suffix import SuffixDrafter
from dist_spec.errors import ConfigError
from dist_spec.models.placement import Placement

if TYPE_CHECKING:
    from dist_spec.models.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltDrafter:
    """A drafter and what its process must tell the leader: the hashes of the map of the ids it speaks (empty: it has no
    tokenizer) and the tokens by id, to name the first that differs. `features`: those of the
    target that it wants. `note`: what its user should know (empty: nothing)."""

    drafter: Drafter
    vocabulary: bytes = b""
    tokens: Sequence[str] = ()
    step_s: float = 0.0
    features: FeatureWish | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDrafterSettings:
    """What a model drafter gets that its entry does not say; see `build_drafter`."""

    max_requests: int
    batch_invariant: bool
    laws: LawSettings | None


def build_drafter(
    config: DrafterConfig,
    *,
    max_requests: int = 4,
    batch_invariant: bool = False,
    laws: LawSettings | None = None,
    tokenizer: Callable[[], Tokenizer] | None = None,
    target: str | None = None,
) -> BuiltDrafter:
    """Build the drafter that a configuration entry describes.

    Args:
        max_requests: requests a model drafter keeps K/V for.
        batch_invariant: run a model drafter in batch-invariant mode (worth its cost only when it is the target itself).
        laws: have a model drafter draw its guesses from laws that travel with them; drafters that look things up need
            none, as their guess is a function of the text.
        tokenizer: loads the target's, for files that a drafter reads as text and for models with another vocabulary;
            called only then.
        target: the target's model id; a draft head cannot do without.

    Raises:
        ModelError, UnsupportedError: its model cannot be loaded or run.
        ConfigError: a file or plugin cannot be found.
    """
    match config:
        case NgramDrafterConfig():
            return BuiltDrafter(
                drafter=NgramDrafter(max_ngram=config.max_ngram, num_draft_tokens=config.num_draft_tokens)
            )
        case ModelDrafterConfig():
            settings = ModelDrafterSettings(max_requests=max_requests, batch_invariant=batch_invariant, laws=laws)
            return _model(config, settings=settings, tokenizer=tokenizer)
        case HeadDrafterConfig():
            return _head(config, target=target, max_requests=max_requests, laws=laws)
        case SuffixDrafterConfig():
            return _suffix(config, tokenizer=tokenizer)
        case ScriptedDrafterConfig():
            return _scripted(config)
        case PluginDrafterConfig():
            return BuiltDrafter(drafter=_plugin(config))
        case _:
            assert_never(config)


def _model(
    config: ModelDrafterConfig, *, settings: ModelDrafterSettings, tokenizer: Callable[[], Tokenizer] | None
) -> BuiltDrafter:
    from dist_spec.drafters.build_model import model_drafter
    from dist_spec.models.large import load_large
    from dist_spec.models.student import early_exit

    loaded = load_large(
        config.model,
        placement=placement_of(config),
        dtype=config.dtype,
        device=config.device,
        trust_remote_code=config.trust_remote_code,
    )
    if config.layers is not None:
        loaded = early_exit(loaded, config.layers)
    made = model_drafter(loaded, config, settings=settings, target=tokenizer)
    spoken = made.tokenizer
    return BuiltDrafter(
        drafter=made.drafter, vocabulary=spoken.vocabulary_hashes(), tokens=spoken.token_map, note=made.note
    )


def placement_of(config: ModelDrafterConfig) -> Placement:
    """How a model drafter's weights are to be kept."""
    return Placement(
        device_map=config.device_map,
        max_memory=config.max_memory,
        offload_folder=config.offload_folder,
        quantization=config.quantization,
    )


def _head(
    config: HeadDrafterConfig, *, target: str | None, max_requests: int, laws: LawSettings | None
) -> BuiltDrafter:
    from dist_spec.drafters.build_head import head_drafter

    if target is None:
        raise ConfigError(f"drafter {config.name}: a head needs the target that it was made for", fix="name the target")
    made = head_drafter(config, target=target, max_requests=max_requests, laws=laws)
    spoken = made.tokenizer
    return BuiltDrafter(
        drafter=made.drafter,
        vocabulary=spoken.vocabulary_hashes(),
        tokens=spoken.token_map,
        features=made.wish,
    )


def _suffix(config: SuffixDrafterConfig, *, tokenizer: Callable[[], Tokenizer] | None) -> BuiltDrafter:
    """With a corpus its token ids are at stake: then it shows its token map as a model drafter does."""
    known = tokenizer() if config.corpus and tokenizer is not None else None
    if config.corpus and known is None:
        raise ConfigError(f"drafter {config.name}: a corpus needs the target's tokenizer", fix="remove `corpus`")
    drafter = SuffixDrafter(
        num_draft_tokens=config.num_draft_tokens,
        remember=config.remember,
        max_tokens=config.max_tokens,
        corpus=_corpus(config, known) if known is not None else (),
    )
    if known is None:
        return BuiltDrafter(drafter=drafter)
    return BuiltDrafter(drafter=drafter, vocabulary=known.vocabulary_hashes(), tokens=known.token_map)


def _corpus(config: SuffixDrafterConfig, tokenizer: Tokenizer) -> list[list[int]]:
    from dist_spec.drafters.suffix_corpus import read_corpus

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False)

    return read_corpus(config.corpus, name=config.name, encode=encode, max_tokens=config.max_tokens)


def _scripted(config: ScriptedDrafterConfig) -> BuiltDrafter:
    """A request takes the first text that begins with it (none: all its guesses are decoys)."""
    texts = read_texts(config)

    def text_of(key: RequestKey, history: Sequence[int]) -> Sequence[int]:
        return next((text for text in texts if text[: len(history)] == list(history)), [])

    law = RankLaw(a=config.a, b=config.b)
    highest = max(max(text, default=0) for text in texts)
    drafter = ScriptedDrafter(text_of, law=law, vocab_size=max(highest + 1, 2), seed=config.seed)
    return BuiltDrafter(drafter=drafter, step_s=config.step_s)


def read_texts(config: ScriptedDrafterConfig) -> list[list[int]]:
    """The texts of a scripted drafter's file: one per line, prompt and output, as token ids separated by blanks.

    Raises:
        ConfigError: the file cannot be read, holds nothing, or holds something else than token ids.
    """
    fix = "give a file with one text per line, as token ids separated by blanks"
    try:
        lines = Path(config.text_file).read_text().splitlines()
        texts = [[int(word) for word in line.split()] for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"drafter {config.name}: cannot read text_file {config.text_file}: {error}", fix=fix
        ) from error
    if not texts:
        raise ConfigError(f"drafter {config.name}: text_file {config.text_file} is empty", fix=fix)
    if not all(0 <= token < 2**31 for text in texts for token in text):
        raise ConfigError(f"drafter {config.name}: text_file {config.text_file} holds a number that is no id", fix=fix)
    return texts


def _plugin(config: PluginDrafterConfig) -> Drafter:
    module, _, name = config.target.partition(":")
    try:
        drafter: Drafter = getattr(importlib.import_module(module), name)(**config.options)
        if not callable(drafter.expand) or not callable(drafter.close):
            raise TypeError("expand and close must be methods")
    except Exception as error:  # whatever foreign code raises, starting it again would not mend it
        raise ConfigError(
            f"drafter {config.name}: cannot make {config.target}: {type(error).__name__}: {error}",
            fix="target is package.module:Class, importable here; options are its keyword arguments",
        ) from error
    return drafter
