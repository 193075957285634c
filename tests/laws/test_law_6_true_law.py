"""Law 6: a draft law that travels is the one the token was drawn from; the rejection rule then emits the target's own law.

Exact enumeration (error below 1e-12) of drafts and uniforms, the published wrong variants, each of which must shift the
law, and vectors with explicit uniforms.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from dist_spec.core.law import DraftLaw
from dist_spec.core.noise import ACCEPT, DRAFT, RESIDUAL
from dist_spec.core.verification import weigh
from dist_spec.core.verification.rejection import RejectionRule
from dist_spec.core.verification.weigh import pick, weigh_chain
from tests.laws.chain_cases import Chain, Decisions, Draft, Drafter, fresh, generate
from tests.laws.enumeration import Chance, Table, distance, error, law_of, texts

VECTORS = Path(__file__).parent / "vectors"
EXACT = 1e-12
SHIFTED = 1e-9
NO_IDS = np.empty(0, np.int32)


def law_with(
    target: Table, length: int, draft: Callable[[Decisions], Draft], *, name=fresh, rule: RejectionRule | None = None
) -> dict:
    decisions = Decisions(target, name=name)
    how = draft(decisions)
    return law_of(
        lambda chance: generate(chance, target=target, draft=how, length=length, decisions=decisions, rule=rule)
    )


# ------------------------------------------------------------------------------------------------ the rule is exact


@pytest.mark.parametrize("size", [-1, 0, 1, 2, 4], ids=["point", "dense", "sparse1", "sparse2", "sparse4"])
@pytest.mark.parametrize(
    ("vocab_size", "length", "gamma"),
    [
        (2, 4, 2),
        (2, 3, 3),
        (3, 3, 2),
        (4, 2, 1),
        pytest.param(2, 5, 2, marks=pytest.mark.slow),
        pytest.param(4, 3, 1, marks=pytest.mark.slow),
        pytest.param(2, 4, 4, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_the_emitted_law_is_the_targets(vocab_size, length, gamma, size, zeros):
    target = Table(vocab_size, seed=10 + vocab_size, zeros=zeros)
    model = Table(vocab_size, seed=99)
    law = law_with(target, length, lambda decisions: Drafter(model, decisions, size=size).chain(gamma))
    assert error(law, texts(target, length)) < EXACT


@pytest.mark.parametrize("size", [-1, 0, 2])
def test_ragged_and_empty_drafts_are_exact(size):
    """The length of the draft depends on the text so far, as arrivals may."""
    target, model = Table(3, seed=4, zeros=0.2), Table(3, seed=5)

    def ragged(decisions: Decisions) -> Draft:
        drafter = Drafter(model, decisions, size=size)
        return lambda chance, text: drafter.chain((sum(text) + len(text)) % 3)(chance, text)

    assert error(law_with(target, 4, ragged), texts(target, 4)) < EXACT


def test_stopping_after_a_token_that_is_kept_is_exact_and_dropping_it_is_not():
    target, model = Table(3, seed=7), Table(3, seed=8)

    def stopping(decisions: Decisions, *, keep: bool) -> Draft:
        drafter = Drafter(model, decisions, size=0)

        def draft(chance: Chance, text: tuple[int, ...]) -> Chain:
            drafted: Chain = []
            while len(drafted) < 3:
                token, law = drafter.next(chance, (*text, *(one for one, _ in drafted)))
                unlikely = law.probability(token) < 0.4
                if keep or not unlikely:
                    drafted.append((token, law))
                if unlikely:
                    break
            return drafted

        return draft

    true = texts(target, 2)
    assert error(law_with(target, 2, lambda decisions: stopping(decisions, keep=True)), true) < EXACT
    assert error(law_with(target, 2, lambda decisions: stopping(decisions, keep=False)), true) > 0.01


def test_an_empty_slot_with_the_rest_of_its_law_is_exact():
    """A token that is forbidden after it was drawn stays as a slot that is always rejected; its law keeps the mass."""
    target = Table(4, seed=3)
    drawn_from, forbidden = np.array([0.4, 0.3, 0.2, 0.1]), 2
    told = drawn_from.copy()
    told[forbidden] = 0.0
    law = DraftLaw(ids=NO_IDS, weights=told, total=1.0)
    decisions = Decisions(target)

    def run(chance: Chance) -> int:
        token = pick(drawn_from, chance.cut("draft", np.cumsum(drawn_from)))
        token = -1 if token == forbidden else token
        row = target.probs(())
        weighed = weigh_chain(
            [token],
            laws=[law],
            probs=lambda depth: row,
            uniforms=lambda domain, _: decisions.weigh(chance, domain, prefix=(), token=token, law=law, epoch=0),
        )
        return token if weighed.recovered is None else weighed.recovered

    assert error(law_of(run), {token: float(target.probs(())[token]) for token in range(4)}) < EXACT


def test_position_keyed_noise_of_earlier_attempts_is_harmless_here():
    """Token by token nothing of a rejected rest was looked at; `block` will not be so forgiving, hence the epochs."""
    target, model = Table(2, seed=21), Table(2, seed=22)
    law = law_with(
        target,
        4,
        lambda decisions: Drafter(model, decisions, size=0).chain(2),
        name=lambda domain, index, epoch: (domain, index),
    )
    assert error(law, texts(target, 4)) < EXACT


# ------------------------------------------------------------------------------- vectors with explicit uniforms and laws


def test_vectors_with_explicit_uniforms():
    cases = json.loads((VECTORS / "token_chains.json").read_text())["cases"]
    for case in cases:
        rows, tokens, expected = np.array(case["P"]), case["x"], case["token_level"]
        weighed = weigh_chain(
            tokens,
            laws=[DraftLaw(ids=NO_IDS, weights=np.array(row), total=1.0) for row in case["Q"]],
            probs=rows.__getitem__,
            uniforms=lambda domain, depth, case=case: case["u"][depth] if domain == ACCEPT else case["v"],
        )
        last = pick(rows[-1], case["v"]) if weighed.recovered is None else weighed.recovered
        assert weighed.num_accepted == expected["accepted"], case["tag"]
        assert [*tokens[: weighed.num_accepted], last] == expected["out"], case["tag"]
        assert weighed.fell_back == expected["fallback"]
    assert len(cases) == 24


def test_vectors_of_whole_laws():
    """The law of one verification's output (not cut to a length), and the mean number of accepted tokens."""
    for case in json.loads((VECTORS / "token_chain_laws.json").read_text()):
        rows, laws = ({_key(k): np.array(v) for k, v in case[which].items()} for which in ("p", "q"))
        laws = {k: DraftLaw(ids=NO_IDS, weights=v, total=1.0) for k, v in laws.items()}

        def run(chance: Chance, rows=rows, laws=laws, gamma=case["gamma"]) -> tuple[int, ...]:
            text: tuple[int, ...] = ()
            for depth in range(gamma):
                row, law = rows[text], laws[text]
                token = pick(law.weights, chance.cut(("draft", depth), np.cumsum(law.weights)))
                ratio = float(row[token]) / law.probability(token)
                if not weigh.accepts(row, token, law, u=chance.cut(("accept", depth), [ratio])):
                    rest = np.cumsum(law.minus(row))
                    v = chance.cut("residual", rest / rest[-1])
                    return (*text, weigh.recover(row, token, law, v=v)[0])
                text += (token,)
            return (*text, pick(rows[text], chance.cut("bonus", np.cumsum(rows[text]))))

        found, expected = law_of(run), {_key(k): v for k, v in case["token_level"].items()}
        assert error(found, expected) < EXACT
        mean = sum(weight * (len(text) - 1) for text, weight in found.items())
        assert mean == pytest.approx(case["mean_accepted"], abs=EXACT)


