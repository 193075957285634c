"""What a user gets back, in the names vLLM users know, and how it comes out of a stream of commits. It knows text and
token ids, not connections or processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, isnan
from typing import Literal, TypeAlias

from dist_spec.models.tokenizer import Tokenizer
from dist_spec.server.client import Stream, TokenKind
from dist_spec.server.detokenizer import Ending, TextStream
from dist_spec.server.params import SamplingParams

FinishReason: TypeAlias = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Logprob:
    """One token at one position. `rank` is 1 for the most likely one, None when it is not among those reported."""

    logprob: float
    rank: int | None
    decoded_token: str


REQUEST_FIGURES = ("steps", "ready_steps", "drafted", "verified", "accepted", "committed", "queue_s", "decode_s")
"""What the target reports of each request when it ends."""

Logprobs: TypeAlias = list[dict[int, Logprob]]
"""Per generated token: the token itself and the most likely ones, by id; empty where nothing is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionOutput:
    """One sample.

    Attributes:
        index: which of the n samples.
        token_ids: generated, the one that ended it included.
        kinds: parallel to `token_ids`: where each came from.
        logprobs: log probabilities under the distribution sampled from (all processors applied), when asked for.
        finish_reason: "stop" (the model's end, a stop string or id), "length", "abort" or "error".
        stop_reason: the stop string or id; None for the model's own end and for the other reasons.
        error: what went wrong, when `finish_reason` is "error".
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    kinds: tuple[TokenKind, ...] = ()
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum over the generated tokens; None unless it is known for each of them."""
        if self.logprobs is None or not all(self.logprobs):
            return None
        pairs = zip(self.logprobs, self.token_ids, strict=True)
        return fsum(entry[token].logprob for entry, token in pairs)


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestMetrics:
    """Figures of one prompt, over all its samples.

    Attributes:
        seed: the one that was used.
        duration_s: from the opening of the first sample to the end of the last one.
        time_to_first_token_s: None when there was no token.
        time_between_tokens_s: mean over tokens, those that come together in one commit counted one by one.
        num_tokens: generated.
        acceptance_length: tokens per verification.
        stats: the target's own figures, summed over the samples (`steps`, `drafted`, `verified`, `accepted`, `queue_s`,
            `decode_s`, ...).
    """

    seed: int
    duration_s: float = 0.0
    time_to_first_token_s: float | None = None
    time_between_tokens_s: float | None = None
    num_tokens: int = 0
    acceptance_length: float | None = None
    stats: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOutput:
    """One prompt and what came of it. `prompt` is None when token ids were given."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    finished: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamOutput:
    """What was committed to one sample since the one before (mostly one commit); the last one of a sample is `finished`
    and may add nothing.

    Attributes:
        prompt_index: which of the prompts.
        index: which of the n samples.
        text: new text; it may trail the tokens (incomplete characters, what may become a stop string).
    """

    request_id: str
    prompt_index: int
    index: int
    text: str
    token_ids: tuple[int, ...]
    kinds: tuple[TokenKind, ...]
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class Sample:
    """One sample in the making: follows a stream of commits and says what each added.

    Args:
        prompt_index, index: its place in the call.
        stream: None for a request that could not even be sent because of `error`.
    """

    def __init__(
        self,
        stream: Stream | None,
        *,
        request_id: str,
        prompt_index: int,
        index: int,
        params: SamplingParams,
        tokenizer: Tokenizer,
        error: str | None = None,
    ) -> None:
        self.stream = stream
        self.request_id = request_id
        self.prompt_index = prompt_index
        self.index = index
        self._params = params
        self._tokenizer = tokenizer
        self._error = error
        self._taken = 0
        self._parts: list[str] = []
        self._ending: Ending | None = None
        ends = (*params.stop_token_ids, *(() if params.ignore_eos else tokenizer.eos_ids))
        self._text = TextStream(
            tokenizer,
            stops=params.stops,
            ends=ends,
            reported=params.stop_token_ids,
            include_stop=params.include_stop_str_in_output,
            skip_special=params.skip_special_tokens,
        )

    @property
    def finished(self) -> bool:
        return self._ending is not None

    def advance(self) -> StreamOutput | None:
        """What is new since the last call; None when nothing is."""
        if self.finished:
            return None
        stream, first = self.stream, self._taken
        tokens = stream.tokens[first:] if stream is not None else []
        text = self._text.push(tokens)
        self._taken += len(tokens)
        if stream is None or stream.reason:
            reason = stream.reason if stream is not None else ""
            self._error = self._error or (reason.removeprefix("error: ") if reason.startswith("error") else None)
            self._ending = self._text.finish(reason)
            text += self._ending.text
        elif not tokens:
            return None
        self._parts.append(text)
        return StreamOutput(
            request_id=self.request_id,
            prompt_index=self.prompt_index,
            index=self.index,
            text=text,
            token_ids=tuple(tokens),
            kinds=tuple(stream.kinds[first:]) if stream is not None else (),
            logprobs=self._logprobs(first),
            finish_reason=self._finish_reason(),
            stop_reason=self._ending.stop_reason if self._ending is not None else None,
            error=self._error,
        )

    def output(self) -> CompletionOutput:
        """All of it so far."""
        return CompletionOutput(
            index=self.index,
            text="".join(self._parts),
            token_ids=tuple(self.stream.tokens[: self._taken]) if self.stream is not None else (),
            kinds=tuple(self.stream.kinds[: self._taken]) if self.stream is not None else (),
            logprobs=self._logprobs(0),
            finish_reason=self._finish_reason(),
            stop_reason=self._ending.stop_reason if self._ending is not None else None,
            error=self._error,
        )

    def _finish_reason(self) -> FinishReason | None:
        if self._ending is None:
            return None
        reason = self.stream.reason if self.stream is not None else "error"
        match reason:
            case "stop" | "length" | "abort":
                return reason
            case _:
                return "error"

    def _logprobs(self, first: int) -> Logprobs | None:
        if self._params.logprobs is None or self.stream is None:
            return None
        stream, entries = self.stream, []
        for place in range(first, self._taken):
            known = place < len(stream.logprobs) and not isnan(stream.logprobs[place])
            top = stream.top_logprobs[place] if known else ()
            entry = {
                token: Logprob(
                    logprob=value, rank=rank, decoded_token=self._tokenizer.decode([token], skip_special=False)
                )
                for rank, (token, value) in enumerate(top, start=1)
            }
            token = stream.tokens[place]
            if known and token not in entry:
                text = self._tokenizer.decode([token], skip_special=False)
                entry[token] = Logprob(logprob=stream.logprobs[place], rank=None, decoded_token=text)
            entries.append(entry)
        return entries


def metrics_of(samples: Sequence[Sample], *, seed: int) -> RequestMetrics:
    """Figures of the samples of one prompt."""
    streams = [sample.stream for sample in samples if sample.stream is not None]
    if not streams:
        return RequestMetrics(seed=seed)
    stats = {name: fsum(stream.stats.get(name, 0.0) for stream in streams) for name in REQUEST_FIGURES}
    timed = [stream for stream in streams if stream.times]
    later = sum(len(stream.tokens) - 1 for stream in timed)
    decode_s = fsum(stream.times[-1][0] - stream.times[0][0] for stream in timed)
    num_tokens = sum(len(stream.tokens) for stream in streams)
    opened_s = min(stream.opened_s for stream in streams)
    return RequestMetrics(
        seed=seed,
        duration_s=max(stream.closed_s or stream.heard_s for stream in streams) - opened_s,
        time_to_first_token_s=min((stream.times[0][0] - stream.opened_s for stream in timed), default=None),
        time_between_tokens_s=decode_s / later if later else None,
        num_tokens=num_tokens,
        acceptance_length=num_tokens / stats["steps"] if stats["steps"] else None,
        stats=stats,
    )
