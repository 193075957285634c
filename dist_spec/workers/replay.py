"""Runs recorded state machines again, in memory, from the order of their inputs, and demands the same decisions.

The workers' own step functions are driven by the recorded events; messages between recorded machines are made again by
their senders, those from outside are taken from the record. It knows no clock, socket or model: the caller builds the
workers, on the transport and recorder it is handed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dist_spec.core.control.costs import VerifyCost
from dist_spec.core.draft_session import DraftBatch
from dist_spec.core.messages import Message, Open, Propose
from dist_spec.core.plan import Plan, Wait
from dist_spec.core.target_session import Outcome
from dist_spec.core.types import Verdict
from dist_spec.errors import DistSpecError, ProtocolError, RequestError
from dist_spec.transports.base import LEADER, Received, Transport
from dist_spec.transports.ledger import Ledger
from dist_spec.workers.draft import DraftWorker
from dist_spec.workers.record import Event, MessageName, Recorder, name_of, rebuild
from dist_spec.workers.target import TargetWorker

__all__ = ["RecordedTarget", "ReplayError", "Replayed", "replay"]

TargetFactory: TypeAlias = Callable[[Transport, Recorder], TargetWorker]
DraftFactory: TypeAlias = Callable[[Transport, Recorder], DraftWorker]


class ReplayError(DistSpecError):
    """A replay took another course than the record; names the machine, the event and both versions of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """The machines after the last recorded event, with all their counts."""

    target: TargetWorker
    drafters: dict[str, DraftWorker]


def replay(
    records: Mapping[str, Sequence[Event]], *, target: TargetFactory, drafters: Mapping[str, DraftFactory]
) -> Replayed:
    """Replay a run.

    Args:
        records: events by machine: "leader" and every drafter that it heard (one entry per life: "name", "name#2", ...).
        target, drafters: build each machine as it was built for the run, on the given transport and recorder.

    Raises:
        ReplayError: something was decided differently, or a message was consumed that nobody sends.
    """
    post = _Post(_peer_of(machine) for machine in records)
    leader_recorder = Recorder(LEADER)
    leader = target(post.end(LEADER), leader_recorder)
    machines = [_Machine(LEADER, records[LEADER], leader_recorder, _TargetActions(leader, post).act)]
    workers: dict[str, DraftWorker] = {}
    for name, events in records.items():
        if name != LEADER:
            recorder = Recorder(name)
            workers[name] = drafters[name](post.end(_peer_of(name)), recorder)
            machines.append(_Machine(name, events, recorder, _DraftActions(workers[name], post, _peer_of(name)).act))
    while any(machine.event for machine in machines):
        if not any(machine.run(post) for machine in machines):
            stuck = min((m for m in machines if m.event), key=lambda machine: machine.event[1])
            raise ReplayError(f"{stuck.where()}: nobody sends {_brief(stuck.event[3])} to it (from {stuck.event[2]})")
    return Replayed(target=leader, drafters=workers)


def _peer_of(machine: str) -> str:
    return machine.partition("#")[0]


class _Post:
    """Everything that recorded machines sent so far, by sender, receiver and name. Nothing is ever taken out: what was
    duplicated may be read twice, what was lost is never asked for."""

    def __init__(self, peers: Any) -> None:
        self.recorded = frozenset(peers)
        self.sent: dict[tuple[str, str], dict[MessageName, Message]] = {}
        self.inboxes: dict[str, list[Received]] = {}

    def end(self, name: str) -> Transport:
        return _End(self, name)

    def find(self, event: Event, *, receiver: str) -> Message | ProtocolError | None:
        """The message of a `received` event; None while its sender has not come to it yet."""
        _, _, sender, name, full = event
        if name is None:
            return ProtocolError("garbage")
        if sender in self.recorded:
            return self.sent.get((sender, receiver), {}).get(tuple(name))
        return rebuild(name, full)


class _End:
    """A transport of the replay: `receive` gives what the replay put there, `send` keeps what is sent."""

    def __init__(self, post: _Post, name: str) -> None:
        self.ledger = Ledger()
        self._post = post
        self._name = name

    def send(self, peer: str, message: Message) -> None:
        self._post.sent.setdefault((self._name, peer), {})[name_of(message)] = message

    def receive(self, timeout_s: float) -> list[Received]:
        return self._post.inboxes.pop(self._name, [])

    def close(self) -> None:
        """Nothing to give back."""


