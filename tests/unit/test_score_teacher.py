"""The target along known texts, and drafters followed below it, with tiny models: the target as its own drafter scores 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from dist_spec.bench.score.expected import Seconds
from dist_spec.bench.score.forced import follow, laws
from dist_spec.bench.score.overlap import Overlap
from dist_spec.bench.score.pair import check_vocabulary, load_pair
from dist_spec.bench.score.ranks import after_a_miss, survival
from dist_spec.bench.score.teacher import Teacher, distributions
from dist_spec.bench.score.texts import Text
from dist_spec.bench.score.timing import on_cores, time_steps, verify_cost
from dist_spec.config import parse_config
from dist_spec.core.noise import gumbel_row, request_key
from dist_spec.core.types import Expansion, Sampling
from dist_spec.drafters.base import ExpandRow, RequestKey
from dist_spec.drafters.build import BuiltDrafter
from dist_spec.drafters.ngram import NgramDrafter
from dist_spec.errors import TokenizerMismatchError
from dist_spec.models.loading import LoadedModel, load_model
from dist_spec.models.runner import ModelRunner
from dist_spec.models.tokenizer import load_tokenizer

MODEL = "random:llama?seed=5&hidden=48&layers=3"
CONFIG = parse_config(
    {
        "target": {"model": MODEL, "dtype": "float32", "threads": 1, "max_sequences": 2},
        "drafters": [{"kind": "model", "name": "twin", "model": MODEL, "dtype": "float32"}],
    }
)
PROMPT = (256, 72, 101, 108, 108, 111)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(MODEL, dtype="float32", device="cpu")


def runner_of(loaded: LoadedModel) -> ModelRunner:
    return ModelRunner(loaded, num_blocks=40, block_size=16, batch_invariant=True)


def logits_of(loaded: LoadedModel, tokens: Sequence[int]) -> np.ndarray:
    with torch.inference_mode():
        return loaded.model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0].double().numpy()


def text_of(model: str, *, length: int, sampling: Sampling, prompt: tuple[int, ...] = PROMPT) -> Text:
    """What plain decoding gives, token by token."""
    fresh = load_model(model, dtype="float32", device="cpu")
    key = request_key(sampling.seed, sampling.sample_index)
    tokens = list(prompt)
    for index in range(length):
        row = logits_of(fresh, tokens)[-1]
        if sampling.temperature > 0:
            row = row / sampling.temperature + gumbel_row(key, index, len(row))
        tokens.append(int(row.argmax()))
    return Text(domain="", prompt=prompt, output=tuple(tokens[len(prompt) :]), sampling=sampling)


GREEDY, SAMPLED = Sampling(max_tokens=24), Sampling(temperature=0.8, seed=3, max_tokens=24)


def test_the_target_read_along_a_text_is_the_stock_model(loaded: LoadedModel) -> None:
    stock = load_model(MODEL, dtype="float32", device="cpu")
    tokens = np.random.default_rng(1).integers(0, 256, 300).tolist()  # longer than one chunk
    text = Text(domain="", prompt=tuple(tokens[:270]), output=tuple(tokens[270:]), sampling=SAMPLED)
    reading = Teacher(runner_of(loaded), layers=(0, 2)).read(text)
    expected = logits_of(stock, tokens)[269:-1]
    assert reading.logits == pytest.approx(expected, abs=1e-4)
    assert reading.features is not None
    assert reading.features.shape == (300, 2 * 48)
    with torch.inference_mode():
        states = stock.model(input_ids=torch.tensor([tokens]), output_hidden_states=True, use_cache=False).hidden_states
    assert reading.features[:, :48] == pytest.approx(states[1][0].numpy(), abs=0.02)
    assert Teacher(runner_of(loaded)).read(text).features is None
    rows = list(distributions(text, reading, end_ids=(257,)))
    weights = np.exp(expected / 0.8)
    assert np.array(rows) == pytest.approx(weights / weights.sum(axis=1, keepdims=True), abs=1e-4)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_target_as_its_own_drafter_scores_1(sampling: Sampling) -> None:
    texts = [
        text_of(MODEL, length=24, sampling=sampling),
        text_of(MODEL, length=15, sampling=sampling, prompt=(256, 87, 104, 121)),
    ]
    tokenizer = load_tokenizer(MODEL)
    pair = load_pair(CONFIG, CONFIG.drafters[0], tokenizer=tokenizer, longest=128, with_laws=sampling.temperature > 0)
    done: list[int] = []
    spots = follow(pair.drafter, texts, depth=5, width=4, step=done.append)
    trails = [spot.trail for text in spots for spot in text]
    assert survival(trails, 5) == [1.0] * 5
    assert after_a_miss(trails).first == 1.0
    assert sum(done) == len(trails) == 24 + 15
    if sampling.temperature == 0:
        assert pair.lawful is None
        return
    assert pair.lawful is not None
    overlap, positions = Overlap(), 0
    rows = [list(distributions(text, Teacher(pair.runner).read(text), end_ids=tokenizer.eos_ids)) for text in texts]
    for position in laws(pair.lawful, texts):
        for text, at, law in position:
            positions += 1
            assert law is not None
            overlap.add(rows[text][at], law=law, guesses=spots[text][at].guesses)
    assert positions == len(trails)
    assert overlap.coupled_match == pytest.approx(1.0, abs=1e-3)
    assert overlap.sum_min == pytest.approx(1.0, abs=1e-3)


def test_another_model_is_scored_by_its_own_guesses() -> None:
    """Against the drafter's own logits, position by position and depth by depth."""
    other = "random:llama?seed=6&hidden=48&layers=1"
    text = text_of(MODEL, length=12, sampling=SAMPLED)
    entry = CONFIG.drafters[0].model_copy(update={"model": other})
    pair = load_pair(CONFIG, entry, tokenizer=load_tokenizer(MODEL), longest=128, with_laws=True)
    [spots] = follow(pair.drafter, [text], depth=3, width=259)
    drafts = logits_of(load_model(other, dtype="float32", device="cpu"), text.tokens)[len(PROMPT) - 1 :]
    key = request_key(SAMPLED.seed, SAMPLED.sample_index)
    for at, spot in enumerate(spots):
        for level, rank in enumerate(spot.trail.ranks):
            scores = drafts[at + level] / 0.8 + gumbel_row(key, at + level, 259)
            scores[np.argsort(drafts[at + level])[:3]] = -np.inf  # not among the 256 candidates
            truth = scores[text.output[at + level]]
            assert rank == (1 + int((scores > truth).sum()) if truth > -np.inf else 0)


