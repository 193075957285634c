"""The rejection rule with models: real forwards, the model drafter's laws, and (slow) real processes."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import replace
from functools import cache
from time import monotonic

import numpy as np
import pytest
import torch

from dist_spec.bench.deployment import Deployment
from dist_spec.config import Config, parse_config
from dist_spec.core.settings import Speculation
from dist_spec.core.types import Sampling
from dist_spec.drafters.draw import LawSettings
from dist_spec.drafters.model import ModelDrafter
from dist_spec.drafters.ngram import NgramDrafter
from dist_spec.errors import ConfigError
from dist_spec.models.loading import LoadedModel
from dist_spec.telemetry.timeline import Timeline
from dist_spec.workers.draft_app import build_draft
from dist_spec.workers.record import load_events
from dist_spec.workers.replay import replay
from dist_spec.workers.target_build import build_target, load_target
from tests.integration.local_cluster import PLAIN, LocalCluster, prompts_of
from tests.unit.model_cases import stock_logits, tiny

TARGET = "llama?seed=1"
TEMPERATURE = 0.8
LAWS = {"sparse": LawSettings(size=128), "dense": LawSettings(dense=True)}


@cache
def small() -> LoadedModel:
    """The target with every weight a little off."""
    target = tiny(TARGET)
    model = deepcopy(target.model)
    torch.manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.06 * weight.std() * torch.randn_like(weight)
    return replace(target, model=model, lean=None)


def chains(delivery: str = "push", growth: str = "optimistic") -> Speculation:
    return Speculation(
        growth=growth,  # type: ignore[arg-type]
        delivery=delivery,  # type: ignore[arg-type]
        verify_shape="chain",
        budget=12,
        num_draft_tokens=4,
        blind=True,
    )


def samplings(count: int, **changes: object) -> list[Sampling]:
    return [
        replace(Sampling(temperature=TEMPERATURE, seed=40 + i, max_tokens=48, ignore_eos=True), **changes)
        for i in range(count)
    ]


def overlap(target: LoadedModel, drafter: LoadedModel, text: list[int], first: int) -> float:
    """Mean of sum min(p, q) over the generated positions: the acceptance of a first draft."""
    rows = [torch.softmax(stock_logits(one, text).double() / TEMPERATURE, dim=-1) for one in (target, drafter)]
    return float(torch.minimum(*rows)[first - 1 : -1].sum(-1).mean())


@pytest.mark.parametrize("laws", LAWS)
@pytest.mark.parametrize("settings", [chains(), chains("pull", "none")], ids=["optimistic/push", "none/pull"])
def test_four_requests_finish_and_are_accepted_as_often_as_the_models_agree(laws, settings):
    target, drafter = tiny(TARGET), small()
    cluster = LocalCluster(
        target,
        settings,
        drafters=[lambda: ModelDrafter(drafter, max_context=128, laws=LAWS[laws])],
        rule="rejection",
    )
    prompts = prompts_of(4)
    streams = cluster.run(prompts, samplings(4))
    assert [len(stream.tokens) for stream in streams] == [48] * 4
    assert cluster.counts.accepted > 20
    tried, accepted = (cluster.counts.tree_depths[1][place] for place in (1, 2))
    expected = np.mean(
        [
            overlap(target, drafter, [*prompt, *stream.tokens], len(prompt))
            for prompt, stream in zip(prompts, streams, strict=True)
        ]
    )
    assert abs(accepted / tried - expected) < 0.15, (accepted / tried, expected)
    if laws == "dense":
        assert cluster.target.backend.rejections.num_rejected > 0
    assert cluster.target.backend.rejections.num_fallbacks == 0


def test_a_drafter_that_is_the_target_is_accepted_nearly_always():
    target = tiny(TARGET)
    cluster = LocalCluster(
        target,
        chains(),
        drafters=[lambda: ModelDrafter(target, max_context=128, batch_invariant=True, laws=LAWS["dense"])],
        rule="rejection",
    )
    cluster.run(prompts_of(4), samplings(4))
    assert cluster.counts.accepted > 0.99 * cluster.counts.verified > 0


def test_with_drafting_off_the_text_is_that_of_the_coupled_rule():
    target = tiny(TARGET)
    texts = [
        [stream.tokens for stream in LocalCluster(target, PLAIN, rule=rule).run(prompts_of(4), samplings(4))]
        for rule in ("rejection", "coupled")
    ]
    assert texts[0] == texts[1]


def test_at_temperature_zero_the_text_is_the_greedy_one():
    target, drafter = tiny(TARGET), small()
    greedy = samplings(4, temperature=0.0)
    plain = LocalCluster(target, PLAIN).run(prompts_of(4), greedy)
    drafted = LocalCluster(
        target,
        chains(),
        drafters=[lambda: ModelDrafter(drafter, max_context=128, laws=LAWS["sparse"])],
        rule="rejection",
    ).run(prompts_of(4), greedy)
    assert [stream.tokens for stream in drafted] == [stream.tokens for stream in plain]


def test_a_truncated_target_is_never_left():
    """top-k and a ban at the target; the drafter truncates its own law."""
    target, drafter = tiny(TARGET), small()
    banned = 17
    cluster = LocalCluster(
        target,
        chains(),
        drafters=[lambda: ModelDrafter(drafter, max_context=128, laws=LAWS["sparse"])],
        rule="rejection",
    )
    prompts = prompts_of(2)
    streams = cluster.run(prompts, samplings(2, top_k=20, bad_words=((banned,),)))
    for prompt, stream in zip(prompts, streams, strict=True):
        logits = stock_logits(target, [*prompt, *stream.tokens])[len(prompt) - 1 : -1].clone()
        logits[:, banned] = -torch.inf
        rank = (logits > logits.gather(1, torch.tensor(stream.tokens)[:, None])).sum(1)
        assert int(rank.max()) < 20
        assert banned not in stream.tokens
    assert cluster.counts.accepted > 0


def test_a_lookup_drafter_is_a_point_mass():
    target = tiny(TARGET)
    prompts = [prompt * 3 for prompt in prompts_of(2)]
    cluster = LocalCluster(
        target, chains(), drafters=[lambda: NgramDrafter(max_ngram=2, num_draft_tokens=3)], rule="rejection"
    )
    streams = cluster.run(prompts, samplings(2))
    assert [len(stream.tokens) for stream in streams] == [48] * 2
    assert cluster.counts.verified > 0


def config(**changes: object) -> Config:
    data: dict[str, object] = {
        "target": {"model": f"random:{TARGET}", "dtype": "float32", "max_model_len": 256, "threads": 1},
        "drafters": [
            {"kind": "model", "name": "small", "model": f"random:{TARGET}", "dtype": "bfloat16", "num_draft_tokens": 2}
        ],
        "speculation": {"growth": "none", "delivery": "pull", "verify_shape": "chain", "budget": 8},
        "verification": {"rule": "rejection"},
    }
    return parse_config(data | changes)


@pytest.mark.slow
@pytest.mark.parametrize("law", ["sparse", "dense"])
def test_as_real_processes(law):
    with Deployment("rejection", config(verification={"rule": "rejection", "draft_law": law})) as deployment:
        deployment.wait_ready()
        streams = [
            deployment.client.open(f"r{i}", prompt=prompt, sampling=sampling)
            for i, (prompt, sampling) in enumerate(zip(prompts_of(4), samplings(4, max_tokens=150), strict=True))
        ]
        while any(not stream.reason for stream in streams):
            deployment.client.poll(timeout_s=0.5)
            deployment.check()
        assert [stream.reason for stream in streams] == ["length"] * 4
        assert sum(stream.stats["accepted"] for stream in streams) > 0


NGRAM = {"kind": "ngram", "name": "lookup"}
SMALL = {"kind": "model", "name": "small", "model": "random:llama"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"speculation": {}}, "best_first"),
        ({"speculation": {"growth": "fan_out", "delivery": "pull", "verify_shape": "chain"}}, "fan_out"),
        ({"speculation": {"growth": "optimistic"}}, "verify_shape"),
        ({"drafters": [SMALL, NGRAM]}, "law 5"),
        ({"drafters": [SMALL, {**NGRAM, "placement": "leader"}]}, "law 5"),
    ],
)
def test_settings_that_would_look_at_drafted_tokens_are_refused(changes, named):
    with pytest.raises(ConfigError, match=named):
        config(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"drafters": []},
        {"drafters": [NGRAM]},
        {"drafters": [{**NGRAM, "placement": "leader"}]},
        {"speculation": {"growth": "none", "delivery": "pull", "verify_shape": "chain"}},
        {"speculation": {"growth": "optimistic", "verify_shape": "chain", "on_miss": "wait"}},
        {"speculation": {"budget": 0}},
        {"verification": {"rule": "coupled"}, "speculation": {}},
    ],
)
def test_settings_that_do_not_look_are_taken(changes):
    config(**changes)


@pytest.mark.slow
def test_a_recorded_run_replays_with_its_laws(tmp_path):
    """The text depends on what was drafted and when it came: the record must bring both back."""
    settings = config(telemetry={"record": str(tmp_path / "run")})
    with Deployment("record", settings) as deployment:
        deployment.wait_ready()
        streams = [
            deployment.client.open(f"r{i}", prompt=prompt, sampling=sampling)
            for i, (prompt, sampling) in enumerate(zip(prompts_of(2), samplings(2), strict=True))
        ]
        while any(not stream.reason for stream in streams):
            deployment.client.poll(timeout_s=0.5)
            deployment.check()
        told = deployment.client.last_stats
    loaded = load_target(settings, log=logging.getLogger("test"))
    replayed = replay(
        {machine: load_events(tmp_path / f"run.{machine}.jsonl")[1] for machine in ("leader", "small")},
        target=lambda transport, recorder: build_target(
            settings, loaded, transport=transport, timeline=Timeline(monotonic, per_step=()), recorder=recorder
        ),
        drafters={
            "small": lambda transport, recorder: build_draft(
                settings, name="small", transport=transport, recorder=recorder
            )[0]
        },
    )
    counts = replayed.target.session.counts
    names = ("steps", "drafted", "verified", "accepted", "committed")
    assert [getattr(counts, name) for name in names] == [int(told[f"session_{name}"]) for name in names]
    assert counts.accepted > 0
