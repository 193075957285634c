"""The shipped head on the real model it was made for: the text is that of plain decoding, and it drafts well."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dist_spec.bench.prompts import builtin_prompts
from dist_spec.config import HeadDrafterConfig
from dist_spec.core.settings import Speculation
from dist_spec.core.types import Sampling
from dist_spec.drafters.base import Drafter
from dist_spec.drafters.build_head import head_drafter
from dist_spec.drafters.suffix import SuffixDrafter
from dist_spec.models.loading import load_model
from tests.integration.local_cluster import PLAIN, LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NUM_TOKENS = 24


def shipped() -> Drafter:
    entry = HeadDrafterConfig(kind="head", name="head", width=4, num_children=8)
    return head_drafter(entry, target="smollm2", max_requests=4, laws=None).drafter


def test_text_equals_plain_decoding_and_guesses_are_accepted() -> None:
    loaded = load_model("smollm2", dtype="bfloat16", device="cpu")
    # Two prompts in one batch, each greedy and sampled: rows of both kinds side by side.
    prompts = [
        loaded.tokenizer.apply_chat([{"role": "user", "content": prompt.text}])
        for prompt in (builtin_prompts(1)[1], builtin_prompts(1)[3])
        for _ in range(2)
    ]
    samplings = [Sampling(temperature=0.8 * (i % 2), seed=7, max_tokens=NUM_TOKENS) for i in range(4)]
    eos = tuple(loaded.tokenizer.eos_ids)

    def run(settings: Speculation, *drafters: Callable[[], Drafter]) -> tuple[LocalCluster, list[list[int]]]:
        cluster = LocalCluster(loaded, settings, drafters=drafters, eos_ids=eos, seed=4)
        return cluster, [stream.tokens for stream in cluster.run(prompts, samplings)]

    _, plain = run(PLAIN)
    cluster, drafted = run(Speculation(budget=8), shipped, SuffixDrafter)
    assert drafted == plain
    assert cluster.counts.accepted > 0.25 * cluster.counts.committed
    assert cluster.session.membership.members["d0"].useful_nodes > 20
