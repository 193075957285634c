"""A whole cluster on virtual time: the real sessions and worker steps, simulated devices, links and faults.

It adds no decision of its own: it only says when a step ends, when a message arrives and what breaks.
"""

from __future__ import annotations

import numpy as np

from dist_spec.core.draft_session import DraftBatch
from dist_spec.core.messages import Open
from dist_spec.core.plan import Plan, Wait
from dist_spec.core.types import Sampling
from dist_spec.sim.build import build_draft, build_target, machine_name
from dist_spec.sim.clock import Clock
from dist_spec.sim.garbage import GarbageSource
from dist_spec.sim.network import Network
from dist_spec.sim.scenario import Fault, FaultKind, Result, Scenario, truths_of
from dist_spec.transports.base import LEADER
from dist_spec.workers.record import Recorder

__all__ = ["Cluster", "simulate"]


class Cluster:
    """Target leader, drafters and one caller in process that opens all requests at time 0."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clock = Clock()
        self.network = Network(self.clock, link=scenario.link, seed=scenario.network_seed)
        self.truths = truths_of(scenario)
        self.records: dict[str, Recorder] = {}
        self.target = SimTarget(self)
        self.drafters = {f"drafter{i}": SimDrafter(self, f"drafter{i}") for i in range(scenario.num_drafters)}

    def run(self) -> Result:
        """Run to the end of all requests (or the limit of virtual time)."""
        scenario, clock = self.scenario, self.clock
        for drafter in self.drafters.values():
            drafter.start()
        for fault in scenario.faults:
            self._schedule(fault)
        clock.at(0.0, self._open)
        finished = clock.run(until=self._done, limit_s=scenario.limit_s)
        texts = [self.target.texts.get(key, []) for key in self.truths]
        wanted = [truth[scenario.prompt_length :][: scenario.num_tokens] for truth in self.truths.values()]
        return Result(
            finished=finished,
            correct=texts == wanted,
            seconds=clock.now,
            wait_s=self.target.wait_s,
            counts=self.target.worker.session.counts,
            texts=texts,
            records=self.records,
        )

    def _schedule(self, fault: Fault) -> None:
        self.clock.at(fault.at_s, lambda: self.drafters[fault.drafter].suffer(fault.kind))

    def _open(self) -> None:
        scenario = self.scenario
        for (request, generation), truth in self.truths.items():
            prompt = np.array(truth[: scenario.prompt_length], np.int32)
            sampling = Sampling(max_tokens=scenario.num_tokens, ignore_eos=True)
            message = Open(request=request, generation=generation, prompt=prompt, sampling=sampling)
            self.target.worker.open(message, now=self.clock.now)
        self.target.poll()

    def _done(self) -> bool:
        return len(self.target.texts) == len(self.truths) and self.target.worker.session.idle

    def recorder(self, machine: str) -> Recorder | None:
        return self.records.setdefault(machine, Recorder(machine)) if self.scenario.record else None


class SimTarget:
    """The leader's loop on virtual time: busy while a verification runs, waiting when the session says so."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.worker = build_target(
            cluster.scenario,
            cluster.truths,
            transport=cluster.network.attach(LEADER, self.poll),
            recorder=cluster.recorder(LEADER),
        )
        if cluster.scenario.speculation.adaptive:
            self.worker.measured(cluster.scenario.costs(), now=cluster.clock.now)
        self.texts: dict[tuple[str, int], list[int]] = {}
        self.wait_s = 0.0
        self._busy = False
        self._waiting_since: float | None = None
        self._alarm = 0
        cluster.clock.at(cluster.scenario.heartbeat_s, self._tick)

    def poll(self, alarm: int | None = None) -> None:
        """Go on unless a verification is running; stale alarms of earlier waits are ignored."""
        if self._busy or (alarm is not None and alarm != self._alarm):
            return
        clock = self.cluster.clock
        self.worker.receive(clock=lambda: clock.now)
        plan = self.worker.begin(now=clock.now)
        self._alarm += 1
        if isinstance(plan, Wait):
            self._waiting_since = clock.now if self._waiting_since is None else self._waiting_since
            number = self._alarm
            clock.at(plan.until_s, lambda: self.poll(number))
        elif isinstance(plan, Plan):
            if self._waiting_since is not None:
                self.wait_s += clock.now - self._waiting_since
                self._waiting_since = None
            self._busy = True
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
        self._busy_s = 0.0
        self._life = 0
        self._busy = False
        self._garbage = GarbageSource(f"{cluster.scenario.seed}-{name}", vocab_size=cluster.scenario.vocab_size)
        self._parked: DraftBatch | None = None

    def start(self) -> None:
        cluster = self.cluster
        self.alive, self._stopped, self._busy, self._parked, self._busy_s = True, False, False, None, 0.0
        self._life += 1
        machine = machine_name(self.name, self._life)
        self.worker = build_draft(
            cluster.scenario,
            cluster.truths,
            machine=machine,
            transport=cluster.network.attach(self.name, self.poll),
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
            scenario = self.cluster.scenario
            step_s = scenario.times.draft(batch.num_leaves) * scenario.slow.get(self.name, 1.0)
            self._busy_s += step_s
            clock.at(clock.now + step_s, lambda: self._drafted(batch, life))

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
            self.worker.tick(now=self.cluster.clock.now, busy_s=self._busy_s)
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
        if not self.alive:
            return
        live = self.cluster.target.worker.session.live
        for message in self._garbage.about(one.sequence for one in live.values()):
            if self.worker.recorder is not None:
                self.worker.recorder.planted(message, now=self.cluster.clock.now)
            self.worker.transport.send(LEADER, message)


def simulate(scenario: Scenario) -> Result:
    """Run one scenario."""
    return Cluster(scenario).run()
