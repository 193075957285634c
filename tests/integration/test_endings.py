"""Ends and edges with a real model: EOS, stop strings and limits inside an accepted block, bad requests, NaN, aborts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from dist_spec.core.plan import Plan
from dist_spec.core.settings import Speculation
from dist_spec.core.types import Sampling
from dist_spec.drafters.model import ModelDrafter
from tests.integration.local_cluster import PLAIN, LocalCluster, prompts_of, step_drafter
from tests.integration.test_equality import TARGET, itself, model

SELF = Speculation(budget=16, num_draft_tokens=12)


def decode(tokens: Sequence[int]) -> str:
    return "".join(chr(token) for token in tokens)


@pytest.fixture(scope="module")
def long_text() -> list[int]:
    [stream] = LocalCluster(model(TARGET), PLAIN).run([prompts_of(1)[0]], [Sampling(max_tokens=60, ignore_eos=True)])
    return stream.tokens


def both(sampling: Sampling, **more: object) -> tuple[list[int], list[int], str]:
    """(plain text, drafted text, reason); the drafted run must have accepted whole blocks."""
    prompt = prompts_of(1)
    [plain] = LocalCluster(model(TARGET), PLAIN, **more).run(prompt, [sampling])  # type: ignore[arg-type]
    cluster = LocalCluster(model(TARGET), SELF, drafters=[itself], seed=8, **more)  # type: ignore[arg-type]
    [stream] = cluster.run(prompt, [sampling])
    assert stream.reason == plain.reason
    assert cluster.counts.accepted > 0
    return plain.tokens, stream.tokens, stream.reason


def first_of(text: list[int], after: int) -> int:
    """A token whose first occurrence lies at or behind `after`."""
    return next(token for i, token in enumerate(text) if i >= after and token not in text[:i])


def test_eos_inside_an_accepted_block(long_text: list[int]) -> None:
    eos = first_of(long_text, 9)
    plain, drafted, reason = both(Sampling(max_tokens=60), eos_ids=(eos,))
    assert plain == drafted == long_text[: long_text.index(eos) + 1]
    assert reason == "stop"


def test_stop_token_ids(long_text: list[int]) -> None:
    stop = first_of(long_text, 14)
    plain, drafted, reason = both(Sampling(max_tokens=60, ignore_eos=True, stop_token_ids=(stop,)))
    assert plain == drafted
    assert drafted[-1] == stop
    assert reason == "stop"


def test_stop_string_over_two_tokens_inside_a_block(long_text: list[int]) -> None:
    stop = decode(long_text[10:12])
    plain, drafted, reason = both(Sampling(max_tokens=60, ignore_eos=True, stop=(stop,)), decode=decode)
    assert plain == drafted
    assert decode(drafted).endswith(stop)
    assert reason == "stop"


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 31])
def test_max_tokens_inside_a_block_and_a_draft_longer_than_the_room(max_tokens: int, long_text: list[int]) -> None:
    prompt = prompts_of(1)
    cluster = LocalCluster(model(TARGET), SELF, drafters=[itself], seed=9)
    [stream] = cluster.run(prompt, [Sampling(max_tokens=max_tokens, ignore_eos=True)])
    assert stream.tokens == long_text[:max_tokens]
    assert stream.reason == "length"
    assert max(cluster.counts.depths) < max(max_tokens, 1)  # the last token is never drafted


def test_the_end_of_the_context(long_text: list[int]) -> None:
    plain, drafted, reason = both(Sampling(max_tokens=500, ignore_eos=True), max_model_len=48)
    assert plain == drafted == long_text[: 48 - len(prompts_of(1)[0])]
    assert reason == "length"


def test_a_drafter_with_a_shorter_context_stops_guessing(long_text: list[int]) -> None:
    def short() -> ModelDrafter:
        return ModelDrafter(model(TARGET), max_context=32, batch_invariant=True)

    cluster = LocalCluster(model(TARGET), SELF, drafters=[short], seed=3)
    [stream] = cluster.run(prompts_of(1), [Sampling(max_tokens=60, ignore_eos=True)])
    assert stream.tokens == long_text
    assert 0 < cluster.counts.accepted < 25


@pytest.mark.parametrize(
    ("prompt", "word"), [([], "empty"), ([1] * 600, "context"), ([1, 5000], "vocabulary")], ids=["empty", "long", "id"]
)
def test_a_bad_request_fails_alone(prompt: list[int], word: str, long_text: list[int]) -> None:
    cluster = LocalCluster(model(TARGET), SELF, drafters=[itself], seed=5)
    bad = cluster.client.open("bad", prompt=prompt, sampling=Sampling(max_tokens=5))
    [good] = cluster.run(prompts_of(1), [Sampling(max_tokens=60, ignore_eos=True)])
    assert bad.reason.startswith("error")
    assert word in bad.reason
    assert good.tokens == long_text


def test_nan_logits_fail_one_request_and_keep_what_it_had(
    monkeypatch: pytest.MonkeyPatch, long_text: list[int]
) -> None:
    cluster = LocalCluster(model(TARGET), SELF, drafters=[itself], seed=5)
    forward, seen = cluster.runner.forward, [0]

    def poisoned(rows: list[object]) -> torch.Tensor:
        logits = forward(rows).clone()  # type: ignore[arg-type]
        seen[0] += 1
        if seen[0] == 6:
            logits[: rows[0].num_logits] = torch.nan  # type: ignore[attr-defined]
        return logits

    monkeypatch.setattr(cluster.runner, "forward", poisoned)
    prompt = prompts_of(1)[0]
    sampling = Sampling(max_tokens=60, ignore_eos=True)
    bad, good = cluster.run([prompt, prompt], [sampling, sampling])
    assert "nan" in bad.reason.lower()
    assert bad.tokens == long_text[: len(bad.tokens)]
    assert len(bad.tokens) > 0
    assert good.tokens == long_text
    assert cluster.counts.accepted > 0


def test_abort_in_the_middle_of_a_step(long_text: list[int]) -> None:
    cluster = LocalCluster(model(TARGET), SELF, drafters=[itself], seed=5)
    sampling = Sampling(max_tokens=60, ignore_eos=True)
    prompt = prompts_of(1)[0]
    doomed = cluster.client.open("doomed", prompt=prompt, sampling=sampling)
    kept = cluster.client.open("kept", prompt=prompt, sampling=sampling)
    for _ in range(4):
        cluster.step_target()
        step_drafter(cluster.drafters[0])
        cluster.client.poll(timeout_s=0.0)
    cluster.target.receive(clock=lambda: 0.0)
    plan = cluster.target.begin(now=0.0)
    assert isinstance(plan, Plan)
    assert len(plan.rows) == 2
    cluster.client.abort(doomed)
    cluster.target.receive(clock=lambda: 0.0)
    cluster.target.finish(plan, now=0.0)
    cluster.finish()
    assert doomed.reason == "abort"
    assert doomed.tokens == long_text[: len(doomed.tokens)]
    assert kept.tokens == long_text
    assert cluster.session.scheduler.blocks.num_free == cluster.session.scheduler.blocks.num_blocks


def test_resume_with_what_was_generated(long_text: list[int]) -> None:
    """A frontend that re-opens its request elsewhere, with the ids it has, gets the same text."""
    cluster = LocalCluster(model(TARGET), SELF, drafters=[itself], seed=5)
    prompt = prompts_of(1)[0]
    for temperature in (0.0, 0.8):
        sampling = Sampling(temperature=temperature, seed=3, max_tokens=40, ignore_eos=True)
        [whole] = LocalCluster(model(TARGET), PLAIN).run([prompt], [sampling])
        stream = cluster.client.open(f"again{temperature}", prompt=prompt, sampling=sampling)
        cluster.client.streams.clear()
        stream.prefix.extend(whole.tokens[:13])
        stream.tokens.extend(whole.tokens[:13])
        stream.generation = 1
        cluster.client.streams[stream.request, 1] = stream
        cluster.client.transport.send("leader", stream.opening())
        cluster.finish()
        assert stream.tokens == whole.tokens


def test_late_joiner_catches_up(long_text: list[int]) -> None:
    cluster = LocalCluster(model(TARGET), SELF, drafters=[itself], seed=5)
    late = cluster.drafters.pop()
    stream = cluster.client.open("r", prompt=prompts_of(1)[0], sampling=Sampling(max_tokens=60, ignore_eos=True))
    while len(stream.tokens) < 20:
        cluster.step_target()
        cluster.client.poll(timeout_s=0.0)
    before = cluster.counts.accepted
    cluster.drafters.append(late)
    cluster.finish()
    assert stream.tokens == long_text
    assert before == 0
    assert cluster.counts.accepted > 0
    assert np.isfinite(cluster.session.price.tokens_per_s)
