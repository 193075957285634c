"""A whole cluster on virtual time: the real sessions and worker steps, simulated devices, links and faults.

It adds no decision of its own: it only says when a step ends, when a message arrives and what breaks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from dist_spec.core.admission import TargetFacts
from dist_spec.core.attachment import Attachment
from dist_spec.core.block_manager import BlockManager
from dist_spec.core.draft_session import DraftBatch, DraftSession
from dist_spec.core.membership import Membership
from dist_spec.core.messages import Hello, Open, Propose
from dist_spec.core.plan import Plan, Wait
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.settings import Speculation
from dist_spec.core.target_session import TargetSession
from dist_spec.core.types import Sampling
from dist_spec.drafters.base import Drafter
from dist_spec.drafters.scripted import RankLaw, ScriptedDrafter
from dist_spec.sim.clock import Clock
from dist_spec.sim.devices import DeviceTimes, ScriptedTarget
from dist_spec.sim.network import LEADER, Link, Network
from dist_spec.workers.draft import DraftWorker
from dist_spec.workers.record import Recorder
from dist_spec.workers.target import TargetWorker

FaultKind: TypeAlias = Literal["crash", "restart", "stop", "resume", "cut", "heal", "garbage"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Something that happens to one drafter at a moment of virtual time.

    crash loses all state, restart begins anew; stop and resume freeze it in place; cut and heal the link; garbage sends
    proposals with wrong prefixes, wild tokens and broken trees.
    """

    at_s: float
    kind: FaultKind
    drafter: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One simulated run; the same scenario always gives the same result."""

    speculation: Speculation = field(default_factory=Speculation)
    law: RankLaw = field(default_factory=lambda: RankLaw(a=0.8, b=0.5))
    times: DeviceTimes = field(default_factory=DeviceTimes)
    link: Link = field(default_factory=Link)
    num_drafters: int = 1
    num_requests: int = 1
    num_tokens: int = 200
    prompt_length: int = 8
    vocab_size: int = 50_000
    seed: int = 1
    faults: tuple[Fault, ...] = ()
    heartbeat_s: float = 0.1
    dead_after_s: float = 0.5
    limit_s: float = 3600.0
    record: bool = False


@dataclass(kw_only=True, slots=True)
class Result:
    """What came out: the texts, whether they are right, and the counts of the run."""

    finished: bool
    correct: bool
    seconds: float
    tokens: int
    steps: int
    drafted: int
    verified: int
    accepted: int
    ready_share: float
    wait_s: float
    texts: list[list[int]]
    records: dict[str, Recorder]

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def acceptance_length(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0


class Cluster:
    """Target leader, drafters and one frontend that opens all requests at time 0."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clock = Clock()
        self.network = Network(self.clock, link=scenario.link, seed=scenario.seed)
        self.truths = _truths(scenario)
        self.records: dict[str, Recorder] = {}
        self.target = SimTarget(self)
        self.drafters = {f"drafter{i}": SimDrafter(self, f"drafter{i}") for i in range(scenario.num_drafters)}

    def run(self) -> Result:
        """Run to the end of all requests (or the limit of virtual time)."""
        scenario, clock = self.scenario, self.clock
        for drafter in self.drafters.values():
            drafter.start()
        for fault in scenario.faults:
            clock.at(fault.at_s, lambda fault=fault: self.drafters[fault.drafter].suffer(fault.kind))  # type: ignore[misc]
        clock.at(0.0, self._open)
        finished = clock.run(until=self._done, limit_s=scenario.limit_s)
        session, texts = self.target.worker.session, self.target.texts
        counts = session.counts
        return Result(
            finished=finished,
            correct=all(texts[key] == self.truths[key][scenario.prompt_length :][: len(texts[key])] for key in texts)
            and (not finished or all(len(text) == scenario.num_tokens for text in texts.values())),
            seconds=clock.now,
            tokens=counts.committed,
            steps=counts.rows,
            drafted=counts.drafted,
            verified=counts.verified,
            accepted=counts.accepted,
            ready_share=counts.ready_rows / counts.rows if counts.rows else 0.0,
            wait_s=self.target.wait_s,
            texts=list(texts.values()),
            records=self.records,
        )

    def _open(self) -> None:
        scenario, session = self.scenario, self.target.worker.session
        for key, truth in self.truths.items():
            prompt = np.array(truth[: scenario.prompt_length], np.int32)
            sampling = Sampling(max_tokens=scenario.num_tokens, ignore_eos=True)
            session.open(Open(request=key[0], generation=key[1], prompt=prompt, sampling=sampling), now=self.clock.now)
        self.target.poll()

    def _done(self) -> bool:
        return len(self.target.texts) == len(self.truths) and self.target.worker.session.idle

    def recorder(self, machine: str) -> Recorder | None:
        return self.records.setdefault(machine, Recorder(machine)) if self.scenario.record else None


