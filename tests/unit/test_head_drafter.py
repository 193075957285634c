"""The head drafter: its guesses are those of the head over the whole text, on true features as far as they are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from dist_spec.core.noise import gumbel_row, request_key
from dist_spec.core.types import Expansion, Sampling
from dist_spec.drafters.draw import LawSettings
from dist_spec.drafters.head import HeadDrafter
from dist_spec.models.head import Head
from tests.unit.head_cases import features_of, tiny_head, whole_text_logits
from tests.unit.model_cases import ids
from tests.unit.test_model_drafter import Request


@pytest.fixture(scope="module")
def head() -> Head:
    return tiny_head()


def drafter_of(head: Head, **changes: object) -> HeadDrafter:
    return HeadDrafter(head, **{"window": 64, "tree_slots": 64, **changes})  # type: ignore[arg-type]


def feed(drafter: HeadDrafter, request: Request, first: int, last: int) -> None:
    """Features of positions first .. last - 1."""
    drafter.features(request.key, first, features_of(request.history)[first:last])


def check(head: Head, text: Sequence[int], guess: Expansion, *, num_true: int, window: int = 64) -> None:
    """A guess is the best of the head's law after this text of which the first `num_true` rows rest on features."""
    logits = whole_text_logits(head, text, num_true=num_true, window=window)[-1]
    best = logits.log_softmax(-1).topk(len(guess.tokens))
    assert guess.tokens.tolist() == head.draft_to_target[best.indices].tolist()
    np.testing.assert_allclose(guess.scores, best.values.numpy(), atol=2e-3)


def test_fed_everything_it_guesses_what_the_head_over_the_whole_text_does(head: Head) -> None:
    drafter, request = drafter_of(head), Request(ids(23))
    feed(drafter, request, 0, 22)
    [[guess]] = drafter.expand([request.row([request.tree.root])])
    assert len(guess.tokens) == 3
    check(head, request.history, guess, num_true=22)


def test_features_that_came_as_tensors_serve_as_well(head: Head) -> None:
    """As from a link between two GPUs; some may come the other way."""
    drafter, request = drafter_of(head), Request(ids(23))
    rows = features_of(request.history)
    drafter.features(request.key, 0, torch.from_numpy(rows[:12].copy()))  # type: ignore[arg-type]
    drafter.features(request.key, 12, rows[12:22])
    [[guess]] = drafter.expand([request.row([request.tree.root])])
    check(head, request.history, guess, num_true=22)


def grow(drafter: HeadDrafter, head: Head, request: Request, *, num_true: int, steps: int, seed: int) -> None:
    """Expand random leaves; every guess rests on the true features and on the head's own outputs behind them."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        open_nodes = [n for n in request.tree.nodes() if not request.tree.children[n]]
        picked = random.choice(open_nodes, size=min(4, len(open_nodes)), replace=False).tolist()
        for leaf, guess in zip(picked, drafter.expand([request.row(picked)])[0], strict=True):
            check(head, request.text(leaf), guess, num_true=num_true)
            request.graft(leaf, guess)


@pytest.mark.parametrize("attention", ["loop", "padded"])
def test_below_the_text_it_goes_on_from_its_own_outputs(head: Head, attention: str) -> None:
    drafter, request = drafter_of(head, attention=attention), Request(ids(12))
    feed(drafter, request, 0, 11)
    grow(drafter, head, request, num_true=11, steps=4, seed=1)


@pytest.mark.parametrize("hit", [True, False])
def test_true_features_take_the_place_of_its_own_within_the_first_step(head: Head, hit: bool) -> None:
    """After a commit, everything that is asked anew rests on the target's features up to the last token but one."""
    drafter, request = drafter_of(head), Request(ids(12))
    feed(drafter, request, 0, 11)
    grow(drafter, head, request, num_true=11, steps=3, seed=2)
    for turn in range(3):
        before = len(request.history)
        chain = [request.tree.token[n] for n in request.tree.best_chain(3)]
        request.commit(chain if hit else [*chain[:1], 7 + turn])
        feed(drafter, request, before - 1, len(request.history) - 1)
        root = request.tree.root
        [[guess]] = drafter.expand([request.row([root])])
        check(head, request.history, guess, num_true=len(request.history) - 1)
        fresh = request.graft(root, guess)
        new = [node for node in fresh if not request.tree.children[node]]
        for leaf, below in zip(new, drafter.expand([request.row(new)])[0], strict=True):
            check(head, request.text(leaf), below, num_true=len(request.history) - 1)
            request.graft(leaf, below)


