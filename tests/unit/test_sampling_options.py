"""Options that say how tokens are chosen become settings, and those become what the target is told."""

from __future__ import annotations

import pytest

from dist_spec.bench.generate import sampling_of
from dist_spec.commands.sampling_options import sampling_overrides
from dist_spec.config import load_config
from dist_spec.core.types import Sampling
from dist_spec.errors import ConfigError, RequestError
from dist_spec.models.tokenizer import load_tokenizer

TARGET = ("target.model", "random:llama")


def asked(**options) -> Sampling:
    config = load_config(None, overrides=[TARGET, *sampling_overrides(**options)])
    return sampling_of(config, temperature=0.8, tokenizer=load_tokenizer("random:llama"))


def test_every_option_reaches_the_target():
    sampling = asked(
        top_k=7,
        top_p=0.9,
        min_p=0.05,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=-0.4,
        min_tokens=5,
        logit_bias=["3=-5", "8=1.5"],
        bad_words=["no"],
        logprobs=2,
    )
    assert sampling == Sampling(
        temperature=0.8,
        top_k=7,
        top_p=0.9,
        min_p=0.05,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=-0.4,
        min_tokens=5,
        logit_bias=((3, -5.0), (8, 1.5)),
        bad_words=sampling.bad_words,
        logprobs=2,
        max_tokens=sampling.max_tokens,
    )
    tokenizer = load_tokenizer("random:llama")
    assert [tokenizer.decode(word) for word in sampling.bad_words] == ["no", " no"]


def test_what_is_not_given_changes_nothing():
    assert sampling_overrides() == []
    sampling = asked()
    assert not sampling.is_processed
    assert sampling.logprobs == -1


@pytest.mark.parametrize("text", ["3", "3=", "=2", "a=1", "3=x"])
def test_a_bias_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="ID=VALUE"):
        sampling_overrides(logit_bias=[text])


@pytest.mark.parametrize(
    "options", [{"top_p": 0.0}, {"top_k": -1}, {"min_p": 2.0}, {"logit_bias": ["-3=1"]}, {"logprobs": 99}]
)
def test_wrong_values_are_refused(options):
    with pytest.raises((ConfigError, RequestError)):
        asked(**options)
