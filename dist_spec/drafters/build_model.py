"""From a small model to a drafter: with the target's vocabulary, or with its own and one of two translations. It loads no
model; it may load the target's tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dist_spec.config import ModelDrafterConfig
from dist_spec.drafters.base import Drafter
from dist_spec.drafters.build import ModelDrafterSettings
from dist_spec.drafters.intersection import IntersectionDrafter
from dist_spec.drafters.leaf_reader import LeafReader
from dist_spec.drafters.model import ModelDrafter
from dist_spec.drafters.text_match import TextDrafter
from dist_spec.drafters.vocabularies import ENOUGH, Vocabularies, are_same, choose_way
from dist_spec.errors import ConfigError, ModelError, TokenizerMismatchError
from dist_spec.models.loading import LoadedModel
from dist_spec.models.tokenizer import Tokenizer, first_difference


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeakingDrafter:
    """A drafter and the tokenizer whose ids it speaks; `note`: what its user should know (empty: nothing)."""

    drafter: Drafter
    tokenizer: Tokenizer
    note: str = ""


def model_drafter(
    loaded: LoadedModel,
    config: ModelDrafterConfig,
    *,
    settings: ModelDrafterSettings,
    target: Callable[[], Tokenizer] | None,
) -> SpeakingDrafter:
    """The drafter that `config.vocabulary` asks for.

    Args:
        target: loads the target's tokenizer; None: nobody has it, the vocabularies are taken to be the same (the leader
            compares them).

    Raises:
        TokenizerMismatchError: they are not, and must be; or there is no way between the two.
        ConfigError: the target's tokenizer is needed and cannot be had here.
    """
    known = None if config.vocabulary == "same" else _target_tokenizer(config, target)
    if known is None or (config.vocabulary == "auto" and are_same(known, loaded.tokenizer)):
        return SpeakingDrafter(drafter=_same(loaded, config, settings), tokenizer=loaded.tokenizer)
    both = Vocabularies(known, loaded.tokenizer)
    way = config.vocabulary if config.vocabulary != "auto" else choose_way(both)
    if settings.laws is not None and way == "text":
        if config.vocabulary == "text":
            raise ConfigError(
                f"drafter {config.name}: vocabulary: text has no law of its guesses; verification.rule: rejection needs one",
                fix="set vocabulary: intersection, or verification.rule: coupled",
            )
        way = "intersection"  # fewer of its tokens are of use, yet each has a law
    reader = LeafReader(loaded, max_requests=settings.max_requests, max_context=config.max_model_len)
    drafter: Drafter
    if way == "intersection":
        drafter = IntersectionDrafter(reader, both=both, laws=settings.laws)
    else:
        drafter = TextDrafter(reader, both=both)
    return SpeakingDrafter(drafter=drafter, tokenizer=known, note=f"{config.name}: {describe(both, way)}")


def describe(both: Vocabularies, way: str) -> str:
    """One line on how a drafter of another vocabulary serves the target, and why."""
    found = (
        f"{both.mass:.0%} of a sample text's tokens, {both.share:.0%} of its vocabulary are tokens of the target "
        f"(enough from {ENOUGH:.0%} of the text)"
    )
    if way == "same":
        return "vocabulary same: the target's"
    does = "drafts with common tokens only" if way == "intersection" else "drafts text, written in the target's tokens"
    return f"vocabulary {way}: {does}; {found}"


def check_vocabulary(config: ModelDrafterConfig, *, target: Tokenizer, drafter: Tokenizer) -> str:
    """What `model_drafter` would do, in one line.

    Raises:
        TokenizerMismatchError: as there.
    """
    difference = first_difference(target, drafter)
    if difference is None and config.vocabulary in ("auto", "same"):
        return "the target's"
    if difference is not None and config.vocabulary == "same":
        token_id, theirs, ours = difference
        raise TokenizerMismatchError(
            f"drafter {config.name} has another tokenizer than the target: id {token_id} is {theirs!r} in the target, "
            f"but {ours!r} in {config.model}",
            fix="set its vocabulary: auto, use a drafter of the target's family, or kind: ngram, which fits every target",
        )
    both = Vocabularies(target, drafter)
    return describe(both, choose_way(both) if config.vocabulary == "auto" else config.vocabulary)


def _same(loaded: LoadedModel, config: ModelDrafterConfig, settings: ModelDrafterSettings) -> ModelDrafter:
    return ModelDrafter(
        loaded,
        target_vocab=loaded.tokenizer.size,
        max_requests=settings.max_requests,
        max_context=config.max_model_len,
        batch_invariant=settings.batch_invariant,
        laws=settings.laws,
    )


def _target_tokenizer(config: ModelDrafterConfig, target: Callable[[], Tokenizer] | None) -> Tokenizer | None:
    try:
        return None if target is None else target()
    except ModelError as error:
        if config.vocabulary == "auto":
            return None  # on a machine without the target's files; the leader still compares the two
        raise ConfigError(
            f"drafter {config.name}: vocabulary: {config.vocabulary} needs the target's tokenizer here: {error.message}",
            fix="have the target's tokenizer.json (and config.json) on the drafter's machine too, under target.model",
        ) from error
