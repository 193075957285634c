"""Law 5: under rejection nobody drops, shortens, prefers or merges drafts by looking at the drafted tokens.

Exact enumeration through both real sessions and the in-process transport (error below 1e-12) under losses, delays and
restarts; policies that look must shift the law, by the known figure where there is one; settings that look are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dist_spec.core import guesses
from dist_spec.core import target_session as session_module
from dist_spec.core.control.costs import VerifyCost
from dist_spec.core.law import DraftLaw
from dist_spec.core.mirrors import Mirrors
from dist_spec.core.selection import rank_blind, rank_chains
from dist_spec.core.settings import Speculation
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Expansion
from dist_spec.errors import ConfigError
from tests.laws.chain_cases import Decisions, Drafter
from tests.laws.enumeration import Chance, Table, distance, error, law_of, texts
from tests.laws.session_chains import BLIND, PROMPT, Schedule, enumerated_pair, sampling

EXACT = 1e-12


def law_through_sessions(
    target: Table,
    model: Table,
    length: int,
    *,
    schedule: Schedule | None = None,
    settings: Speculation = BLIND,
    size: int = 0,
    told=None,
    requests: int = 1,
    least_accepted: int = 1,
    costs: Callable[[], VerifyCost] | None = None,
    budgets: set[int] | None = None,
) -> dict:
    decisions = Decisions(target)
    drafter = Drafter(model, decisions, size=size)
    most = 0

    def run(chance: Chance) -> tuple[int, ...]:
        nonlocal most
        pair = enumerated_pair(
            chance,
            target=target,
            drafter=drafter,
            decisions=decisions,
            schedule=schedule or Schedule(),
            settings=settings,
            told=told,
        )
        if costs is not None:
            pair.session.measured(costs())
        found = pair.run({f"r{i}": sampling(length) for i in range(requests)})
        most = max(most, pair.accepted)
        if budgets is not None:
            budgets.update(pair.budgets)
        return tuple(token for text in found.values() for token in text)

    law = law_of(run)
    assert most >= least_accepted, "nothing was speculated"
    return law


SCHEDULES = {
    "steady": Schedule(draft_steps=(2,)),
    "ragged": Schedule(draft_steps=(1, 0, 2)),
    "late": Schedule(draft_steps=(2, 1), late=1),
    "lossy": Schedule(draft_steps=(1,), lost=lambda proposal: proposal.serial % 3 == 1),
    "restarted": Schedule(draft_steps=(2, 1), late=1, restarts=(1,)),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("vocab_size", "length", "size"),
    [(3, 3, 2), (4, 2, 3), (2, 3, 0), *(pytest.param(2, length, 2, marks=pytest.mark.slow) for length in (4, 5))],
)
def test_the_law_of_the_whole_system_is_the_targets(schedule, vocab_size, length, size):
    target, model = Table(vocab_size, seed=61, zeros=0.1), Table(vocab_size, seed=62)
    speculates = length > 2 or schedule == "steady"  # the first draft may be late or lost
    law = law_through_sessions(
        target, model, length, schedule=SCHEDULES[schedule], size=size, least_accepted=int(speculates)
    )
    assert error(law, texts(target, length, PROMPT)) < EXACT


@pytest.mark.parametrize("delivery", ["push", "pull"])
def test_two_requests_that_share_a_budget_are_independent_and_exact(delivery):
    target, model = Table(2, seed=71), Table(2, seed=72)
    settings = replace(BLIND, budget=1, delivery=delivery)
    law = law_through_sessions(
        target, model, 2, settings=settings, requests=2, schedule=Schedule(draft_steps=(1,)), least_accepted=0
    )
    single = texts(target, 2, PROMPT)
    both = {(*one, *other): p * q for one, p in single.items() for other, q in single.items()}
    assert error(law, both) < EXACT


@pytest.mark.long
def test_a_budget_by_price_is_exact_as_it_knows_mean_acceptance_by_depth_only():
    """The number of nodes changes with what earlier steps accepted, and with nothing else."""
    target, model = Table(2, seed=75), Table(2, seed=76)
    seen: set[int] = set()
    law = law_through_sessions(
        target,
        model,
        5,
        settings=replace(BLIND, adaptive=True),
        costs=lambda: VerifyCost.of(lambda rows, nodes: 1.0 + 0.62 * max(nodes - 1, 0), max_rows=4, max_nodes=4),
        budgets=seen,
        schedule=Schedule(draft_steps=(3,)),
    )
    assert error(law, texts(target, 5, PROMPT)) < EXACT
    assert len(seen) > 1


def test_the_selection_is_the_same_whatever_was_drafted():
    random = np.random.default_rng(0)
    lengths = (3, 0, 5)

    def trees() -> list[DraftTree]:
        made = []
        for length in lengths:
            tree = DraftTree(7, 1)
            tokens, scores = random.integers(0, 99, length).astype(np.int32), -random.random(length).astype(np.float32)
            tree.graft(0, tokens, np.arange(-1, length - 1, dtype=np.int32), scores, first_counts=True)
            made.append(tree)
        return made

    options = {"depth_caps": [9, 9, 4], "budget": 6, "survival": [0.7, 0.5, 0.3, 0.2, 0.1, 0.1]}
    chosen = [rank_blind(trees(), **options) for _ in range(5)]
    assert all(one == chosen[0] for one in chosen)
    assert [row for _, row, _ in chosen[0]] == [0, 2, 0, 2, 0, 2]


# ------------------------------------------------------------------------- whoever looks shifts the law, and it is seen

P, Q = (0.2, 0.3, 0.5), (0.6, 0.3, 0.1)
SHIFTED = (0.22, 0.33, 0.45)


def first_tokens(law: dict) -> list[float]:
    return [sum(weight for text, weight in law.items() if text[0] == token) for token in range(3)]


def known_case(**options) -> list[float]:
    return first_tokens(law_through_sessions(Table(3, 0, row=P), Table(3, 0, row=Q), 2, **options))


def test_the_counter_example_is_exact_when_nobody_looks():
    np.testing.assert_allclose(known_case(), P, atol=1e-7)  # float32 logits


def _likely(tree: DraftTree, node: int) -> bool:
    return tree.laws[node].probability(tree.token[node]) >= 0.2


def test_selection_that_drops_unlikely_tokens_shifts_the_law_by_the_known_figure(monkeypatch):
    def picky(trees, **options):
        return [one for one in rank_blind(trees, **options) if _likely(trees[one[1]], one[2])]

    monkeypatch.setattr(session_module, "rank_blind", picky)
    np.testing.assert_allclose(known_case(), SHIFTED, atol=1e-6)


def test_arrival_that_depends_on_the_token_shifts_the_law_by_the_known_figure():
    lossy = Schedule(lost=lambda proposal: 2 in proposal.tokens.tolist())
    np.testing.assert_allclose(known_case(schedule=lossy), SHIFTED, atol=1e-6)


def test_a_law_that_is_not_the_one_drawn_from_shifts_the_law():
    def sharper(law: DraftLaw) -> DraftLaw:
        return DraftLaw.dense(law.weights.astype(np.float64) ** 2)

    assert distance(dict(enumerate(known_case(told=sharper))), dict(enumerate(P))) > 0.01


def test_a_second_draw_below_a_prefix_is_refused_and_preferring_the_likelier_shifts_the_law(monkeypatch):
    """A drafter that restarts draws with other noise; both proposals arrive before the verification."""
    inner = DraftTree.graft_late

    def preferring(self, since, tokens, parents, scores, *, laws=(), **options):
        root = self.root
        if not since and len(tokens) and self.children[root]:
            old = self.children[root][0]
            if laws[0].probability(int(tokens[0])) > self.laws[old].probability(self.token[old]):
                self._restart(self.length[root], self.token[root])
        return inner(self, since, tokens, parents, scores, laws=laws, **options)

    monkeypatch.setattr(DraftTree, "graft_late", preferring)
    schedule = Schedule(draft_steps=(1, 1), restarts=(0,))
    target, model = Table(2, seed=81), Table(2, seed=82)
    decisions = Decisions(target)
    drafter = Drafter(model, decisions, size=0)

    def run(chance: Chance) -> tuple[int, ...]:
        pair = enumerated_pair(chance, target=target, drafter=drafter, decisions=decisions, schedule=schedule)
        inner_exchange = pair._exchange

        def twice(step: int) -> None:
            inner_exchange(step)
            pair._restart()
            inner_exchange(step)

        pair._exchange = twice
        return pair.run({"r": sampling(2)})["r"]

    true = texts(target, 2, PROMPT)
    assert error(law_of(run), true) > 1e-3
    monkeypatch.setattr(DraftTree, "graft_late", inner)
    assert error(law_of(run), true) < EXACT


def _graft_with_scores(tree: DraftTree, leaf: int, one: Expansion) -> list[int]:
    return tree.graft(leaf, one.tokens, one.parents, one.scores, laws=one.laws, first_counts=True)


def test_sharing_a_budget_by_what_was_drafted_shifts_the_law(monkeypatch):
    """Three things have to go wrong for that: the drafter tells scores, the mirror keeps them, the selection looks."""
    monkeypatch.setattr(Mirrors, "_scores", lambda self, scores: scores)
    monkeypatch.setattr(session_module, "rank_blind", lambda trees, *, survival, **rest: rank_chains(trees, **rest))
    monkeypatch.setattr(guesses, "_graft_blind", _graft_with_scores)
    target, model = Table(2, seed=71), Table(2, seed=72)
    law = law_through_sessions(
        target,
        model,
        2,
        settings=replace(BLIND, budget=1),
        requests=2,
        schedule=Schedule(draft_steps=(1,)),
        least_accepted=0,
    )
    single = texts(target, 2, PROMPT)
    both = {(*one, *other): p * q for one, p in single.items() for other, q in single.items()}
    assert error(law, both) > 1e-3


# -------------------------------------------------------------------------------------------- settings that would look


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"growth": "best_first"}, "best_first"),
        ({"growth": "fan_out", "delivery": "pull"}, "fan_out"),
        ({"verify_shape": "tree"}, "tree"),
    ],
)
def test_settings_that_choose_between_drafted_tokens_are_refused(change, named):
    with pytest.raises(ConfigError, match=named):
        replace(BLIND, **change)
    replace(BLIND, budget=0, **change)  # with drafting off nothing is chosen