def test_without_features_it_goes_on_from_its_own(head: Head) -> None:
    """Commits whose features were lost: drafted tokens keep their rows, others are read on the output before them."""
    drafter, request = drafter_of(head), Request(ids(12))
    feed(drafter, request, 0, 11)
    leaf = request.tree.root
    for _ in range(3):
        leaf = request.graft(leaf, drafter.expand([request.row([leaf])])[0][0])[0]
    request.commit([request.tree.token[n] for n in request.tree.best_chain(2)])
    [[guess]] = drafter.expand([request.row([request.tree.root])])
    check(head, request.history, guess, num_true=11)
    request.commit([3, 4])
    [[guess]] = drafter.expand([request.row([request.tree.root])])
    check(head, request.history, guess, num_true=11)


def test_features_that_come_late_twice_or_in_any_order_end_in_the_same_guess(head: Head) -> None:
    drafter, request = drafter_of(head), Request(ids(30))
    for first, last in ((20, 29), (10, 14), (14, 20), (10, 14), (0, 10)):
        drafter.expand([request.row([request.tree.root])])
        feed(drafter, request, first, last)
    request.commit([5])
    feed(drafter, request, 29, 30)
    feed(drafter, request, 25, 30)
    [[guess]] = drafter.expand([request.row([request.tree.root])])
    check(head, request.history, guess, num_true=30)


def test_it_starts_from_a_recent_window(head: Head) -> None:
    """A late joiner: no features of the first 40 tokens."""
    drafter, request = drafter_of(head, window=16), Request(ids(60))
    [[nothing]] = drafter.expand([request.row([request.tree.root])])
    assert len(nothing.tokens) == 0
    feed(drafter, request, 40, 59)
    [[guess]] = drafter.expand([request.row([request.tree.root])])
    check(head, request.history, guess, num_true=59, window=16)


def test_the_window_moves_along_a_long_text(head: Head) -> None:
    drafter, request = drafter_of(head, window=8), Request(ids(10))
    feed(drafter, request, 0, 9)
    draw = np.random.default_rng(3)
    for turn in range(14):
        before = len(request.history)
        request.commit(draw.integers(0, 250, 1 + turn % 5).tolist())
        feed(drafter, request, before - 1, len(request.history) - 1)
        [[guess]] = drafter.expand([request.row([request.tree.root])])
        check(head, request.history, guess, num_true=len(request.history) - 1, window=8)
        leaf = request.graft(request.tree.root, guess)[0]
        [[below]] = drafter.expand([request.row([leaf])])
        check(head, request.text(leaf), below, num_true=len(request.history) - 1, window=8)


