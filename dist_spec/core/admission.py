"""What the leader asks of a request before it takes it in. Knows the model's facts, nothing of peers or steps."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from dist_spec.core.messages import Open
from dist_spec.core.sequence import Decode, Sequence
from dist_spec.core.types import Sampling
from dist_spec.errors import RequestError


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureFacts:
    """What a head must have been made for: sizes of the target's model."""

    hidden_size: int
    num_layers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetFacts:
    """What the session must know of the model: context length, vocabulary and ends; `features`: it can tell its hidden
    features."""

    max_model_len: int
    vocab_size: int
    eos_ids: tuple[int, ...] = ()
    vocabulary: bytes = b""
    vocabulary_tokens: Seq[str] = ()
    decode: Decode | None = None
    features: FeatureFacts | None = None


def admissible(message: Open, facts: TargetFacts) -> Sequence:
    """The sequence that a request begins.

    Raises:
        RequestError: it cannot be served; says why, and what would help.
    """
    prompt, generated = message.prompt.tolist(), message.generated.tolist()
    name, limit = f"request {message.request!r}", facts.max_model_len
    if not prompt:
        raise RequestError(f"{name}: the prompt is empty", fix="give at least one token")
    if len(prompt) >= limit or len(prompt) + len(generated) > limit:
        raise RequestError(
            f"{name}: the prompt has {len(prompt) + len(generated)} tokens, the context is {limit} long",
            fix="shorten the prompt or raise target.max_model_len (up to what the model supports)",
        )
    if min(prompt + generated) < 0 or max(prompt + generated) >= facts.vocab_size:
        raise RequestError(f"{name}: a token id lies outside the vocabulary of {facts.vocab_size}")
    if len(generated) > message.sampling.max_tokens:
        raise RequestError(f"{name}: max_tokens is {message.sampling.max_tokens}, {len(generated)} are there already")
    if message.sampling.stop and facts.decode is None:
        raise RequestError(f"{name}: stop strings need a tokenizer, this target has none", fix="use stop_token_ids")
    _check_processors(name, message.sampling, facts)
    return Sequence(
        message.request,
        message.generation,
        prompt=prompt,
        generated=generated,
        generated_offset=message.generated_offset,
        sampling=message.sampling,
        max_model_len=limit,
        eos_ids=facts.eos_ids,
        decode=facts.decode,
    )


def _check_processors(name: str, sampling: Sampling, facts: TargetFacts) -> None:
    """What can be known before the first row of logits; a row that is emptied later ends its request then."""
    named = {
        "logit_bias": [token for token, _ in sampling.logit_bias],
        "bad_words": [token for word in sampling.bad_words for token in word],
        "stop_token_ids": sampling.stop_token_ids,
    }
    for parameter, ids in named.items():
        if max(ids, default=0) >= facts.vocab_size:
            raise RequestError(
                f"{name}: {parameter} names token {max(ids)}, the vocabulary has {facts.vocab_size}",
                fix="use ids of the target's tokenizer",
            )
    banned = {word[0] for word in sampling.bad_words if len(word) == 1}
    if sampling.min_tokens > 0:
        banned |= {*sampling.stop_token_ids} if sampling.ignore_eos else {*sampling.stop_token_ids, *facts.eos_ids}
    if len(banned) >= facts.vocab_size:
        raise RequestError(f"{name}: every token is banned", fix="ban fewer tokens (bad_words, min_tokens)")
