"""The text does not depend on drafting: every growth, delivery, shape and drafter, greedy and sampled, batch 1 and 4."""

from __future__ import annotations

from functools import cache

import pytest

from dist_spec.core.settings import Speculation
from dist_spec.core.types import Sampling
from dist_spec.core.verification.equality import compare
from dist_spec.drafters.base import Drafter
from dist_spec.drafters.model import ModelDrafter
from dist_spec.drafters.ngram import NgramDrafter
from dist_spec.models.invariance import probe
from dist_spec.models.loading import LoadedModel, load_model
from tests.integration.local_cluster import PLAIN, LocalCluster, prompts_of

TARGET = "random:llama?seed=5&hidden=48"
OTHER = "random:llama?seed=9&layers=1&hidden=32&heads=2&kv_heads=1"
NUM_TOKENS = 40

METHODS = {
    "synchronous chain": Speculation(
        growth="none", delivery="pull", verify_shape="chain", on_miss="draft", num_draft_tokens=4, pull_timeout_s=60
    ),
    "synchronous tree": Speculation(
        growth="none", delivery="pull", on_miss="draft", num_draft_tokens=3, pull_timeout_s=60
    ),
    "PEARL": Speculation(growth="optimistic", delivery="pull", verify_shape="chain", pull_timeout_s=60),
    "SSD": Speculation(
        growth="fan_out", delivery="pull", verify_shape="chain", on_miss="draft", num_draft_tokens=4, pull_timeout_s=60
    ),
    "optimistic push": Speculation(growth="optimistic", verify_shape="chain"),
    "ours": Speculation(),
    "ours, waiting on a miss": Speculation(on_miss="wait", max_wait_s=0.01),
    "ours, large budget": Speculation(budget=40, num_leaves=4, num_children=6, num_draft_tokens=30),
    "ours, one node": Speculation(budget=1, num_draft_tokens=1),
}


@cache
def model(name: str, dtype: str = "float32") -> LoadedModel:
    return load_model(name, dtype=dtype, device="cpu")


def itself() -> Drafter:
    return ModelDrafter(model(TARGET), max_context=512, batch_invariant=True)


def other() -> Drafter:
    return ModelDrafter(model(OTHER), max_context=512)


def samplings(temperature: float, count: int) -> list[Sampling]:
    return [
        Sampling(temperature=temperature, seed=11 + i, max_tokens=NUM_TOKENS - 3 * i, ignore_eos=True)
        for i in range(count)
    ]


@cache
def plain_texts(temperature: float, count: int) -> list[list[int]]:
    """Every request alone, without any drafter: the reference of all equalities."""
    texts = []
    for prompt, sampling in zip(prompts_of(count), samplings(temperature, count), strict=True):
        [stream] = LocalCluster(model(TARGET), PLAIN).run([prompt], [sampling])
        texts.append(stream.tokens)
    return texts


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", METHODS)
def test_text_equals_plain_decoding_and_speculation_happened(method: str, temperature: float) -> None:
    cluster = LocalCluster(model(TARGET), METHODS[method], drafters=[itself], seed=1)
    streams = cluster.run(prompts_of(4), samplings(temperature, 4))
    assert [stream.tokens for stream in streams] == plain_texts(temperature, 4)
    assert cluster.counts.accepted > 0
    # A target that drafts for itself is right nearly always; a reader of accepted tokens must see that.
    assert cluster.counts.rows < 0.9 * cluster.counts.committed


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    "drafters",
    [[], [other], [NgramDrafter], [itself, other], [NgramDrafter, itself]],
    ids=lambda d: f"{len(d)} drafters",
)
@pytest.mark.parametrize("batch", [1, 4])
def test_any_drafters(drafters: list[type[Drafter]], temperature: float, batch: int) -> None:
    cluster = LocalCluster(model(TARGET), Speculation(budget=6 * batch), drafters=drafters, seed=2)
    streams = cluster.run(prompts_of(batch), samplings(temperature, batch))
    assert [stream.tokens for stream in streams] == plain_texts(temperature, batch)
    if itself in drafters:
        assert cluster.counts.accepted > 0


def test_a_drafter_inside_the_leader() -> None:
    loops = [[7, 8, 9] * 6]
    sampling = [Sampling(max_tokens=60, ignore_eos=True)]
    [plain] = LocalCluster(model(TARGET), PLAIN).run(loops, sampling)
    cluster = LocalCluster(model(TARGET), Speculation(), local={"ngram": NgramDrafter()})
    [stream] = cluster.run(loops, sampling)
    assert stream.tokens == plain.tokens
    assert cluster.counts.verified > 0


def test_self_drafting_accepts_everything_verified() -> None:
    settings = Speculation(growth="optimistic", verify_shape="chain", num_draft_tokens=6)
    cluster = LocalCluster(model(TARGET), settings, drafters=[itself], seed=4)
    cluster.run(prompts_of(1), samplings(0.0, 1))
    assert cluster.counts.verified == cluster.counts.accepted > 10


def test_numeric_equality_where_batches_are_not_invariant() -> None:
    """bfloat16 without the invariant mode flips tokens; each first difference must be one that rounding explains."""
    loaded = model(TARGET, "bfloat16")
    prompts, asked = prompts_of(4), samplings(0.8, 4)
    plain = LocalCluster(loaded, PLAIN, batch_invariant=False)
    references = plain.run(prompts, asked)
    found = probe(plain.runner)
    drafted = LocalCluster(loaded, Speculation(budget=24), drafters=[itself], batch_invariant=False, seed=6)
    for reference, stream, sampling in zip(references, drafted.run(prompts, asked), asked, strict=True):
        verdict = compare(
            reference.tokens,
            stream.tokens,
            strict=False,
            margins=reference.margins,
            max_logit_difference=found.max_logit_difference,
            temperature=sampling.temperature,
        )
        assert len(reference.margins) == len(reference.tokens)
        assert verdict.equal, verdict
    assert drafted.counts.accepted > 0
