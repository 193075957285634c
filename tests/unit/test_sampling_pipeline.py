"""The pipeline's parts: known values, truncation against a full sort, histories, reports, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_spec.core.admission import TargetFacts, admissible
from dist_spec.core.messages import NO_FLOOR, Open
from dist_spec.core.plan import PlanRow
from dist_spec.core.sampling.history import History
from dist_spec.core.sampling.pipeline import Pipeline
from dist_spec.core.sampling.pipelines import Pipelines
from dist_spec.core.sampling.reported import reported
from dist_spec.core.sampling.truncation import largest, truncate
from dist_spec.core.types import ForwardRow, Sampling, Verdict
from dist_spec.errors import RequestError

LOGITS = np.array([1.5, -0.5, 0.25, 2.0], np.float32)
KNOWN = [
    (
        {"repetition_penalty": 1.5},
        [0, 0, 1],
        [0.2291253975015074, 0.0398160238684877, 0.1082311741632018, 0.6228274044668031],
    ),
    (
        {"frequency_penalty": 0.5, "presence_penalty": 0.25},
        [0, 0, 2],
        [0.1298813337124995, 0.0613515978711787, 0.0613515978711787, 0.747415470545143],
    ),
    ({"min_tokens": 3}, [1], [0.7033139760217739, 0.095183196149175, 0.201502827829051, 0.0]),
    ({"temperature": 0.7, "top_p": 0.8}, [], [0.32865254651727, 0.0, 0.0, 0.6713474534827301]),
    ({"min_p": 0.3}, [], [0.3775406687981455, 0.0, 0.0, 0.6224593312018546]),
    (
        {
            "repetition_penalty": 1.3,
            "frequency_penalty": 0.2,
            "presence_penalty": 0.1,
            "temperature": 0.8,
            "top_p": 0.9,
            "min_p": 0.05,
        },
        [3, 3, 1],
        [0.5645777682972416, 0.0, 0.1183419291674559, 0.3170803025353026],
    ),
]


def pipeline(sampling: Sampling, tokens=(), *, prompt_length: int = 0, ends=()) -> Pipeline:
    return Pipeline(sampling, history=History(list(tokens), prompt_length=prompt_length), end_ids=ends)


@pytest.mark.parametrize(("given", "output", "expected"), KNOWN)
def test_known_values(given, output, expected):
    sampling = Sampling(**{"temperature": 1.0, **given})
    for drafted in range(len(output) + 1):  # the last ones may just as well be drafted
        committed, path = output[: len(output) - drafted], output[len(output) - drafted :]
        probs = pipeline(sampling, committed, ends=[3]).probs(LOGITS, path)
        np.testing.assert_allclose(probs, expected, atol=1e-14)


def survivors(scores: np.ndarray, **asked) -> np.ndarray:
    left = scores.copy()
    ids = truncate(left, **asked)
    if ids is None:
        assert ((left == scores) | (left == -np.inf)).all()
        return np.flatnonzero(left > -np.inf)
    return ids[scores[ids] > -np.inf]


def sorted_survivors(scores: np.ndarray, *, top_k: int, top_p: float, min_p: float) -> list[int]:
    order = sorted((i for i in range(len(scores)) if scores[i] > -np.inf), key=lambda i: (-scores[i], i))
    order = order[: top_k or None]
    weights = [math.exp(scores[i] - scores[order[0]]) for i in order]
    if top_p < 1.0:
        total, mass, count = math.fsum(weights), 0.0, 0
        while mass < top_p * total and count < len(order):
            mass, count = math.fsum(weights[: count + 1]), count + 1
        order = order[:count]
    return sorted(i for i, weight in zip(order, weights, strict=False) if weight >= min_p)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 2, 7, 300, 1500, 4000]),
    spread=st.sampled_from([0.0, 0.01, 1.0, 6.0]),
    top_k=st.sampled_from([0, 1, 3, 40, 5000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
)
def test_truncation_equals_a_full_sort(seed, size, spread, top_k, top_p, min_p):
    draw = np.random.default_rng(seed)
    scores = spread * draw.standard_normal(size)
    scores[draw.random(size) < 0.2] = -np.inf
    scores[draw.integers(size)] = spread
    kept = survivors(scores, top_k=top_k, top_p=top_p, min_p=min_p)
    assert kept.tolist() == sorted_survivors(scores, top_k=top_k, top_p=top_p, min_p=min_p)


def test_ties_go_to_the_smaller_id():
    flat = np.zeros(10)
    assert survivors(flat, top_k=3).tolist() == [0, 1, 2]
    assert survivors(flat, top_p=0.5).tolist() == [0, 1, 2, 3, 4]
    assert survivors(flat, min_p=1.0).tolist() == list(range(10))
    assert survivors(np.zeros(3000), top_p=0.25).tolist() == list(range(750))


def test_the_impossible_never_survives():
    scores = np.array([-np.inf, 0.0, -np.inf, -800.0])
    assert survivors(scores, top_p=1.0 - 2**-53).tolist() == [1]  # the sum falls short by rounding
    assert survivors(scores, top_k=4).tolist() == [1, 3]
    assert survivors(scores, top_k=3).tolist() == [1, 3]
    assert largest(scores, 2).tolist() == [1, 3]


def test_history_counts_the_output_and_is_extended_by_what_is_new():
    tokens = [4, 4, 5, 5, 6, 5]
    history = History(tokens, prompt_length=3, length=4)
    assert dict(zip(history.ids.tolist(), history.counts.tolist(), strict=True)) == {4: 0, 5: 1}
    history.extend(6)
    assert dict(zip(history.ids.tolist(), history.counts.tolist(), strict=True)) == {4: 0, 5: 2, 6: 1}
    ids, counts = history.with_path([5, 9, 9])
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {5: 3, 9: 2}
    assert dict(zip(history.ids.tolist(), history.counts.tolist(), strict=True)) == {4: 0, 5: 2, 6: 1}
    assert history.ending(4, [9]) == [5, 6, 5, 9]
    assert history.ending(9, [9]) == [5, 6, 5, 9]  # of the output only
    with pytest.raises(ValueError, match="shrink"):
        history.extend(2)


def test_a_long_history_grows_its_arrays():
    history = History(list(range(500)) * 2, prompt_length=500)
    assert history.ids.tolist() == list(range(500))
    assert set(history.counts.tolist()) == {1}


# ---- reports


def test_log_probabilities_are_those_of_the_processed_distribution():
    sampling = Sampling(temperature=0.8, top_k=3, repetition_penalty=1.2, logprobs=2)
    pipe = pipeline(sampling, [0, 3])
    probs = pipe.probs(LOGITS)
    support = pipe.support(LOGITS)
    report = pipe.report(support, 2)
    assert report.logprob == pytest.approx(math.log(probs[2]), abs=1e-12)
    order = sorted(range(4), key=lambda i: -probs[i])
    assert [token for token, _ in report.top] == order[:2]
    assert [value for _, value in report.top] == pytest.approx([math.log(probs[i]) for i in order[:2]], abs=1e-12)


def test_log_probabilities_of_greedy_decoding_are_those_of_temperature_one():
    pipe = pipeline(Sampling(temperature=0.0, logprobs=1, bad_words=((3,),), top_p=0.5))
    report = pipe.report(pipe.support(LOGITS), 0)
    assert report.logprob == pytest.approx(math.log(np.exp(1.5) / np.exp(LOGITS[:3]).sum()))
    assert report.top == ((0, report.logprob),)


def test_nothing_is_reported_unasked():
    pipe = pipeline(Sampling(temperature=1.0, top_k=2))
    assert pipe.report(pipe.support(LOGITS), 3) is None
    assert not pipe.is_plain
    assert pipeline(Sampling(temperature=1.0)).is_plain
    assert not pipeline(Sampling(temperature=1.0, logprobs=0)).is_plain


def test_reports_are_cut_to_what_was_kept_and_filled_up():
    verdict = Verdict(
        path=(0,), token=8, tokens=(5, 8), logprobs=(-0.5, -1.5), top_logprobs=(((5, -0.5),), ((7, -1.0), (8, -1.5)))
    )
    both = reported(verdict, 2)
    assert both["logprobs"].tolist() == [-0.5, -1.5]
    assert both["top_ids"].tolist() == [[5, 0], [7, 8]]
    assert both["top_logprobs"].tolist() == [[-0.5, NO_FLOOR], [-1.0, -1.5]]
    assert reported(verdict, 1)["top_ids"].tolist() == [[5]]
    nothing = reported(Verdict(path=(), token=1, tokens=(1,)), 1)
    assert [len(array) for array in nothing.values()] == [0, 0, 0]


# ---- rows of a plan


def plan_row(tokens: list[int], *, key=("r", 0), sampling: Sampling, base_length: int) -> PlanRow:
    none = np.empty(0, np.int32)
    forward = ForwardRow(block_table=none, cached=0, tokens=none, num_pending=1, parents=none, num_logits=1)
    return PlanRow(
        key=key,
        forward=forward,
        sampling=sampling,
        noise_index=0,
        final=True,
        ready_depth=0,
        base_length=base_length,
        history=tokens,
        prompt_length=1,
    )


def test_pipelines_follow_their_requests_and_forget_those_that_ended():
    tokens = [0, 0, 1, 1]
    sampling = Sampling(temperature=1.0, frequency_penalty=1.0)
    pipelines = Pipelines(eos_ids=[3])
    first = pipelines.of(plan_row(tokens, sampling=sampling, base_length=2))
    assert first.history.num_generated == 1
    assert pipelines.of(plan_row(tokens, sampling=sampling, base_length=4)) is first
    assert first.history.num_generated == 3
    again = pipelines.of(plan_row([0, 2], sampling=sampling, base_length=2))  # the name used anew, another text
    assert again is not first
    assert again.history.ids.tolist() == [0, 2]
    pipelines.keep([])
    assert pipelines.of(plan_row([0, 2], sampling=sampling, base_length=2)) is not again


def test_min_tokens_bans_the_ends_that_count():
    few = Sampling(temperature=1.0, min_tokens=2, stop_token_ids=(1,))
    ignoring = Sampling(temperature=1.0, min_tokens=2, stop_token_ids=(1,), ignore_eos=True)
    pipelines = Pipelines(eos_ids=[3])
    probs = pipelines.of(plan_row([0, 2], sampling=few, base_length=2)).probs(LOGITS)
    assert (probs == 0).tolist() == [False, True, False, True]
    assert (pipelines.of(plan_row([0, 2], sampling=few, base_length=2)).probs(LOGITS, [2]) > 0).all()
    probs = pipelines.of(plan_row([0, 2], sampling=ignoring, base_length=2)).probs(LOGITS)
    assert (probs == 0).tolist() == [False, True, False, False]


def test_an_end_that_the_model_has_no_row_for_bans_nothing():
    """Tokenizers may know more ids than the head has."""
    probs = pipeline(Sampling(temperature=1.0, min_tokens=2), [0], ends=(1, len(LOGITS), 99)).probs(LOGITS)
    assert (probs == 0).tolist() == [False, True, False, False]


# ---- refusals


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_emptied_row_is_an_error_and_never_unmasked(temperature):
    pipe = pipeline(Sampling(temperature=temperature, bad_words=((0,), (1,), (2,), (2, 3))), [2])
    with pytest.raises(RequestError, match="no legal token is left at 0"):
        pipe.support(LOGITS)
    assert pipe.probs(LOGITS, [0])[3] == 1.0


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_broken_row_is_an_error_even_where_it_is_masked(wrong):
    row = LOGITS.copy()
    row[3] = wrong
    with pytest.raises(RequestError, match="best score"):
        pipeline(Sampling(temperature=1.0, bad_words=((3,),))).probs(row)


WRONG = [
    {"top_k": -1},
    {"top_p": 0.0},
    {"top_p": 1.01},
    {"top_p": math.nan},
    {"min_p": -0.1},
    {"repetition_penalty": 0.0},
    {"repetition_penalty": 1e-305},
    {"repetition_penalty": math.inf},
    {"presence_penalty": math.nan},
    {"frequency_penalty": 1e9},
    {"logit_bias": ((-1, 1.0),)},
    {"logit_bias": ((1, math.inf),)},
    {"logit_bias": ((1, 1.7e308),)},
    {"stop_token_ids": (5, -1)},
    {"bad_words": ((),)},
    {"bad_words": ((-4,),)},
    {"min_tokens": 129},
    {"logprobs": 65},
]


@pytest.mark.parametrize("given", WRONG, ids=str)
def test_what_has_no_meaning_is_refused(given):
    with pytest.raises(RequestError):
        Sampling(**given)


EXTREMES = [
    {"logit_bias": ((0, 1e9), (0, 1e9), (1, -1e9))},
    {"logit_bias": tuple((token, -1e9) for token in range(4))},
    {"repetition_penalty": 0.01, "presence_penalty": -100.0, "frequency_penalty": -100.0},
    {"repetition_penalty": 100.0, "presence_penalty": 100.0, "frequency_penalty": 100.0},
]


@pytest.mark.parametrize("given", EXTREMES, ids=str)
@pytest.mark.parametrize("cut", [{}, {"top_p": 0.9}, {"top_k": 2, "min_p": 0.1}], ids=str)
@pytest.mark.parametrize("temperature", [1e-6, 1.0, 100.0])
def test_the_largest_values_that_are_taken_leave_a_distribution(given, cut, temperature):
    """Whatever overflowed would have a rule choose from nothing."""
    row = np.array([1e38, -1e38, 0.5, -np.inf], np.float32)
    probs = pipeline(Sampling(temperature=temperature, **given, **cut), [0, 1, 2]).probs(row, [0])
    assert np.isfinite(probs).all()
    assert probs.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"logit_bias": ((10, 1.0),)}, "logit_bias names token 10"),
        ({"bad_words": ((1, 12),)}, "bad_words names token 12"),
        ({"stop_token_ids": (11,)}, "stop_token_ids names token 11"),
        ({"bad_words": tuple((token,) for token in range(10))}, "every token is banned"),
        ({"bad_words": tuple((token,) for token in range(9)), "min_tokens": 1}, "every token is banned"),
    ],
)
def test_what_this_target_cannot_honour_is_refused_at_once(given, message):
    facts = TargetFacts(max_model_len=64, vocab_size=10, eos_ids=(9,))
    opening = Open(request="r", generation=0, prompt=np.array([1], np.int32), sampling=Sampling(**given))
    with pytest.raises(RequestError, match=message):
        admissible(opening, facts)


def test_what_it_can_honour_is_admitted():
    facts = TargetFacts(max_model_len=64, vocab_size=10, eos_ids=(9,))
    sampling = Sampling(bad_words=((9,), (1, 2)), logit_bias=((9, 1.0),), min_tokens=3, stop_token_ids=(9,))
    assert admissible(Open(request="r", generation=0, prompt=np.array([1], np.int32), sampling=sampling), facts)
