"""Processors change the law exactly as asked, whatever was drafted: rows below a path equal rows of the whole history,
the law of block decoding equals the autoregressive one, forbidden tokens never appear, and known defects are noticed."""

from __future__ import annotations

import itertools
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_spec.core.noise import gumbel_row, request_key
from dist_spec.core.sampling.history import History
from dist_spec.core.sampling.pipeline import Pipeline
from dist_spec.core.types import Sampling
from dist_spec.core.verification.build import build_rule
from tests.laws.processor_cases import (
    END,
    PROMPT,
    SETTINGS,
    Table,
    autoregressive_law,
    block_law,
    distance,
    draft,
    honest,
    mutants,
    reference,
)

VOCAB = 23
PROCESSORS: dict[str, dict] = {
    "repetition": {"repetition_penalty": 1.4},
    "frequency": {"frequency_penalty": 0.3},
    "presence": {"presence_penalty": 0.7},
    "bias": {"logit_bias": ((3, 2.0), (4, -1.0), (3, 0.5))},
    "bad words": {"bad_words": ((5,), (6, 7), (7, 8, 9))},
    "min_tokens": {"min_tokens": 12, "stop_token_ids": (1, 2)},
    "top_k": {"top_k": 9},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
}
SETS = [*itertools.combinations(PROCESSORS, 1), *itertools.combinations(PROCESSORS, 2), tuple(PROCESSORS)]


def sampling_of(names: tuple[str, ...], *, temperature: float = 0.8) -> Sampling:
    given = {key: value for name in names for key, value in PROCESSORS[name].items()}
    return Sampling(temperature=temperature, **given)


def test_every_setting_is_covered():
    named = {key for given in PROCESSORS.values() for key in given}
    rest = {"temperature", "seed", "sample_index", "max_tokens", "stop", "ignore_eos", "logprobs"}
    assert named | rest == {field.name for field in fields(Sampling)}


@pytest.mark.parametrize("names", SETS, ids="+".join)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), temperature=st.sampled_from([0.0, 0.7, 1.3]))
def test_rows_of_a_tree_equal_rows_of_the_whole_history(names, seed, temperature):
    """P1: bitwise, and equal to the independent pipeline."""
    draw = np.random.default_rng(seed)
    sampling = sampling_of(names, temperature=temperature)
    prompt, output = draw.integers(0, VOCAB, 5).tolist(), draw.integers(0, VOCAB, int(draw.integers(0, 10))).tolist()
    committed = [*prompt, *output]
    below = Pipeline(sampling, history=History(committed, prompt_length=5), end_ids=(1, 2))
    paths: list[list[int]] = [[]]
    for _ in range(6):  # a random tree: every new node hangs below one that is there
        paths.append([*paths[int(draw.integers(len(paths)))], int(draw.integers(VOCAB))])
    for path in paths:
        row = (2.0 * draw.standard_normal(VOCAB)).astype(np.float32)
        whole = Pipeline(sampling, history=History([*committed, *path], prompt_length=5), end_ids=(1, 2))
        drafted, plain = below.probs(row, path), whole.probs(row)
        assert drafted.tobytes() == plain.tobytes()
        expected = reference(row, prompt=prompt, output=[*output, *path], sampling=sampling, ends=(1, 2))
        np.testing.assert_allclose(drafted, expected, rtol=1e-12, atol=1e-15)
        assert abs(drafted.sum() - 1.0) < 1e-12


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("drafted", [0, 1, 3])
def test_law_of_block_decoding_is_the_autoregressive_law(name, drafted):
    """P2: by enumeration of all texts."""
    for seed in (31, 32):
        table = Table(3, seed=seed)
        law = block_law(table, honest(table, SETTINGS[name]), 4, drafted=drafted)
        assert distance(law, autoregressive_law(table, SETTINGS[name], 4)) < 1e-12


MUTANTS = list(mutants(Table(3, seed=31)))


