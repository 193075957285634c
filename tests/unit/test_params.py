"""Sampling parameters as users give them: what the target is told, and what is refused with which advice."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

import dist_spec
from dist_spec import SamplingParams
from dist_spec.config import SamplingConfig
from dist_spec.core.types import Sampling
from dist_spec.errors import RequestError, UnsupportedError
from dist_spec.server.params import REFUSED


def encode(text: str) -> list[int]:
    return list(text.encode())


def told(**given: Any) -> Sampling:
    return SamplingParams(**given).to_sampling(encode, seed=7, sample_index=2)


def test_defaults_are_those_of_vllm_but_for_the_length() -> None:
    assert told() == Sampling(temperature=1.0, seed=7, sample_index=2, max_tokens=128)


def test_every_parameter_reaches_the_target() -> None:
    sampling = told(
        n=3, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.2,
        frequency_penalty=-0.3, logit_bias={"5": 1, 3: -2.5}, bad_words=["ab", " c"], stop="end", stop_token_ids=[9, 8],
        ignore_eos=True, min_tokens=2, max_tokens=5, logprobs=4,
    )  # fmt: skip
    assert sampling == Sampling(
        temperature=0.5, seed=7, sample_index=2, max_tokens=5, stop_token_ids=(9, 8), stop=("end",), ignore_eos=True,
        top_k=40, top_p=0.9, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=-0.3,
        logit_bias=((3, -2.5), (5, 1.0)), bad_words=((97, 98), (32, 97, 98), (32, 99)), min_tokens=2, logprobs=4,
    )  # fmt: skip


def test_both_ways_to_switch_top_k_off() -> None:
    assert told(top_k=-1).top_k == told(top_k=0).top_k == 0


def test_none_means_nothing_where_others_allow_it() -> None:
    assert told(stop=None, stop_token_ids=None, bad_words=None, logit_bias=None, seed=None) == told()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_exists_elsewhere_is_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(UnsupportedError, match=name) as caught:
        SamplingParams(**{name: 1})
    assert caught.value.fix == REFUSED[name]


def test_a_misspelling_is_told() -> None:
    with pytest.raises(RequestError, match="did you mean 'temperature'"):
        SamplingParams(temprature=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"n": 0}, "n must lie"),
        ({"n": 10_000}, "n must lie"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 5}, "min_tokens"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 65}, "logprobs"),
        ({"bad_words": "word"}, "bad_words"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"stop": [""]}, "stop string"),
        ({"stop": [3]}, "stop must be"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias"),
        ({"ignore_eos": 1}, "ignore_eos"),
    ],
    ids=str,
)
def test_values_out_of_range_are_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError, match=named):
        SamplingParams(**given)


def test_parameters_can_be_changed_copied_and_sent() -> None:
    params = SamplingParams(temperature=0.3, stop=["a", "b"])
    assert dataclasses.replace(params, temperature=0.4).temperature == 0.4
    assert copy.deepcopy(params) == pickle.loads(pickle.dumps(params)) == params
    assert params.stops == ("a", "b")
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2  # type: ignore[misc]


def test_the_settings_section_gives_the_same() -> None:
    config = SamplingConfig(temperature=0.7, top_p=0.9, stop=("x",), bad_words=("y",), logit_bias={4: 2.0})
    params = SamplingParams.from_config(config, n=2)
    assert params == SamplingParams(
        n=2, temperature=0.7, top_p=0.9, seed=0, stop=("x",), bad_words=("y",), logit_bias={4: 2.0}
    )


def test_the_public_names_are_there() -> None:
    assert all(getattr(dist_spec, name) is not None for name in dist_spec.__all__)
    assert set(dist_spec.__all__) <= set(dir(dist_spec))
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = dist_spec.nothing_of_that_name
