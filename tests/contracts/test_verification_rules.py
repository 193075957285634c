"""What every verification rule must do, run over every rule; what only one does stands below."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dist_spec.core.noise import NoiseRing, request_key
from dist_spec.core.types import NO_PARENT, Verdict
from dist_spec.core.verification.build import RULE_NAMES, build_rule
from dist_spec.errors import ConfigError, ModelError, ProtocolError, RequestError, UnsupportedError

VOCAB = 37
KEY = request_key(5, 0)
RING = NoiseRing(VOCAB, 32)
RULES = {
    "greedy": build_rule("greedy", temperature=0.0),
    "auto at 0": build_rule("auto", temperature=0.0),
    "coupled at 0": build_rule("coupled", temperature=0.0),
    "rejection at 0": build_rule("rejection", temperature=0.0),
    "coupled": build_rule("coupled", temperature=0.8),
    "auto": build_rule("auto", temperature=1.3),
    "greedy, margin": build_rule("greedy", temperature=0.0, with_margin=True),
    "coupled, margin": build_rule("coupled", temperature=0.8, with_margin=True),
}


def noise(depth: int) -> np.ndarray:
    return RING.row(KEY, depth)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def rows(count: int, seed: int = 0) -> torch.Tensor:
    return 3.0 * torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed))


def verify(rule, tokens, parents, logits, noise_row=noise) -> Verdict:
    return rule.verify(tokens=ints(*tokens), parents=ints(*parents), logits=logits, noise_row=noise_row)


def plain_token(rule, row: torch.Tensor, depth: int) -> int:
    """The rule's own token for one row: what plain decoding commits."""
    return verify(rule, [], [], row[None], lambda _: noise(depth)).token


every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


@every_rule
def test_is_a_lossless_named_rule(rule):
    assert rule.name in RULE_NAMES
    assert rule.lossless is True
    assert rule.needs_noise is (rule.name == "coupled")


@every_rule
def test_empty_tree_is_plain_decoding(rule):
    verdict = verify(rule, [], [], rows(1))
    assert verdict.path == ()
    assert verdict.tokens == (verdict.token,)
    assert 0 <= verdict.token < VOCAB


@every_rule
def test_right_chain_is_accepted_to_its_end(rule):
    logits = rows(6)
    right = [plain_token(rule, logits[i], i) for i in range(6)]
    verdict = verify(rule, right[:5], [NO_PARENT, 0, 1, 2, 3], logits)
    assert verdict.path == (0, 1, 2, 3, 4)
    assert verdict.tokens == tuple(right)
    assert verdict.token == right[5]


@every_rule
@pytest.mark.parametrize("at", range(5))
def test_chain_stops_at_the_first_wrong_token(rule, at):
    logits = rows(6)
    right = [plain_token(rule, logits[i], i) for i in range(6)]
    drafted = right[:5]
    drafted[at] = (drafted[at] + 1) % VOCAB
    verdict = verify(rule, drafted, [NO_PARENT, 0, 1, 2, 3], logits)
    assert verdict.path == tuple(range(at))
    assert verdict.tokens == tuple(right[: at + 1])


@every_rule
def test_walk_descends_into_the_right_branch(rule):
    """Nodes: 0 wrong, 1 right, 2 below 0, 3 wrong below 1, 4 right below 1. Each node has its own logits row."""
    logits = rows(6, seed=1)
    first = plain_token(rule, logits[0], 0)
    second = plain_token(rule, logits[2], 1)
    last = plain_token(rule, logits[5], 2)
    wrong = (first + 1) % VOCAB
    verdict = verify(
        rule, [wrong, first, second, (second + 1) % VOCAB, second], [NO_PARENT, NO_PARENT, 0, 1, 1], logits
    )
    assert verdict.path == (1, 4)
    assert verdict.tokens == (first, second, last)


@every_rule
def test_repeated_siblings_change_nothing(rule):
    logits = rows(3)
    first = plain_token(rule, logits[0], 0)
    verdict = verify(rule, [first, first], [NO_PARENT, NO_PARENT], logits)
    assert verdict.path == (0,)
    assert verdict.tokens == (first, plain_token(rule, logits[1], 1))


@every_rule
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_number_fails_this_request_and_names_the_place(rule, bad):
    logits = rows(3)
    right = [plain_token(rule, logits[i], i) for i in range(2)]
    logits[1, 7] = bad
    with pytest.raises(RequestError, match="1 token"):
        verify(rule, right, [NO_PARENT, 0], logits)


@every_rule
def test_row_without_any_possible_token_fails(rule):
    with pytest.raises(RequestError, match="0 token"):
        verify(rule, [], [], torch.full((1, VOCAB), -math.inf))


@every_rule
def test_rows_not_visited_are_not_read(rule):
    logits = rows(4)
    wrong = (plain_token(rule, logits[0], 0) + 1) % VOCAB
    logits[1:] = math.nan
    verdict = verify(rule, [wrong, 3, 4], [NO_PARENT, 0, 1], logits)
    assert verdict.path == ()


@every_rule
def test_masked_tokens_are_never_emitted(rule):
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, 11] = -50.0
    assert verify(rule, [], [], logits).token == 11


