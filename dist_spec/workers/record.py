"""Records, per state machine, the order in which it consumed its inputs, so that a run can be replayed exactly.

A record is a list of small tuples; message contents are not stored (the other machine's replay makes them again), only
their names. It decides nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

from dist_spec.core.draft_session import DraftBatch
from dist_spec.core.messages import Bye, Close, Commit, Hello, Message, Need, Open, Ping, Propose
from dist_spec.core.plan import Plan, Wait

MessageName: TypeAlias = tuple[Any, ...]
Event: TypeAlias = tuple[Any, ...]


def name_of(message: Message) -> MessageName:
    """What identifies a message among those its sender sends: its kind and the prefix (or serial) it speaks of."""
    match message:
        case Propose():
            return ("propose", message.request, message.generation, message.serial)
        case Commit():
            return ("commit", message.request, message.generation, message.base_length, len(message.tokens))
        case Open():
            return ("open", message.request, message.generation, len(message.prompt) + len(message.generated))
        case Need():
            return ("need", message.request, message.generation, message.have_length)
        case Close():
            return ("close", message.request, message.generation)
        case Hello():
            return ("hello", message.name)
        case Ping():
            return ("ping", message.progress)
        case Bye():
            return ("bye", message.reason)


class Recorder:
    """Collects events of one state machine; `save` writes them as JSON lines."""

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self.events: list[Event] = []

    def received(self, peer: str, message: Message, *, now: float) -> None:
        self.events.append(("received", now, peer, *name_of(message)))

    def selected(self, plan: Plan | Wait | None, *, now: float) -> None:
        if isinstance(plan, Plan):
            self.events.append(("selected", now, plan.step, plan.budget, plan.price, plan.num_nodes))
        elif isinstance(plan, Wait):
            self.events.append(("waited", now, plan.until_s))

    def applied(self, plan: Plan, *, now: float) -> None:
        self.events.append(("applied", now, plan.step))

    def ticked(self, *, now: float) -> None:
        self.events.append(("ticked", now))

    def drafted(self, batch: DraftBatch, *, now: float) -> None:
        self.events.append(("drafted", now, batch.num_leaves))

    def save(self, path: Path) -> None:
        lines = [json.dumps({"machine": self.machine, "version": 1}), *(json.dumps(event) for event in self.events)]
        path.write_text("\n".join(lines) + "\n")


def load_events(path: Path) -> tuple[str, list[Event]]:
    """Read back what `Recorder.save` wrote: the machine's name and its events."""
    head, *rest = path.read_text().splitlines()
    return json.loads(head)["machine"], [tuple(json.loads(line)) for line in rest]
