"""Distorted scores become probabilities."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from dist_spec.core.control.calibration import Calibrator
from dist_spec.core.control.scoring import _KEPT, Scorer, labels
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Expansion

Array = npt.NDArray[np.float64]
DEPTHS = np.array([1, 1, 3, 6], np.int32)


def logit(p: Array) -> Array:
    return np.log(p) - np.log1p(-p)


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


DISTORTIONS: dict[str, Callable[[Array, int], Array]] = {
    "honest": lambda p, step: p,
    "overconfident": lambda p, step: sigmoid(2.5 * logit(p) + 1.5),
    "underconfident": lambda p, step: sigmoid(0.3 * logit(p) - 0.5),
    "reversed": lambda p, step: 1.0 - p,
    "drifting": lambda p, step: sigmoid(logit(p) * (1.0 + 0.5 * np.sin(step / 3000)) + 1.5 * np.sin(step / 1500)),
}


def auc(scores: Array, hits: npt.NDArray[np.bool_]) -> float:
    """Probability that a hit scores above a miss."""
    order = np.argsort(np.argsort(scores)) + 1
    good = int(hits.sum())
    return float((order[hits].sum() - good * (good + 1) / 2) / (good * (len(hits) - good)))


def simulate(
    distortion: Callable[[Array, int], Array], *, steps: int, features: Callable[[Array], Array | None] = lambda p: None
) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """(claimed, predicted, hits) of the second half; what is true is drawn from the probabilities that are distorted."""
    random = np.random.default_rng(1)
    calibrator = Calibrator()
    claimed, predicted, hits = [], [], []
    for step in range(steps):
        truth = random.beta(0.8, 0.8, len(DEPTHS)).clip(0.01, 0.99)
        claim = distortion(truth, step).clip(1e-4, 1 - 1e-4)
        more = features(truth)
        scores = np.log(claim).astype(np.float32)
        rows = calibrator.design(scores, None if more is None else more.astype(np.float32), DEPTHS)
        happened = random.random(len(DEPTHS)) < truth
        if step >= steps // 2:
            claimed.append(claim)
            predicted.append(np.exp(calibrator.predict(rows)))
            hits.append(happened)
        calibrator.learn(rows, happened, num_tokens=1)
    return np.concatenate(claimed), np.concatenate(predicted), np.concatenate(hits)


def worst_bin(predicted: Array, hits: npt.NDArray[np.bool_]) -> float:
    bins = np.minimum((predicted * 10).astype(int), 9)
    errors = [abs(predicted[bins == b].mean() - hits[bins == b].mean()) for b in range(10) if (bins == b).sum() >= 200]
    assert len(errors) > 3
    return max(errors)


@pytest.mark.parametrize("name", DISTORTIONS)
def test_predictions_come_true_in_every_bin(name: str) -> None:
    claimed, predicted, hits = simulate(DISTORTIONS[name], steps=12000)
    assert worst_bin(predicted, hits) < 0.05
    assert auc(predicted, hits) > auc(claimed, hits) - 0.01
    if name not in ("honest",):  # the measure can fail
        assert worst_bin(claimed, hits) > 0.1


def test_features_say_what_scores_do_not() -> None:
    """Scores that are noise beside a feature that is worth something: the order becomes right."""
    random = np.random.default_rng(3)
    claimed, predicted, hits = simulate(
        lambda p, step: random.random(len(p)),
        steps=2000,
        features=lambda p: np.stack([logit(p) * 2.0 + 3.0, random.random(len(p))], axis=1),
    )
    assert worst_bin(predicted, hits) < 0.05
    assert auc(claimed, hits) < 0.55
    assert auc(predicted, hits) > 0.75


def test_depths_may_differ() -> None:
    """The same claim is right less often deeper down."""
    random = np.random.default_rng(4)
    calibrator = Calibrator()
    true = np.array([0.8, 0.8, 0.5, 0.2])
    scores = np.log(np.full(4, 0.6, np.float32))
    for _ in range(1500):
        rows = calibrator.design(scores, None, DEPTHS)
        calibrator.learn(rows, random.random(4) < true, num_tokens=1)
    assert np.exp(calibrator.predict(calibrator.design(scores, None, DEPTHS))) == pytest.approx(true, abs=0.06)


def test_nothing_learned_means_the_claim_holds() -> None:
    calibrator = Calibrator()
    scores = np.log(np.array([0.9, 0.5, 0.01, 0.3], np.float32))
    rows = calibrator.design(scores, None, DEPTHS)
    assert calibrator.predict(rows) == pytest.approx(scores, abs=1e-4)
    calibrator.learn(np.empty((0, rows.shape[1])), np.empty(0, np.bool_), num_tokens=1)
    assert calibrator.num_labels == 0


def test_a_confident_drafter_that_is_always_wrong_is_found_out_within_a_few_commits() -> None:
    calibrator = Calibrator()
    scores = np.log(np.array([0.99, 0.9, 0.95, 0.9], np.float32))
    rows = calibrator.design(scores, None, DEPTHS)
    for _ in range(20):
        calibrator.learn(rows, np.zeros(4, np.bool_), num_tokens=1)
    assert (np.exp(calibrator.predict(rows)) < 0.1).all()
    for _ in range(400):
        calibrator.learn(rows, np.zeros(4, np.bool_), num_tokens=1)
    assert (np.exp(calibrator.predict(rows)) < 0.004).all()


def test_senseless_numbers_do_no_harm() -> None:
    calibrator = Calibrator()
    scores = np.array([np.nan, np.inf, -np.inf, 3.0], np.float32)
    features = np.array([[np.nan], [np.inf], [-np.inf], [1e30]], np.float32)
    for _ in range(30):
        rows = calibrator.design(scores, features, DEPTHS)
        calibrator.learn(rows, np.array([True, False, True, False]), num_tokens=1)
        predicted = calibrator.predict(rows)
        assert np.isfinite(predicted).all()
        assert (predicted <= 0.0).all()
    with_none = calibrator.design(scores, None, DEPTHS)  # another number of features: begins anew
    assert np.isfinite(calibrator.predict(with_none)).all()
    calibrator.learn(rows, np.ones(4, np.bool_), num_tokens=1)  # rows of the old shape are ignored


def expansion(scores: list[float], *, parents: list[int] | None = None) -> Expansion:
    count = len(scores)
    return Expansion(
        tokens=np.arange(count, dtype=np.int32),
        parents=np.array(parents or [-1] * count, np.int32),
        scores=np.array(scores, np.float32),
    )


def test_a_scorer_hands_out_serials_in_order_and_forgets_old_rows() -> None:
    scorer = Scorer()
    parts, serials = scorer.score(
        [expansion([-0.1, -2.0]), Expansion.empty(), expansion([-0.5], parents=[-1])], [0, 3, 1]
    )
    assert [len(part) for part in parts] == [2, 0, 1]
    start = serials[0]
    assert serials == [start, start + 2, start + 2]
    [_], [first] = scorer.score([expansion([-1.0])], [0])
    assert first == start + 3
    scorer.learn([start, start + 2], [True, False], num_tokens=1)
    assert scorer.calibrator.num_labels == 2
    for _ in range(_KEPT // 512 + 1):
        scorer.score([expansion([-1.0] * 512)], [0])
    scorer.learn([start, start + 2], [True, False], num_tokens=1)
    assert scorer.calibrator.num_labels == 2


def test_inner_nodes_of_an_expansion_lie_deeper() -> None:
    """A chain of three below a leaf at depth 1 has depths 2, 3, 4: the last two fall into the same bucket as the first."""
    scorer = Scorer()
    random = np.random.default_rng(0)
    chain = expansion([-0.5, -0.5, -0.5, -0.5, -0.5], parents=[-1, 0, 1, 2, 3])
    for _ in range(600):
        _, [first] = scorer.score([chain], [0])
        hits = (random.random(5) < [0.9, 0.6, 0.6, 0.6, 0.2]).tolist()
        scorer.learn(range(first, first + 5), hits, num_tokens=1)
    [scores], _ = scorer.score([chain], [0])
    assert np.exp(scores) == pytest.approx([0.9, 0.6, 0.6, 0.6, 0.2], abs=0.08)


def test_labels_are_all_nodes_whose_parent_was_committed() -> None:
    tree = DraftTree(5, 9)
    arrays = (np.array([1, 2, 3, 4, 5], np.int32), np.array([-1, -1, 0, 0, 1], np.int32), np.full(5, -0.5, np.float32))
    ids = tree.graft(tree.root, *arrays, source=7)
    tree.features.update((node, 100 + i) for i, node in enumerate(ids))
    found = labels(tree, [1, 4, 8])
    assert set(found) == {7}
    assert sorted(zip(*found[7], strict=True)) == [(100, True), (101, False), (102, False), (103, True)]
    assert labels(tree, [6, 1]) == {7: ([100, 101], [False, False])}
    assert labels(DraftTree(3), [1, 2]) == {}