def _key(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def test_a_sparse_law_is_exact_in_rational_numbers():
    law = DraftLaw.sparse([0, 1, 2], np.exp([2.0, 1.2, 0.3]), total=256)
    assert law.weights.tolist() == [157, 70, 29]
    target = [Fraction(n, 100) for n in (30, 5, 25, 20, 15, 5)]
    draft = [Fraction(int(n), 256) for n in law.weights] + [Fraction(0)] * 3
    accepted = [min(one, other) for one, other in zip(target, draft, strict=True)]
    rest = [max(one - other, 0) for one, other in zip(target, draft, strict=True)]
    emitted = [a + (1 - sum(accepted)) * r / sum(rest) for a, r in zip(accepted, rest, strict=True)]
    assert emitted == target
    assert sum(accepted) == Fraction(593, 1280)
    np.testing.assert_allclose(law.minus(np.array(target, dtype=float)), np.array(rest, dtype=float), atol=1e-16)


# --------------------------------------------------------------------------------- wrong variants turn enumeration red

FIVE = Table(5, seed=0, row=[0.35, 0.25, 0.2, 0.15, 0.05])
FIVE_DRAFT = np.array([0.30, 0.10, 0.25, 0.15, 0.20])


def dense(probs) -> DraftLaw:
    return DraftLaw(ids=NO_IDS, weights=np.array(probs, dtype=np.float64), total=1.0)


def one_token(drawn: np.ndarray, told: DraftLaw | None, *, drop=lambda token: False) -> Callable[[Decisions], Draft]:
    """Draw from one law and tell another; `drop` throws tokens away after they were drawn."""

    def draft(decisions: Decisions) -> Draft:
        def one(chance: Chance, text: tuple[int, ...]) -> Chain:
            token = pick(drawn, chance.cut((DRAFT, len(text), text), np.cumsum(drawn) / drawn.sum()))
            return [] if drop(token) else [(token, told)]

        return one

    return draft


def top(probs: np.ndarray, count: int) -> np.ndarray:
    kept = np.where(np.isin(np.arange(len(probs)), np.argsort(-probs, kind="stable")[:count]), probs, 0.0)
    return kept / kept.sum()


def point(probs: np.ndarray) -> np.ndarray:
    return np.eye(len(probs))[int(probs.argmax())]


def five(draft: Callable[[Decisions], Draft]) -> dict:
    return law_with(FIVE, 1, draft)


TRUE_FIVE = texts(FIVE, 1)


@pytest.mark.parametrize(
    ("draft", "shift"),
    [
        (one_token(FIVE_DRAFT, dense(FIVE_DRAFT)), 0.0),
        (one_token(top(FIVE_DRAFT, 3), dense(FIVE_DRAFT)), 0.2),
        (one_token(top(FIVE_DRAFT, 3), dense(top(FIVE_DRAFT, 3))), 0.0),
        (one_token(point(FIVE_DRAFT), dense(FIVE_DRAFT)), 0.65),
        (one_token(point(FIVE_DRAFT), None), 0.0),
        (one_token(FIVE_DRAFT, dense(FIVE_DRAFT), drop=lambda token: FIVE_DRAFT[token] < 0.2), 0.15),
    ],
    ids=["right", "raw law of a truncated draw", "truncated", "softmax of an argmax", "point mass", "dropped"],
)
def test_what_is_told_must_be_what_was_drawn_from(draft, shift):
    """Known figures for one token."""
    assert distance(five(draft), TRUE_FIVE) == pytest.approx(shift, abs=1e-6)


def test_a_forbidden_draft_that_is_dropped_shifts_the_law():
    masked = np.where(np.arange(5) < 3, FIVE.probs(()), 0.0)
    target = Table(5, seed=0, row=masked / masked.sum())
    true = texts(target, 1)
    kept = one_token(FIVE_DRAFT, dense(FIVE_DRAFT))
    dropped = one_token(FIVE_DRAFT, dense(FIVE_DRAFT), drop=lambda token: token >= 3)
    cut = np.where(np.arange(5) < 3, FIVE_DRAFT, 0.0)
    assert distance(law_with(target, 1, kept), true) < EXACT
    assert distance(law_with(target, 1, one_token(cut / cut.sum(), dense(cut / cut.sum()))), true) < 1e-12
    assert distance(law_with(target, 1, dropped), true) == pytest.approx(0.103125, abs=1e-6)


def test_a_law_rounded_for_the_wire_after_the_draw_shifts_the_law():
    target, model = Table(4, seed=31), Table(4, seed=32)

    def half(decisions: Decisions) -> Draft:
        drafter = Drafter(model, decisions, size=0)

        def draft(chance: Chance, text: tuple[int, ...]) -> Chain:
            token, law = drafter.next(chance, text)
            return [(token, dense((law.weights / law.total).astype(np.float16)))]

        return draft

    assert error(law_with(target, 2, half), texts(target, 2)) > SHIFTED


def accept_with(change: Callable) -> Callable:
    return lambda row, token, law, *, u: token >= 0 and change(float(row[token]), law.probability(token), u)


def residual_of(change: Callable) -> Callable:
    return lambda row, token, law, *, v: (pick(change(row, token, law), v), False)


MUTANTS: dict[str, dict[str, Callable]] = {
    "no residual": {"recover": residual_of(lambda row, token, law: row)},
    "residual argmax": {"recover": lambda row, token, law, *, v: (int(law.minus(row).argmax()), False)},
    "residual without the token only": {
        "recover": residual_of(lambda row, token, law: np.where(np.arange(len(row)) == token, 0.0, row))
    },
    "residual of the other side": {"recover": residual_of(lambda row, token, law: np.maximum(-law.minus(row), row))},
    "always accept": {"accepts": lambda row, token, law, *, u: row[token] > 0},
    "never accept": {"accepts": lambda row, token, law, *, u: False},
    "accept by the target alone": {"accepts": accept_with(lambda p, q, u: u < p)},
    "accept if the target likes it better": {"accepts": accept_with(lambda p, q, u: p >= q)},
    "epsilon below the ratio": {"accepts": accept_with(lambda p, q, u: u < p / (q + 1e-6))},
    "clamped draft probability": {"accepts": accept_with(lambda p, q, u: u * max(q, 0.15) < p)},
    "half-precision ratio": {"accepts": accept_with(lambda p, q, u: u < float(np.float16(p / q)))},
    "half-precision uniforms": {"accepts": accept_with(lambda p, q, u: float(np.float16(u)) * q < p)},
    "random token accepted iff the target's best": {
        "accepts": lambda row, token, law, *, u: token == int(row.argmax()),
        "recover": residual_of(lambda row, token, law: row),
    },
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_turns_the_enumeration_red(mutant, monkeypatch):
    for function, wrong in MUTANTS[mutant].items():
        monkeypatch.setattr(weigh, function, wrong)
    target, model = Table(4, seed=41), Table(4, seed=42)
    law = law_with(target, 2, lambda decisions: Drafter(model, decisions, size=0).chain(1))
    assert error(law, texts(target, 2)) > SHIFTED


@pytest.mark.parametrize(
    "reused",
    [{RESIDUAL: DRAFT}, {ACCEPT: DRAFT}, {RESIDUAL: ACCEPT}],
    ids=["residual = draft", "accept = draft", "residual = accept"],
)
def test_noise_used_twice_turns_the_enumeration_red(reused):
    target, model = Table(4, seed=41), Table(4, seed=42)
    law = law_with(
        target,
        2,
        lambda decisions: Drafter(model, decisions, size=0).chain(1),
        name=lambda domain, index, epoch: (reused.get(domain, domain), index),
    )
    assert error(law, texts(target, 2)) > SHIFTED


def test_rows_of_the_wrong_position_turn_the_enumeration_red():
    class Shifted(RejectionRule):
        def _probs(self, row, path, pipeline):
            return super()._probs(rows_after.get(tuple(path), row), path, pipeline)

    target, model = Table(2, seed=51), Table(2, seed=52)
    rows_after = {(token,): target.logits(()) for token in range(2)}
    law = law_with(
        target,
        2,
        lambda decisions: Drafter(model, decisions, size=0).chain(2),
        rule=Shifted(temperature=1.0),
    )
    assert error(law, texts(target, 2)) > SHIFTED
