"""Leader and drafters with real (tiny) models in one thread, over the in-process transport; a seed decides who runs next."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

import numpy as np

from dist_spec.core.admission import FeatureFacts, TargetFacts
from dist_spec.core.attachment import Attachment
from dist_spec.core.block_manager import BlockManager
from dist_spec.core.counts import SessionCounts
from dist_spec.core.draft_session import DraftSession
from dist_spec.core.membership import Membership
from dist_spec.core.messages import Hello
from dist_spec.core.plan import Plan
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.settings import Speculation
from dist_spec.core.target_session import TargetSession
from dist_spec.core.types import Sampling
from dist_spec.drafters.base import Drafter
from dist_spec.models.loading import LoadedModel
from dist_spec.models.runner import ModelRunner
from dist_spec.server.client import Client, Stream
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.inproc import InprocHub
from dist_spec.workers.draft import DraftWorker
from dist_spec.workers.model_backend import ModelBackend
from dist_spec.workers.target import TargetWorker

PLAIN = Speculation(budget=0)


class LocalCluster:
    """The workers' own steps, interleaved at random (but for one seed always alike)."""

    def __init__(
        self,
        loaded: LoadedModel,
        settings: Speculation,
        *,
        drafters: Sequence[Callable[[], Drafter]] = (),
        local: Mapping[str, Drafter] | None = None,
        max_sequences: int = 4,
        max_model_len: int = 512,
        batch_invariant: bool = True,
        eos_ids: tuple[int, ...] = (),
        decode: Callable[[Sequence[int]], str] | None = None,
        seed: int = 0,
        rule: str = "auto",
    ) -> None:
        self.random = random.Random(seed)
        self.hub = InprocHub()
        blocks = BlockManager(max_sequences * (max_model_len // 16 + 2), block_size=16)
        self.session = TargetSession(
            settings,
            facts=TargetFacts(
                max_model_len=max_model_len,
                vocab_size=loaded.vocab_size,
                eos_ids=eos_ids,
                decode=decode,
                features=FeatureFacts(
                    hidden_size=loaded.config.hidden_size, num_layers=loaded.config.num_hidden_layers
                ),
            ),
            scheduler=Scheduler(blocks, max_sequences=max_sequences, lookahead=settings.budget + 1),
            membership=Membership(heartbeat_s=1e6, dead_after_s=1e9),  # nobody dies here, however long a step takes
        )
        self.runner = ModelRunner(loaded, num_blocks=blocks.num_blocks, block_size=16, batch_invariant=batch_invariant)
        backend = ModelBackend(
            self.runner,
            vocab_size=loaded.vocab_size,
            rule=rule,
            noise_rows=64,
            with_margin=not batch_invariant,
            eos_ids=eos_ids,
            timeline=Timeline(monotonic),
        )
        self.target = TargetWorker(self.session, backend=backend, transport=self.hub.leader(), local=local)
        self.drafters = [self._draft_worker(settings, make(), name=f"d{i}") for i, make in enumerate(drafters)]
        for worker in self.drafters:
            worker.start(now=monotonic())
        self.client = Client(self.hub.connect("frontend"), name="frontend")

    def _draft_worker(self, settings: Speculation, drafter: Drafter, *, name: str) -> DraftWorker:
        hello = Hello(role="drafter", name=name, kind=drafter.kind, features=getattr(drafter, "wish", None))
        return DraftWorker(
            DraftSession(settings),
            drafter=drafter,
            transport=self.hub.connect(name),
            attachment=Attachment(hello),
        )

    @property
    def counts(self) -> SessionCounts:
        return self.session.counts

    def run(self, prompts: Sequence[Sequence[int]], samplings: Sequence[Sampling]) -> list[Stream]:
        """Decode all prompts together; returns their streams in order."""
        streams = [
            self.client.open(f"r{i}", prompt=prompt, sampling=sampling)
            for i, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
        ]
        self.finish()
        return streams

    def finish(self, *, steps: int = 20_000) -> None:
        """Step at random until no request is open."""
        for _ in range(steps):
            self.client.poll(timeout_s=0.0)
            if not self.client.streams:
                return
            who = self.random.randrange(len(self.drafters) + 1)
            if who == 0:
                self.step_target()
            else:
                step_drafter(self.drafters[who - 1])
        raise AssertionError("the cluster did not finish")

    def step_target(self) -> None:
        self.target.receive(clock=monotonic)
        plan = self.target.begin(now=monotonic())
        if isinstance(plan, Plan):
            self.target.finish(plan, now=monotonic())


def step_drafter(worker: DraftWorker) -> None:
    worker.receive(clock=monotonic)
    batch = worker.begin(now=monotonic())
    if batch is not None:
        worker.finish(batch, now=monotonic())


def prompts_of(count: int, *, length: int = 12, vocab: int = 250, seed: int = 3) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(0, vocab, length + 3 * i).tolist() for i in range(count)]
