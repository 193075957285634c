"""What a user gets back: texts, probabilities, reasons and figures, from a stream of commits."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any

import numpy as np
import pytest
import torch

from dist_spec.core.prefix import Prefix
from dist_spec.core.types import Sampling
from dist_spec.errors import RequestError
from dist_spec.models.random_models import EOS_ID
from dist_spec.models.tokenizer import load_tokenizer
from dist_spec.server.client import Stream, TokenKind
from dist_spec.server.outputs import CompletionOutput, Logprob, Sample, metrics_of
from dist_spec.server.params import SamplingParams
from dist_spec.server.prompts import encode_prompt, split_prompts

TOKENIZER = load_tokenizer("random:llama")


def new_stream() -> Stream:
    return Stream(
        request="r", generation=0, prefix=Prefix([1]), sampling=Sampling(), opened_s=10.0, heard_s=10.0, prompt_length=1
    )


def sample_of(stream: Stream | None, *, error: str | None = None, **params: Any) -> Sample:
    return Sample(
        stream,
        request_id="r0",
        prompt_index=3,
        index=1,
        params=SamplingParams(**params),
        tokenizer=TOKENIZER,
        error=error,
    )


def commit(stream: Stream, data: bytes | list[int], kind: TokenKind = "plain", *, now: float = 11.0) -> None:
    tokens = list(data)
    stream.tokens += tokens
    stream.kinds += [kind] * len(tokens)
    stream.times.append((now, len(tokens)))


def end(stream: Stream, reason: str, *, now: float = 20.0, **stats: float) -> None:
    stream.reason, stream.closed_s, stream.stats = reason, now, stats


def test_increments_add_up_to_the_output() -> None:
    stream = new_stream()
    sample = sample_of(stream, stop="end")
    assert sample.advance() is None
    commit(stream, b"one", "accepted")
    first = sample.advance()
    assert first is not None
    assert (first.text, first.token_ids, first.kinds) == ("on", tuple(b"one"), ("accepted",) * 3)
    assert (first.prompt_index, first.index, first.finished) == (3, 1, False)
    commit(stream, b" end", "bonus")
    end(stream, "stop")
    last = sample.advance()
    assert last is not None
    assert (last.text, last.finish_reason, last.stop_reason, last.finished) == ("e ", "stop", "end", True)
    assert sample.advance() is None
    assert sample.output() == CompletionOutput(
        index=1,
        text="one ",
        token_ids=tuple(b"one end"),
        kinds=("accepted",) * 3 + ("bonus",) * 4,
        finish_reason="stop",
        stop_reason="end",
    )


@pytest.mark.parametrize(
    ("data", "reason", "text", "stop_reason"),
    [
        ([*b"ab", EOS_ID], "stop", "ab", None),
        ([*b"ab", 7], "stop", "ab", 7),
        ([*b"ab"], "length", "ab", None),
        ([*b"ab"], "abort", "ab", None),
    ],
)
def test_reasons(data: list[int], reason: str, text: str, stop_reason: int | None) -> None:
    stream = new_stream()
    commit(stream, data)
    end(stream, reason)
    sample = sample_of(stream, stop_token_ids=[7])
    sample.advance()
    output = sample.output()
    assert (output.text, output.finish_reason, output.stop_reason) == (text, reason, stop_reason)
    assert output.token_ids == tuple(data)


def test_errors_before_and_after_sending() -> None:
    unsent = sample_of(None, error="the prompt is empty")
    news = unsent.advance()
    assert news is not None
    assert (news.finish_reason, news.error, news.token_ids) == ("error", "the prompt is empty", ())
    stream = new_stream()
    commit(stream, b"ab")
    end(stream, "error: NaN logits\n  fix: none")
    failed = sample_of(stream)
    failed.advance()
    assert (failed.output().finish_reason, failed.output().error) == ("error", "NaN logits\n  fix: none")
    assert failed.output().text == "ab"
    assert metrics_of([unsent], seed=5).seed == 5


def test_probabilities_by_id() -> None:
    stream = new_stream()
    commit(stream, b"ABC")
    stream.logprobs = [-0.5, -3.0, nan]
    stream.top_logprobs = [((65, -0.5), (66, -1.5)), ((67, -0.1),), ()]
    sample = sample_of(stream, logprobs=2)
    end(stream, "length")
    sample.advance()
    assert sample.output().logprobs == [
        {65: Logprob(logprob=-0.5, rank=1, decoded_token="A"), 66: Logprob(logprob=-1.5, rank=2, decoded_token="B")},
        {67: Logprob(logprob=-0.1, rank=1, decoded_token="C"), 66: Logprob(logprob=-3.0, rank=None, decoded_token="B")},
        {},
    ]
    assert sample.output().cumulative_logprob is None  # one of them was lost
    stream.logprobs[2], stream.top_logprobs[2] = -1.0, ()
    assert sample.output().cumulative_logprob == pytest.approx(-4.5)
    assert sample_of(stream).output().logprobs is None


def test_figures_of_a_prompt() -> None:
    streams = [new_stream(), new_stream()]
    for stream, times in zip(streams, ((11.0, 12.0, 13.0), (12.0, 14.0, 16.0)), strict=True):
        for now in times:
            commit(stream, b"ab", now=now)
        end(stream, "length", now=times[-1] + 1, steps=3.0, queue_s=0.5, session_rows=99.0)
    samples = [sample_of(stream) for stream in streams]
    metrics = metrics_of(samples, seed=4)
    assert metrics.seed == 4
    assert metrics.duration_s == 7.0
    assert metrics.time_to_first_token_s == 1.0
    assert metrics.time_between_tokens_s == pytest.approx((2.0 + 4.0) / 10)
    assert (metrics.num_tokens, metrics.acceptance_length) == (12, 2.0)
    assert metrics.stats["queue_s"] == 1.0
    assert "session_rows" not in metrics.stats


@pytest.mark.parametrize("array", [np.array, torch.tensor])
def test_arrays_of_ids(array: Callable[[list[Any]], Any]) -> None:
    """One is a prompt, a list or table of them several prompts, whatever their lengths."""
    assert [encode_prompt(one, TOKENIZER).ids for one in split_prompts(array([3, 4]))] == [(3, 4)]
    for several in (array([[3, 4], [5, 6]]), [array([3, 4]), array([5, 6])]):
        assert [encode_prompt(one, TOKENIZER).ids for one in split_prompts(several)] == [(3, 4), (5, 6)]
    assert [encode_prompt(one, TOKENIZER).ids for one in split_prompts([array([3]), array([5])])] == [(3,), (5,)]
    with pytest.raises(RequestError, match="is no prompt"):
        [encode_prompt(one, TOKENIZER) for one in split_prompts(array([0.5, 1.5]))]


def test_forms_of_prompts() -> None:
    chat = [{"role": "user", "content": "hi"}]
    assert split_prompts("a") == ["a"]
    assert split_prompts([1, 2]) == [[1, 2]]
    assert split_prompts(chat) == [chat]
    assert split_prompts(["a", [1, 2], chat]) == ["a", [1, 2], chat]
    assert split_prompts([]) == []
    assert encode_prompt({"prompt_token_ids": [3, 4]}, TOKENIZER).ids == (3, 4)
    assert encode_prompt({"prompt": "A"}, TOKENIZER).ids == (65,)
    assert encode_prompt(chat, TOKENIZER).text == "<bos>user\nhi<eos>\n<bos>assistant\n"
    assert encode_prompt(chat, TOKENIZER).ids == tuple(TOKENIZER.apply_chat(chat))
    for prompt in ("", [], "\udcff", [-1]):
        assert encode_prompt(prompt, TOKENIZER).error
    for wrong in (3.5, [1.5], {"text": "a"}, b"ab", [[["a"]]]):
        with pytest.raises(RequestError, match="is no prompt"):
            [encode_prompt(one, TOKENIZER) for one in split_prompts(wrong)]  # type: ignore[arg-type]