class Listener:
    """Takes features and guesses nothing; notes what it knew at every position."""

    kind = "listener"

    def __init__(self) -> None:
        self.rows: dict[RequestKey, list[np.ndarray]] = {}
        self.known: list[tuple[int, int]] = []
        self.closed: list[RequestKey] = []

    def features(self, key: RequestKey, first_position: int, rows: np.ndarray) -> None:
        mine = self.rows.setdefault(key, [])
        assert first_position == len(mine)
        mine.extend(rows)

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        self.known += [(len(row.history), len(self.rows[row.key])) for row in rows]
        return [[Expansion.empty() for _ in row.leaves] for row in rows]

    def close(self, key: RequestKey) -> None:
        self.closed.append(key)


def test_features_are_those_that_the_target_has_by_then() -> None:
    """All but that of the last known token: the target reads it in the verification that is drafted for."""
    text = Text(domain="", prompt=(1, 2, 3), output=(4, 5, 6, 7), sampling=GREEDY)
    features = np.arange(14, dtype=np.float16).reshape(7, 2)
    listener = Listener()
    [spots] = follow(listener, [text], depth=2, width=2, features=[features])
    assert [spot.trail.ranks for spot in spots] == [(0,)] * 4
    assert listener.known == [(3, 2), (4, 3), (5, 4), (6, 5)]
    [rows] = listener.rows.values()
    assert np.array_equal(np.array(rows), features[:5])
    assert len(listener.closed) == 1


def test_costs_are_those_of_steps_that_were_taken(loaded: LoadedModel) -> None:
    runner = runner_of(loaded)
    verify = verify_cost(runner, max_model_len=256, max_nodes=8)
    text = text_of(MODEL, length=30, sampling=GREEDY)
    with on_cores(()):
        found = time_steps(
            NgramDrafter(), runner, text.tokens, sampling=GREEDY, features=None, width=4, rounds=5, verify=verify
        )
    assert isinstance(found, Seconds)
    assert min(found.target_token_s, found.draft_token_s, found.draft_first_s) > 0
    assert found.draft_wide_s >= found.draft_token_s
    slowed = time_steps(
        NgramDrafter(),
        runner,
        text.tokens,
        sampling=GREEDY,
        features=None,
        width=4,
        rounds=5,
        verify=verify,
        step_s=9.0,
    )
    assert min(slowed.draft_token_s, slowed.draft_first_s, slowed.draft_wide_s) > 9.0


def test_another_vocabulary_is_refused_with_the_first_difference() -> None:
    tokenizer = load_tokenizer(MODEL)
    tokens = list(tokenizer.token_map)
    check_vocabulary("same", "model", BuiltDrafter(drafter=NgramDrafter()), tokenizer)
    built = BuiltDrafter(
        drafter=NgramDrafter(), vocabulary=b"\0" * len(tokenizer.vocabulary_hashes()), tokens=["?", *tokens]
    )
    with pytest.raises(TokenizerMismatchError, match="token 0"):
        check_vocabulary("other", "model", built, tokenizer)
