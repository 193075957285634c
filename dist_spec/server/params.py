"""How a user says what a request should be like (the names vLLM users know), and what the target is told of it. It knows
a tokenizer, but no models, messages or connections."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeAlias

from dist_spec.config import SamplingConfig
from dist_spec.core.types import Sampling
from dist_spec.errors import RequestError, UnsupportedError

MAX_SAMPLES = 256

Encode: TypeAlias = Callable[[str], list[int]]
"""Text -> ids, without anything put around the text."""

REFUSED: Mapping[str, str] = {
    "best_of": "ask for n samples and choose among them by `cumulative_logprob`",
    "use_beam_search": "leave it out; sample with n > 1 instead",
    "beam_width": "leave it out; sample with n > 1 instead",
    "length_penalty": "leave it out; it belongs to beam search, which is not here",
    "early_stopping": "leave it out; it belongs to beam search, which is not here",
    "grammar": "leave it out; constrained output is not in this release",
    "guided_decoding": "leave it out; constrained output is not in this release",
    "structured_outputs": "leave it out; constrained output is not in this release",
    "logits_processors": "use logit_bias, bad_words, min_tokens or the penalties",
    "allowed_token_ids": "use logit_bias to lower the others",
    "prompt_logprobs": "leave it out; probabilities are reported for generated tokens only",
    "typical_p": "use top_p or min_p",
    "no_repeat_ngram_size": "use bad_words or frequency_penalty",
    "truncate_prompt_tokens": "shorten the prompt yourself",
    "detokenize": "leave it out; read `token_ids` where no text is wanted",
    "output_kind": "use `generate` for whole outputs, `stream` for increments",
    "max_new_tokens": "use max_tokens",
    "do_sample": "use temperature (0 decodes greedily)",
    "num_beams": "leave it out; sample with n > 1 instead",
    "num_return_sequences": "use n",
}
"""Parameters that exist elsewhere, and what to do instead."""


class _Checked(type):
    """Refuses parameters that are not here before the constructor stumbles over them."""

    __dataclass_fields__: Mapping[str, Field[Any]]

    def __call__(cls, *args: Any, **given: Any) -> Any:
        for name in given:
            if name in REFUSED:
                raise UnsupportedError(f"SamplingParams: {name} is not supported", fix=REFUSED[name])
            if name not in (known := [one.name for one in cls.__dataclass_fields__.values() if one.init]):
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise RequestError(
                    f"SamplingParams: unknown parameter {name!r}{hint}", fix=f"there are: {', '.join(known)}"
                )
        return super().__call__(*args, **given)


@dataclass(frozen=True, kw_only=True)
class SamplingParams(metaclass=_Checked):
    """How one prompt is decoded. Defaults are vLLM's (temperature 1), but for `max_tokens` (128 instead of 16).

    Attributes:
        n: samples per prompt.
        temperature: 0 decodes greedily.
        top_p, top_k, min_p: restrict sampling to likely tokens (off: 1, 0 or -1, 0).
        repetition_penalty, presence_penalty, frequency_penalty: against repetition (off: 1, 0, 0).
        logit_bias: token id -> what is added to its logit.
        bad_words: texts that never appear, at the beginning of a word or inside one.
        seed: same seed, same text, with or without drafters; None: a random one, reported in the output's metrics.
        stop: texts that end the output, not part of it (unless `include_stop_str_in_output`).
        stop_token_ids: ids that end the output; they are in its `token_ids` and not in its text.
        ignore_eos: keep going past the model's end.
        min_tokens: generated before an end of any kind may come.
        max_tokens: generated at most.
        logprobs: report the log probability of each token and of this many most likely ones; None: report nothing.
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        RequestError: a value is out of range.
        UnsupportedError: a parameter that is not here was given.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    bad_words: Sequence[str] = ()
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int = 128
    logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    stops: tuple[str, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        for name in ("bad_words", "stop", "stop_token_ids"):
            if getattr(self, name) is None:  # as others allow
                object.__setattr__(self, name, ())
        object.__setattr__(self, "stops", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        self._check_types()
        if not 1 <= self.n <= MAX_SAMPLES:
            raise RequestError(f"n must lie in [1, {MAX_SAMPLES}], got {self.n}")
        if self.logprobs is not None and self.logprobs < 0:
            raise RequestError(f"logprobs must be at least 0, got {self.logprobs}", fix="None reports nothing")
        self.to_sampling(lambda word: [0] if word.strip() else [], seed=self.seed or 0, sample_index=0)

    def _check_types(self) -> None:
        for one in fields(self):
            value, default = getattr(self, one.name), one.default
            wanted = type(default) if default is not MISSING else None
            if wanted in (int, bool, float) and not _is_a(value, wanted):
                raise RequestError(f"{one.name} must be of type {wanted.__name__}, got {value!r}")
        for name in ("seed", "logprobs"):
            value = getattr(self, name)
            if value is not None and not _is_a(value, int):
                raise RequestError(f"{name} must be a whole number or None, got {value!r}")
        if isinstance(self.bad_words, str) or not all(isinstance(word, str) for word in self.bad_words):
            raise RequestError(f"bad_words must be a list of texts, got {self.bad_words!r}")
        if not all(isinstance(text, str) for text in self.stops):
            raise RequestError(f"stop must be a text or a list of texts, got {self.stop!r}")
        if not all(_is_a(token, int) and token >= 0 for token in self.stop_token_ids):
            raise RequestError(f"stop_token_ids must be a list of token ids, got {self.stop_token_ids!r}")

    def to_sampling(self, encode: Encode, *, seed: int, sample_index: int) -> Sampling:
        """What the target is told. Raises RequestError for a value out of range."""
        return Sampling(
            temperature=float(self.temperature),
            seed=seed,
            sample_index=sample_index,
            max_tokens=self.max_tokens,
            stop_token_ids=tuple(int(token) for token in self.stop_token_ids),
            stop=self.stops,
            ignore_eos=self.ignore_eos,
            top_k=max(self.top_k, 0) if self.top_k >= -1 else self.top_k,
            top_p=float(self.top_p),
            min_p=float(self.min_p),
            repetition_penalty=float(self.repetition_penalty),
            presence_penalty=float(self.presence_penalty),
            frequency_penalty=float(self.frequency_penalty),
            logit_bias=_biases(self.logit_bias or {}),
            bad_words=bad_word_ids(self.bad_words, encode=encode),
            min_tokens=self.min_tokens,
            logprobs=-1 if self.logprobs is None else self.logprobs,
        )

    @classmethod
    def from_config(cls, config: SamplingConfig, **changes: Any) -> SamplingParams:
        """The section `sampling` of a configuration, with changes."""
        return cls(**{**config.model_dump(), **changes})


def bad_word_ids(words: Sequence[str], *, encode: Encode) -> tuple[tuple[int, ...], ...]:
    """Every word as token ids in both of its forms: as a text begins with it, and after a space."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        if not word.strip():
            raise RequestError(f"bad_words: {word!r} is empty", fix="remove it")
        for text in (word, f" {word.lstrip()}"):
            ids = tuple(encode(text))
            if ids:
                found[ids] = None
    return tuple(found)


def _biases(biases: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """OpenAI's clients write the ids as texts."""
    try:
        return tuple(sorted((int(token), float(bias)) for token, bias in biases.items()))
    except (TypeError, ValueError, AttributeError):
        raise RequestError(
            f"logit_bias must map token ids to numbers, got {biases!r}", fix="for instance {50: -5.0}"
        ) from None


def _is_a(value: object, wanted: type) -> bool:
    """True is no number, and a whole number is also a float."""
    if wanted is bool or isinstance(value, bool):
        return isinstance(value, bool) and wanted is bool
    return isinstance(value, int | float) if wanted is float else isinstance(value, wanted)