class _Machine:
    """One machine's events and how far it has come."""

    def __init__(self, name: str, events: Sequence[Event], recorder: Recorder, act: Callable[[Event], bool]) -> None:
        self.name = name
        self._events = events
        self._recorder = recorder
        self._act = act
        self._at = 0

    @property
    def event(self) -> Event:
        """The next event; empty at the end."""
        return self._events[self._at] if self._at < len(self._events) else ()

    def where(self) -> str:
        return f"{self.name}, event {self._at} at {self.event[1]:.6f} s"

    def run(self, post: _Post) -> bool:
        """Go on until the end or a message that is not there yet; whether anything was done."""
        start = self._at
        while self.event:
            if not self._act(self.event):
                break
            fresh = self._recorder.events
            self._recorder.events = []
            if _plain(fresh) != _plain([self.event]):
                raise ReplayError(f"{self.where()}: recorded {_brief(self.event)}, replayed {_brief(fresh)}")
            self._at += 1
        return self._at > start


class _TargetActions:
    """What each kind of event makes the leader do."""

    def __init__(self, worker: TargetWorker, post: _Post) -> None:
        self._worker = worker
        self._post = post
        self._plan: Plan | Wait | None = None

    def act(self, event: Event) -> bool:
        """False: the message is not there yet."""
        kind, now, *rest = event
        worker = self._worker
        match kind:
            case "received":
                return _deliver(self._post, event, worker, receiver=LEADER)
            case "opened":
                message = rebuild(rest[0], rest[1])
                assert isinstance(message, Open)
                worker.open(message, now=now)
            case "measured":
                worker.measured(VerifyCost(**rest[0]), now=now)
            case "selected" | "waited" | "rested":
                self._plan = worker.begin(now=now)
            case "applied" if isinstance(self._plan, Plan):
                plan, self._plan = self._plan, None
                worker.finish(plan, now=now)
            case "ticked":
                worker.tick(now=now)
            case "drained":
                worker.drain(now=now)
            case "gave_back":
                worker.give_back(now=now)
        return True


class _DraftActions:
    """What each kind of event makes a drafter do."""

    def __init__(self, worker: DraftWorker, post: _Post, peer: str) -> None:
        self._worker = worker
        self._post = post
        self._peer = peer
        self._batch: DraftBatch | None = None

    def act(self, event: Event) -> bool:
        """False: the message is not there yet."""
        kind, now, *rest = event
        worker = self._worker
        match kind:
            case "received":
                return _deliver(self._post, event, worker, receiver=self._peer)
            case "started":
                worker.start(now=now)
            case "drafted" | "rested":
                self._batch = worker.begin(now=now)
            case "expanded" if self._batch is not None:
                # Only once: the tree may have moved on since, and an old batch names nodes that are no longer there.
                batch, self._batch = self._batch, None
                worker.finish(batch, now=now, hold=rest[1])
            case "left":
                worker.leave(now=now)
            case "flushed":
                worker.flush(now=now)
            case "ticked":
                worker.tick(now=now, busy_s=rest[0])
            case "planted":
                message = rebuild(rest[0], rest[1])
                assert isinstance(message, Propose)
                assert worker.recorder is not None
                worker.recorder.planted(message, now=now)
                worker.transport.send(LEADER, message)
        return True


def _deliver(post: _Post, event: Event, worker: TargetWorker | DraftWorker, *, receiver: str) -> bool:
    message = post.find(event, receiver=receiver)
    if message is None:
        return False
    post.inboxes[receiver] = [(event[2], message)]
    worker.receive(clock=lambda: event[1])
    return True


class RecordedTarget:
    """A backend that repeats the recorded verdicts, for replays without the model."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._verdicts = {event[2]: event[3] for event in events if event[0] == "applied"}

    def launch(self, plan: Plan) -> None:
        """Nothing to run."""

    def collect(self, plan: Plan) -> list[Outcome]:
        """What the target said in this step.

        Raises:
            ReplayError: the record ends before.
        """
        verdicts = self._verdicts.get(plan.step)
        if verdicts is None:
            raise ReplayError(f"step {plan.step} has no verdict in the record")
        return [_outcome(one) for one in verdicts]


def _outcome(recorded: Any) -> Outcome:
    if recorded is None:
        return None
    if isinstance(recorded, str):
        return RequestError(recorded)
    path, tokens = recorded
    return Verdict(path=tuple(path), token=tokens[-1], tokens=tuple(tokens))


def _plain(events: Sequence[Event]) -> Any:
    """As a record on disk has them; floats survive exactly."""
    return json.loads(json.dumps(events))


def _brief(thing: Any) -> str:
    text = json.dumps(thing)
    return text if len(text) <= 200 else f"{text[:197]}..."