@pytest.mark.parametrize("attention", ["loop", "padded"])
def test_several_requests_in_one_forward(head: Head, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = drafter_of(head, attention=attention)
    first, second = Request(ids(9), name="a"), Request(ids(14, seed=4), name="b")
    for request in (first, second):
        feed(drafter, request, 0, len(request.history) - 1)
    calls: list[int] = []
    inner = drafter._reader._stack.run

    def counted(states: torch.Tensor, *rest: torch.Tensor, **named: object) -> torch.Tensor:
        calls.append(len(states))
        return inner(states, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(drafter._reader._stack, "run", counted)
    answers = drafter.expand([one.row([one.tree.root]) for one in (first, second)])
    assert calls == [8 + 13]
    for request, [guess] in zip((first, second), answers, strict=True):
        check(head, request.history, guess, num_true=len(request.history) - 1)


def test_slots_run_out_and_come_back(head: Head) -> None:
    drafter, request = drafter_of(head, tree_slots=3), Request(ids(10))
    feed(drafter, request, 0, 9)
    children = request.graft(0, drafter.expand([request.row([0], width=5)])[0][0])
    guesses = drafter.expand([request.row(children)])[0]
    assert [len(guess.tokens) for guess in guesses] == [3, 3, 3, 0, 0]
    request.commit([request.tree.token[children[0]]])
    feed(drafter, request, 9, 10)
    [[guess]] = drafter.expand([request.row([request.tree.root])])
    check(head, request.history, guess, num_true=10)
    drafter.close(request.key)
    drafter.close(("unknown", 1))


def test_a_slot_taken_in_vain_is_no_row(head: Head) -> None:
    """After its rows were given away a leaf is asked for which nothing leads to; then it is committed, its features are lost
    and later ones come: the head guesses as one that joined now."""
    drafter, request, other = drafter_of(head, max_requests=1), Request(ids(12)), Request(ids(9), name="b")
    feed(drafter, request, 0, 11)
    [child, *_] = request.graft(0, drafter.expand([request.row([0])])[0][0])
    feed(drafter, other, 0, 8)
    drafter.expand([other.row([0])])
    assert not len(drafter.expand([request.row([child])])[0][0].tokens)
    request.commit([request.tree.token[child]])
    assert not len(drafter.expand([request.row([request.tree.root])])[0][0].tokens)
    request.commit([5, 6])
    feed(drafter, request, 13, 14)
    [[guess]] = drafter.expand([request.row([request.tree.root])])
    late = drafter_of(head)
    feed(late, request, 13, 14)
    [[expected]] = late.expand([request.row([request.tree.root])])
    assert guess.tokens.tolist() == expected.tokens.tolist()
    np.testing.assert_allclose(guess.scores, expected.scores, atol=1e-5)


def test_sampled_guesses_are_ranked_with_the_targets_noise_over_its_ids(head: Head) -> None:
    sampling = Sampling(temperature=0.8, seed=11, sample_index=2)
    drafter, request = drafter_of(head), Request(ids(9), sampling=sampling)
    feed(drafter, request, 0, 8)
    [[guess]] = drafter.expand([request.row([0])])
    logits = whole_text_logits(head, request.history)[-1].double().numpy() / 0.8
    target_ids = head.draft_to_target.numpy()
    noisy = logits + gumbel_row(request_key(11, 2), 0, head.config.vocab_size)[target_ids]
    assert guess.tokens.tolist() == target_ids[np.argsort(-noisy)[:3]].tolist()
    assert guess.features is not None
    assert guess.features.shape == (3, 3)


def test_laws_are_over_the_targets_ids(head: Head) -> None:
    sampling = Sampling(temperature=1.0, seed=3)
    drafter = drafter_of(head, laws=LawSettings(size=16))
    request = Request(ids(9), sampling=sampling)
    feed(drafter, request, 0, 8)
    [[guess]] = drafter.expand([request.row([0])])
    [law] = guess.laws
    assert law is not None
    likely = whole_text_logits(head, request.history)[-1].topk(16).indices
    assert set(law.ids.tolist()) <= set(head.draft_to_target[likely].tolist())
    assert guess.tokens[0] in law.ids


def test_features_of_another_size_or_beyond_all_bounds_do_no_harm(head: Head) -> None:
    drafter, request = drafter_of(head), Request(ids(9))
    drafter.features(request.key, 0, np.zeros((8, 5), np.float16))
    assert len(drafter.expand([request.row([0])])[0][0].tokens) == 0
    drafter.features(request.key, 0, np.full((8, head.config.feature_size), np.nan, np.float16))
    assert len(drafter.expand([request.row([0])])[0][0].tokens) == 0