@every_rule
def test_ties_go_to_the_smallest_id(rule):
    logits = torch.zeros(1, VOCAB)
    flat = np.zeros(VOCAB)
    assert verify(rule, [], [], logits, lambda _: flat).token == 0


@every_rule
def test_verifying_twice_gives_the_same(rule):
    """A repeated step after a time-out, and a step of another request in between, change nothing."""
    logits, other = rows(4), rows(1, seed=9)
    drafted = [plain_token(rule, logits[0], 0), 1, 2]
    first = verify(rule, drafted, [NO_PARENT, 0, 0], logits)
    verify(rule, [], [], other)
    again = verify(rule, drafted, [NO_PARENT, 0, 0], logits)
    assert (again.path, again.tokens) == (first.path, first.tokens)


@every_rule
def test_inputs_are_left_alone(rule):
    logits = rows(2)
    before = logits.clone()
    verify(rule, [3], [NO_PARENT], logits)
    assert torch.equal(logits, before)


@every_rule
def test_other_dtypes_are_read_as_float32(rule):
    half = rows(2).bfloat16()
    assert verify(rule, [3], [NO_PARENT], half).tokens == verify(rule, [3], [NO_PARENT], half.float()).tokens


@every_rule
def test_malformed_input_is_refused(rule):
    with pytest.raises(ModelError, match="2 rows"):
        verify(rule, [1], [NO_PARENT], rows(1))
    with pytest.raises(ProtocolError, match="parents must come first"):
        verify(rule, [1, 2], [1, NO_PARENT], rows(3))
    with pytest.raises(ProtocolError, match="parents must come first"):
        verify(rule, [1], [0], rows(2))
    with pytest.raises(ProtocolError, match="parents must come first"):
        verify(rule, [1], [-2], rows(2))
    with pytest.raises(ProtocolError, match="tokens"):
        verify(rule, [1, 2], [NO_PARENT], rows(3))


def test_margin_is_the_smallest_gap_of_the_visited_rows():
    logits = torch.tensor([[0.0, 2.0, 1.0], [5.0, 4.75, 0.0], [0.0, 0.0, 9.0]])
    rule = build_rule("greedy", temperature=0.0, with_margin=True)
    assert verify(rule, [1, 0], [NO_PARENT, 0], logits).margin == 0.25
    assert verify(rule, [0, 0], [NO_PARENT, 0], logits).margin == 1.0  # rows 1 and 2 are not visited
    assert verify(rule, [], [], torch.zeros(1, 3)).margin == 0.0
    assert verify(rule, [], [], torch.zeros(1, 1)).margin == math.inf
    assert math.isnan(verify(build_rule("greedy", temperature=0.0), [], [], logits[:1]).margin)


def test_coupled_margin_is_in_perturbed_nats():
    rule = build_rule("coupled", temperature=0.5, with_margin=True)
    verdict = verify(rule, [], [], torch.tensor([[1.0, 2.0, 0.0]]), lambda _: np.array([1.5, 0.0, 0.0]))
    assert verdict.token == 1
    assert verdict.margin == pytest.approx(0.5)


def test_coupled_adds_noise_in_float64():
    """In float32 both scores would round to the same number and the smaller id would win."""
    rule = build_rule("coupled", temperature=3.0)
    logits = torch.tensor([[1000.0, 1000.0]])
    assert verify(rule, [], [], logits, lambda _: np.array([0.0, 1e-9])).token == 1
    third = np.float64(np.float32(1000.0)) / 3.0
    rounding = third - np.float64(np.float32(1000.0) / np.float32(3.0))
    assert rounding != 0.0
    other = torch.tensor([[1000.0, 0.0]])  # the scaled logit of id 0 is `third`, not its float32 rounding
    above, below = third + abs(rounding) / 2, third - abs(rounding) / 2
    assert verify(rule, [], [], other, lambda _: np.array([0.0, above])).token == 1
    assert verify(rule, [], [], other, lambda _: np.array([0.0, below])).token == 0


def test_coupled_asks_for_one_noise_row_per_visited_depth():
    rule = RULES["coupled"]
    logits = rows(3)
    asked: list[int] = []

    def counted(depth: int) -> np.ndarray:
        asked.append(depth)
        return noise(depth)

    right = [plain_token(rule, logits[i], i) for i in range(2)]
    verify(rule, right, [NO_PARENT, 0], logits, counted)
    assert asked == [0, 1, 2]


def test_coupled_refuses_to_run_without_its_noise():
    with pytest.raises(ModelError, match="without noise"):
        verify(RULES["coupled"], [], [], rows(1), None)
    with pytest.raises(ModelError, match="noise row"):
        verify(RULES["coupled"], [], [], rows(1), lambda _: np.zeros(VOCAB + 1))


def test_builder_chooses_and_refuses():
    assert build_rule("auto", temperature=0.0).name == "greedy"
    assert build_rule("auto", temperature=0.1).name == "coupled"
    for name in ("block", "traversal"):
        with pytest.raises(UnsupportedError, match=name):
            build_rule(name, temperature=0.5)
    with pytest.raises(ConfigError, match="gredy"):
        build_rule("gredy", temperature=0.0)
    with pytest.raises(RequestError, match=r"temperature 0\.5"):
        build_rule("greedy", temperature=0.5)
    with pytest.raises(RequestError, match="too small"):
        build_rule("auto", temperature=1e-9)