class SimTarget:
    """The leader's loop on virtual time: busy while a verification runs, waiting when the session says so."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        scenario = cluster.scenario
        blocks = BlockManager(4096, block_size=16)
        session = TargetSession(
            scenario.speculation,
            facts=TargetFacts(max_model_len=1 << 20, vocab_size=scenario.vocab_size),
            scheduler=Scheduler(blocks, max_sequences=64, lookahead=scenario.speculation.budget + 1),
            membership=Membership(heartbeat_s=scenario.heartbeat_s, dead_after_s=scenario.dead_after_s),
        )
        backend = ScriptedTarget(lambda key: cluster.truths[key])
        self.worker = TargetWorker(
            session,
            backend=backend,
            transport=cluster.network.attach(LEADER, self.poll),
            recorder=cluster.recorder(LEADER),
        )
        self.texts: dict[tuple[str, int], list[int]] = {}
        self.wait_s = 0.0
        self._busy = False
        self._waiting_since: float | None = None
        self._alarm = 0
        cluster.clock.at(scenario.heartbeat_s, self._tick)

    def poll(self, alarm: int | None = None) -> None:
        """Go on unless a verification is running; stale alarms of earlier waits are ignored."""
        if self._busy or (alarm is not None and alarm != self._alarm):
            return
        clock = self.cluster.clock
        self.worker.receive(clock=lambda: clock.now)
        plan = self.worker.begin(now=clock.now)
        if isinstance(plan, Wait):
            self._waiting_since = clock.now if self._waiting_since is None else self._waiting_since
            self._alarm += 1
            number = self._alarm
            clock.at(plan.until_s, lambda: self.poll(number))
        elif isinstance(plan, Plan):
            if self._waiting_since is not None:
                self.wait_s += clock.now - self._waiting_since
                self._waiting_since = None
            self._busy = True
            self._alarm += 1
            clock.at(clock.now + self.cluster.scenario.times.verify(plan.num_tokens), lambda: self._verified(plan))

    def _verified(self, plan: Plan) -> None:
        self._busy = False
        sequences = {row.key: self.worker.session.live[row.key].sequence for row in plan.rows}
        self.worker.finish(plan, now=self.cluster.clock.now)
        for key, sequence in sequences.items():
            if sequence.finish_reason:
                self.texts[key] = sequence.tokens[sequence.prompt_length :]
        self.poll()

    def _tick(self) -> None:
        self.worker.tick(now=self.cluster.clock.now)
        self.cluster.clock.at(self.cluster.clock.now + self.cluster.scenario.heartbeat_s, self._tick)


class SimDrafter:
    """A drafter's loop on virtual time, and what can happen to it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.alive = False
        self._stopped = False
        self._life = 0
        self._busy = False
        self._random = random.Random(f"{cluster.scenario.seed}-{name}")
        self._parked: DraftBatch | None = None

    def start(self) -> None:
        cluster, scenario = self.cluster, self.cluster.scenario
        self.alive, self._stopped, self._busy, self._parked = True, False, False, None
        self._life += 1
        drafter: Drafter = ScriptedDrafter(
            lambda key: cluster.truths[key], law=scenario.law, vocab_size=scenario.vocab_size, seed=scenario.seed
        )
        hello = Hello(role="drafter", name=self.name, kind="scripted", step_s=scenario.times.draft_s)
        machine = self.name if self._life == 1 else f"{self.name}#{self._life}"
        self.worker = DraftWorker(
            DraftSession(scenario.speculation),
            drafter=drafter,
            transport=cluster.network.attach(self.name, self.poll),
            attachment=Attachment(hello, heartbeat_s=scenario.heartbeat_s),
            recorder=cluster.recorder(machine),
        )
        self.worker.start(now=cluster.clock.now)
        self._tick(self._life)

    def poll(self) -> None:
        if self._busy or self._stopped or not self.alive:
            return
        clock = self.cluster.clock
        self.worker.receive(clock=lambda: clock.now)
        batch = self.worker.begin(now=clock.now)
        if batch is not None:
            self._busy = True
            life = self._life
            clock.at(
                clock.now + self.cluster.scenario.times.draft(batch.num_leaves), lambda: self._drafted(batch, life)
            )

    def _drafted(self, batch: DraftBatch, life: int) -> None:
        if life != self._life or not self.alive:
            return
        if self._stopped:
            self._parked = batch
            return
        self._busy = False
        self.worker.finish(batch, now=self.cluster.clock.now)
        self.poll()

    def _tick(self, life: int) -> None:
        if life != self._life or not self.alive:
            return
        if not self._stopped:
            self.worker.tick(now=self.cluster.clock.now)
        self.cluster.clock.at(self.cluster.clock.now + self.cluster.scenario.heartbeat_s, lambda: self._tick(life))

    def suffer(self, kind: FaultKind) -> None:
        """Let a fault happen; one that makes no sense now (resuming a dead drafter) does nothing."""
        match kind:
            case "crash":
                self.alive = False
                self.cluster.network.detach(self.name)
            case "restart":
                if not self.alive:
                    self.start()
            case "stop":
                self._stopped = True
            case "resume":
                self._resume()
            case "cut":
                self.cluster.network.cut.add(self.name)
            case "heal":
                self.cluster.network.cut.discard(self.name)
            case "garbage":
                self._send_garbage()

    def _resume(self) -> None:
        if not (self.alive and self._stopped):
            return
        self._stopped = False
        if self._parked is not None:
            batch, self._parked = self._parked, None
            self._drafted(batch, self._life)
        else:
            self.poll()

    def _send_garbage(self) -> None:
        draw, vocab = self._random, self.cluster.scenario.vocab_size
        for (request, generation), live in list(self.cluster.target.worker.session.live.items()):
            count = draw.randint(0, 40)
            right = draw.random() < 0.5  # a right prefix with wild guesses below it, or a wrong one altogether
            prefix = live.sequence.prefix
            length = len(prefix) if right else draw.randint(0, 2 * len(prefix))
            message = Propose(
                request=request if draw.random() < 0.8 else "nobody",
                generation=generation + (draw.random() < 0.2),
                base_length=length,
                base_digest=prefix.digest if right else draw.getrandbits(64),
                tokens=np.array([draw.randint(0, 2 * vocab) for _ in range(count)], np.int32),
                parents=np.array([draw.randint(-1, i - 1) for i in range(count)], np.int32),
                scores=np.array([-draw.random() for _ in range(count)], np.float32),
            )
            self.worker.transport.send(LEADER, message)


def _truths(scenario: Scenario) -> dict[tuple[str, int], list[int]]:
    draw = np.random.Generator(np.random.Philox(key=[scenario.seed, 77]))
    length = scenario.prompt_length + scenario.num_tokens + 64
    return {(f"r{i}", 0): draw.integers(0, scenario.vocab_size, length).tolist() for i in range(scenario.num_requests)}


def simulate(scenario: Scenario) -> Result:
    """Run one scenario."""
    return Cluster(scenario).run()


def compare(scenarios: Sequence[Scenario]) -> list[Result]:
    """Run several scenarios."""
    return [simulate(scenario) for scenario in scenarios]