@pytest.mark.parametrize("name", MUTANTS)
def test_enumeration_notices_known_defects(name):
    """P6: each of them moves the law by far more than rounding, and the right pipeline does not."""
    table = Table(3, seed=31)
    sampling, rows = mutants(table)[name]
    right = autoregressive_law(table, sampling, 4)
    assert distance(block_law(table, honest(table, sampling), 4), right) < 1e-12
    assert distance(block_law(table, rows, 4), right) > 1e-3


# ---- the rules


def generate(table: Table, sampling: Sampling, length: int, *, drafted: int, seed: int) -> tuple[list[int], int]:
    """Text and number of accepted tokens of block decoding with the real rule, noise and history."""
    rule = build_rule("auto", temperature=sampling.temperature)
    text: list[int] = list(PROMPT)
    pipeline = Pipeline(sampling, history=History(text, prompt_length=len(PROMPT)), end_ids=[END])
    accepted = 0
    while len(text) < length + len(PROMPT):
        output = tuple(text[len(PROMPT) :])
        place = len(output)
        pipeline.history.extend(len(text))
        chain = draft(table, output, drafted)
        logits = np.stack([table.row((*output, *chain[:depth])) for depth in range(drafted + 1)])
        verdict = rule.verify(
            tokens=np.array(chain, np.int32),
            parents=np.arange(-1, drafted - 1, dtype=np.int32),
            logits=torch.from_numpy(logits),
            noise_row=lambda depth, at=place: gumbel_row(request_key(seed, 0), at + depth, table.vocab_size),
            pipeline=pipeline,
        )
        text.extend(verdict.tokens)
        accepted += len(verdict.path)
    return text[len(PROMPT) :][:length], accepted


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("names", [*itertools.combinations(PROCESSORS, 1), tuple(PROCESSORS)], ids="+".join)
def test_text_does_not_depend_on_drafting_and_forbidden_tokens_never_come(names, temperature):
    """P3 and P4."""
    sampling = sampling_of(names, temperature=temperature)
    total = 0
    for seed in range(20):
        table = Table(VOCAB, seed=seed)
        plain, _ = generate(table, sampling, 16, drafted=0, seed=seed)
        text, accepted = generate(table, sampling, 16, drafted=3, seed=seed)
        assert text == plain
        total += accepted
        for word in sampling.bad_words:
            assert all(tuple(text[at : at + len(word)]) != word for at in range(len(text)))
        assert not {END} & set(text[: sampling.min_tokens])
    assert total > 0


def test_only_tokens_of_the_nucleus_come():
    sampling = Sampling(temperature=1.0, top_k=4, top_p=0.7, min_p=0.2)
    table = Table(VOCAB, seed=3)
    for seed in range(100):
        text, _ = generate(table, sampling, 3, drafted=2, seed=seed)
        for place, token in enumerate(text):
            output = text[:place]
            assert reference(table.row(output), prompt=PROMPT, output=output, sampling=sampling)[token] > 0.0


def test_text_equality_notices_a_frozen_history():
    """The same check that the rules pass goes red when the path is not told to the pipeline."""

    class Frozen(Pipeline):
        def support(self, row, path=()):
            return super().support(row, ())

    sampling = Sampling(temperature=0.8, frequency_penalty=1.5, bad_words=((1, 2),))
    rule = build_rule("coupled", temperature=0.8)
    differing = 0
    for seed in range(20):
        table = Table(5, seed=seed)
        history = History(PROMPT, prompt_length=2)
        chain = draft(table, (), 3)
        logits = torch.from_numpy(np.stack([table.row(chain[:depth]) for depth in range(4)]))
        texts = [
            rule.verify(
                tokens=np.array(chain, np.int32),
                parents=np.arange(-1, 2, dtype=np.int32),
                logits=logits,
                noise_row=lambda depth, seed=seed: gumbel_row(request_key(seed, 0), depth, 5),
                pipeline=kind(sampling, history=history),
            ).tokens
            for kind in (Pipeline, Frozen)
        ]
        differing += texts[0] != texts[1]
    assert differing > 0
