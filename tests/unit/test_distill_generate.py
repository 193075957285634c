"""Text by the teacher: what a batch gives is what the stock model gives for each text alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dist_spec.distill.cache import Shard
from dist_spec.distill.generate import Opening, choose, write_text
from dist_spec.distill.teacher import Teacher, top_probabilities
from dist_spec.errors import UnsupportedError
from dist_spec.models.loading import load_model

LAYERS = (0, 1, 3)
PROMPTS = ([65, 66, 67], [80] * 70, [12, 200, 7, 9, 30, 31], [5])
FAMILIES = [
    "random:llama?layers=4",
    "random:mistral?layers=4&window=6",
    "random:qwen3?layers=4",
    "random:gemma2?layers=4&window=6",
    "random:gemma3_text?layers=4&window=6",
]


def texts(name: str, *, temperature: float = 0.0, seed: int = 0, count: int = 12) -> Shard:
    teacher = Teacher(load_model(name, dtype="float32", device="cpu"), feature_layers=LAYERS)
    openings = [Opening(tokens=tokens, temperature=temperature) for tokens in PROMPTS]
    return write_text(teacher, openings, max_new_tokens=count, top_k=5, seed=seed, domain_names=("chat",))


def sequences(shard: Shard) -> Iterator[tuple[torch.Tensor, slice, int]]:
    for index in range(shard.num_sequences):
        span = slice(int(shard.offsets[index]), int(shard.offsets[index + 1]))
        yield shard.tokens[span].long(), span, int(shard.prompt_lengths[index])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_batch_is_what_the_stock_model_gives_alone(name: str) -> None:
    shard = texts(name)
    stock = load_model(name, dtype="float32", device="cpu").model
    stock.set_attn_implementation("eager")
    for (tokens, span, prompt), given in zip(sequences(shard), PROMPTS, strict=True):
        assert tokens[:prompt].tolist() == list(given)
        with torch.no_grad():
            result = stock(tokens[None], output_hidden_states=True)
        law = torch.softmax(result.logits[0].float(), dim=-1)
        probs, ids = law.topk(5, dim=-1)
        judged = slice(prompt - 1, None)
        assert torch.equal(shard.top_ids[span][judged].long(), ids[judged])
        torch.testing.assert_close(shard.top_probs[span][judged].float(), probs[judged], rtol=2e-3, atol=1e-4)
        assert bool((shard.top_probs[span][: prompt - 1] == 0).all())
        # Greedy: every token is the first of the law before it.
        assert torch.equal(tokens[prompt:], ids[prompt - 1 : -1, 0])
        # The last entry of hidden_states is normed, so the last layer's output is not among them.
        wanted = torch.cat([result.hidden_states[layer + 1] for layer in LAYERS[:2]], dim=-1)[0]
        found = shard.features[span][:, : wanted.shape[1]].float()
        torch.testing.assert_close(found, wanted, rtol=5e-3, atol=5e-3)


def test_text_depends_on_its_seed_alone() -> None:
    name = FAMILIES[0]
    one, two, other = (texts(name, temperature=1.0, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.tokens, two.tokens)
    assert torch.equal(one.features, two.features)
    assert not torch.equal(one.tokens, other.tokens)


def test_ended_texts_are_dropped_and_the_others_go_on() -> None:
    """A model that ends texts early: rows are compacted, and what remains is still the stock model's text."""
    name = "random:llama?layers=4&seed=4"
    loaded = load_model(name, dtype="float32", device="cpu")
    teacher = Teacher(loaded, feature_layers=LAYERS)
    ends = set(range(0, 250, 9))
    loaded.tokenizer.eos_ids = tuple(sorted(ends))
    openings = [Opening(tokens=[20 + i, 30 + i, 40], temperature=1.0) for i in range(12)]
    shard = write_text(teacher, openings, max_new_tokens=40, top_k=5, seed=3)
    lengths = [len(tokens) for tokens, _, _ in sequences(shard)]
    assert len(set(lengths)) > 4
    assert max(lengths) <= 3 + 39
    stock = load_model(name, dtype="float32", device="cpu").model
    for tokens, span, prompt in sequences(shard):
        assert not ends & set(tokens[prompt:].tolist())
        with torch.no_grad():
            law = torch.softmax(stock(tokens[None]).logits[0].float(), dim=-1)
        wanted = law[prompt - 1 :].max(dim=-1).values
        torch.testing.assert_close(shard.top_probs[span][prompt - 1 :, 0].float(), wanted, rtol=2e-3, atol=1e-4)


def test_the_draw_follows_the_law() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).repeat(20_000, 1)
    chance = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    tokens = choose(logits, torch.full((20_000,), 0.7), chance)
    shares = torch.bincount(tokens, minlength=4) / 20_000
    torch.testing.assert_close(shares, torch.softmax(logits[0] / 0.7, dim=0), atol=0.012, rtol=0)
    assert choose(logits[:3], torch.zeros(3), chance[:3]).tolist() == [2, 2, 2]


def test_ids_without_a_chance_are_never_drawn() -> None:
    logits = torch.zeros(2, 1000)
    logits[:, :5] = float("-inf")
    logits[:, 900:] = float("-inf")
    assert choose(logits, torch.ones(2), torch.tensor([0.0, 1.0 - 2**-24])).tolist() == [5, 899]


@pytest.mark.parametrize("vocab", [64, 65, 200, 259])
def test_two_stages_find_the_best_ids(vocab: int) -> None:
    logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(vocab))
    ids, probs = top_probabilities(logits, 7)
    wanted = torch.softmax(logits, dim=-1).topk(7, dim=-1)
    assert torch.equal(ids.long(), wanted.indices)
    torch.testing.assert_close(probs.float(), wanted.values, rtol=1e-3, atol=1e-4)


def test_a_layer_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="4 layers"):
        Teacher(load_model(FAMILIES[0], dtype="float32", device="cpu"), feature_layers=(0, 4))
