"""Drafters without a model are limited by messages alone: with `lookahead` they send little, and lose nothing by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from dist_spec.config import parse_config
from dist_spec.core.admission import TargetFacts
from dist_spec.core.attachment import Attachment
from dist_spec.core.block_manager import BlockManager
from dist_spec.core.draft_session import DraftSession
from dist_spec.core.membership import Membership
from dist_spec.core.messages import Hello, Open
from dist_spec.core.plan import Plan
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.settings import Speculation
from dist_spec.core.target_session import TargetSession
from dist_spec.core.types import Sampling
from dist_spec.drafters.base import Drafter
from dist_spec.drafters.ngram import NgramDrafter
from dist_spec.drafters.suffix import SuffixDrafter
from dist_spec.sim.devices import ScriptedTarget
from dist_spec.transports.inproc import InprocHub, InprocTransport
from dist_spec.workers.draft import DraftWorker
from dist_spec.workers.settings import speculation_of
from dist_spec.workers.target import TargetWorker

BUDGET = 8
PROMPT = 200
TOKENS = 300


def settings(kind: str) -> Speculation:
    config = parse_config(
        {"target": {"model": "m"}, "drafters": [{"kind": kind, "name": "d"}], "speculation": {"budget": BUDGET}}
    )
    return speculation_of(config, config.drafter("d"))


def text_of(kind: str) -> list[int]:
    """Periodic: one phrase for ever. Returning: long phrases come back. Mixed: short phrases and much that is new."""
    random = np.random.default_rng(7)
    low, high, known, share = {"periodic": (90, 91, 1, 1.0), "returning": (60, 90, 3, 0.97), "mixed": (3, 9, 20, 0.6)}[
        kind
    ]
    phrases = [random.integers(0, 900, random.integers(low, high)).tolist() for _ in range(known)]
    text: list[int] = [token for phrase in phrases for token in phrase]
    while len(text) < PROMPT + TOKENS + 64:
        text += phrases[random.integers(known)] if random.random() < share else random.integers(0, 900, 3).tolist()
    return text


@dataclass(kw_only=True, slots=True)
class Ran:
    acceptance_length: float
    mean_ready_depth: float
    bytes_per_token: float
    messages_per_token: float


def run(make: Callable[[], Drafter], speculation: Speculation, text: list[int]) -> Ran:
    """One verification after the other; the drafter does all it has to do during each, knowing of those before it."""
    hub = InprocHub()
    session = TargetSession(
        Speculation(budget=BUDGET, num_draft_tokens=speculation.num_draft_tokens),
        facts=TargetFacts(max_model_len=1 << 20, vocab_size=1000),
        scheduler=Scheduler(BlockManager(256, block_size=16), max_sequences=1, lookahead=BUDGET + 1),
        membership=Membership(dead_after_s=1e9),
    )
    target = TargetWorker(session, backend=ScriptedTarget(lambda key: text), transport=hub.leader())
    drafter = DraftWorker(
        DraftSession(speculation),
        drafter=make(),
        transport=hub.connect("d"),
        attachment=Attachment(Hello(role="drafter", name="d")),
    )
    drafter.start(now=0.0)
    target.receive(clock=lambda: 0.0)
    sampling = Sampling(max_tokens=TOKENS, ignore_eos=True)
    target.open(Open(request="r", generation=0, prompt=np.array(text[:PROMPT], np.int32), sampling=sampling), now=0.0)
    depths, now = [], 0.0
    while isinstance(plan := target.begin(now=now), Plan):
        depths += [row.ready_depth for row in plan.rows if row.final]
        draft(drafter, now=now)
        now += 0.02
        target.finish(plan, now=now)
        target.receive(clock=lambda at=now: at)
    ends = (drafter.transport, target.transport)
    return Ran(
        acceptance_length=session.counts.committed / session.counts.rows,
        mean_ready_depth=float(np.mean(depths)),
        bytes_per_token=sum(row.num_bytes for end in ends for row in sent(end)) / TOKENS,
        messages_per_token=sum(row.messages for row in sent(ends[0])) / TOKENS,
    )


def draft(worker: DraftWorker, *, now: float) -> None:
    """As the drafter's loop does it with cheap steps: the first is published at once, the others together."""
    worker.receive(clock=lambda: now)
    steps = 0
    while (batch := worker.begin(now=now)) is not None:
        worker.finish(batch, now=now, hold=steps > 0)
        steps += 1
    if steps > 1:
        worker.flush(now=now)


def sent(end: object) -> list:
    assert isinstance(end, InprocTransport)
    return [row for row in end.ledger.rows() if row.direction == "out"]


MAKERS = {"ngram": NgramDrafter, "suffix": SuffixDrafter}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("text", ["periodic", "returning", "mixed"])
def test_few_bytes_and_nothing_lost(kind: str, text: str) -> None:
    script = text_of(text)
    speculation = settings(kind)
    assert speculation.lookahead > 0
    little = run(MAKERS[kind], speculation, script)
    all_there_is = run(MAKERS[kind], replace(speculation, lookahead=0, num_leaves=8), script)
    assert little.acceptance_length >= 0.98 * all_there_is.acceptance_length > 1.2
    assert little.bytes_per_token < 100
    assert little.bytes_per_token <= all_there_is.bytes_per_token
    assert little.messages_per_token < 1


@pytest.mark.parametrize("kind", MAKERS)
def test_periodic_text_always_finds_a_tree_as_deep_as_the_budget(kind: str) -> None:
    ran = run(MAKERS[kind], settings(kind), text_of("periodic"))
    assert ran.mean_ready_depth > 0.9 * BUDGET  # but for the first step, before which nothing could be drafted
    assert ran.acceptance_length > 0.9 * (BUDGET + 1)
