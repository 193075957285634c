"""Margins: how far logits may move before another token is chosen, against a full sort and against logits that moved."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_spec.core.sampling.history import History
from dist_spec.core.sampling.pipeline import Pipeline
from dist_spec.core.sampling.slack import slack
from dist_spec.core.sampling.truncation import truncate
from dist_spec.core.types import Sampling


def pipeline(sampling: Sampling, tokens=()) -> Pipeline:
    return Pipeline(sampling, history=History(list(tokens), prompt_length=0))


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([2, 5, 40]),
    top_k=st.sampled_from([0, 3, 10]),
    top_p=st.sampled_from([1.0, 0.9, 0.6]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition=st.sampled_from([1.0, 1.3, 0.8]),
    temperature=st.sampled_from([0.0, 0.7]),
)
def test_a_moved_logit_changes_the_token_only_within_the_margin(
    seed, size, top_k, top_p, min_p, repetition, temperature
):
    """Logits that are off by at most d each may change the token only where the margin is below 2 d over temperature."""
    draw = np.random.default_rng(seed)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition)
    pipe = pipeline(sampling, draw.integers(0, size, 3).tolist())
    noise = draw.gumbel(size=size) if temperature else np.zeros(size)

    def chosen(row: np.ndarray) -> int:
        support = pipe.support(row)
        return support.token(
            int((support.scores + noise[slice(None) if support.ids is None else support.ids]).argmax())
        )

    row = draw.standard_normal(size).astype(np.float32)
    token = chosen(row)
    margin = pipe.margin(row, (), support=pipe.support(row), token=token, noise=noise)
    assert margin >= 0.0
    for difference in (0.01, 0.05, 0.2):
        for _ in range(10):
            moved = (row + difference * draw.choice([-1.0, 1.0], size)).astype(np.float32)
            if chosen(moved) != token:
                assert margin <= 2.0 * difference / (temperature or 1.0) + 1e-5


def test_the_margin_sees_a_rival_behind_the_cut():
    """The second token would win if it came in, and a hundredth of a nat brings it in."""
    pipe = pipeline(Sampling(temperature=1.0, top_k=1))
    row = np.array([1.0, 0.99, -9.0], np.float32)

    def margin(row: np.ndarray, noise: list[float]) -> float:
        return pipe.margin(row, (), support=pipe.support(row), token=0, noise=np.array(noise))

    assert margin(row, [0.0, 5.0, 0.0]) == pytest.approx(0.01, abs=1e-6)
    assert margin(row, [5.0, 0.0, 0.0]) == pytest.approx(0.01, abs=1e-6)
    assert margin(np.array([1.0, -3.0, -9.0], np.float32), [0.0, 0.0, 0.0]) == pytest.approx(4.0)


class FullSort:
    """The same distances with every score sorted and every prefix looked at."""

    def __init__(self, scores: np.ndarray, sampling: Sampling) -> None:
        self.sampling, self.ranked = sampling, np.sort(scores[scores > -np.inf])[::-1]
        self.kept = self.ranked[: sampling.top_k or None]
        mass = np.cumsum(np.exp(self.kept - self.kept[0]))
        with np.errstate(divide="ignore", invalid="ignore"):
            self.odds = np.log(np.append(0.0, mass)) - np.log(np.maximum(mass[-1] - np.append(0.0, mass), 0.0))
            self.wanted = np.log(sampling.top_p) - np.log1p(-sampling.top_p)

    def to_inside(self, score: float) -> float:
        found = [0.0]
        if len(self.kept) < len(self.ranked):
            found.append(self.kept[-1] - score)
        if self.sampling.min_p > 0.0:
            found.append(self.ranked[0] + np.log(self.sampling.min_p) - score)
        if self.sampling.top_p < 1.0:
            larger = self.kept[self.kept > score]
            falls = np.append(larger - score, 0.0)
            found.append(min(np.maximum(falls, self.odds[: len(falls)] - self.wanted)))
        return max(found)

    def to_outside(self, score: float) -> float:
        found = [np.inf]
        if len(self.kept) < len(self.ranked):
            found.append(score - self.ranked[len(self.kept)])
        if self.sampling.min_p > 0.0 and score < self.ranked[0]:
            found.append(score - self.ranked[0] - np.log(self.sampling.min_p))
        if self.sampling.top_p < 1.0:
            rank = int((self.kept > score).sum())
            climbs = np.append(0.0, score - self.kept[rank + 1 :])
            found.append(min(np.maximum(climbs, self.wanted - np.delete(self.odds[rank:], 1))))
        return max(min(found), 0.0)


def by_full_sort(
    scores: np.ndarray, behind: np.ndarray, *, inside: np.ndarray, token: int, sampling: Sampling
) -> float:
    cut, behind = FullSort(scores, sampling), np.where(np.arange(len(scores)) == token, np.inf, behind)
    nearest = min(behind[inside].min(), cut.to_outside(scores[token]))
    rivals = ~inside & (behind < nearest)
    if not rivals.any():
        return nearest
    return min(nearest, max(cut.to_inside(scores[rivals].max()), behind[rivals].min(), 0.0))


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 2, 7, 300, 3000]),
    spread=st.sampled_from([0.0, 0.05, 1.0, 8.0]),
    rounded=st.booleans(),
    top_k=st.sampled_from([0, 1, 5, 60, 5000]),
    top_p=st.sampled_from([1.0, 0.999, 0.95, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
)
def test_the_largest_scores_are_enough(seed, size, spread, rounded, top_k, top_p, min_p):
    draw = np.random.default_rng(seed)
    scores = spread * draw.standard_normal(size)
    scores = np.round(scores) if rounded else scores
    scores[draw.random(size) < 0.2] = -np.inf
    scores[draw.integers(size)] = spread
    sampling = Sampling(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p)
    left = scores.copy()
    ids = truncate(left, top_k=top_k, top_p=top_p, min_p=min_p)
    inside = left > -np.inf if ids is None else np.isin(np.arange(size), ids)
    perturbed = scores + draw.gumbel(size=size)
    token = int(np.where(inside, perturbed, -np.inf).argmax())
    behind = perturbed[token] - perturbed
    given = {"inside": inside, "token": token, "sampling": sampling}
    assert slack(scores, behind.copy(), **given) == pytest.approx(
        by_full_sort(scores, behind, **given), rel=1e-8, abs=1e-9
    )
