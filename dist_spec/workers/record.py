"""Records, per state machine, the order in which it consumed its inputs, so that a run can be replayed exactly.

A record is a list of small tuples. What one recorded machine sent to another is stored by name only (the sender's replay
makes it again); what comes from outside, such as the requests, is stored in full. It decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dist_spec.core.control.costs import VerifyCost
from dist_spec.core.draft_session import DraftBatch
from dist_spec.core.messages import (
    Bye,
    Close,
    Commit,
    Features,
    Forget,
    Hello,
    Link,
    Message,
    Need,
    Open,
    Ping,
    Propose,
)
from dist_spec.core.plan import Plan, Wait
from dist_spec.core.target_session import Outcome
from dist_spec.core.types import Sampling, Verdict
from dist_spec.errors import ProtocolError

MessageName: TypeAlias = tuple[Any, ...]
Event: TypeAlias = tuple[Any, ...]
"""(kind, now, ...); see the methods of `Recorder`."""

VERSION = 4


def name_of(message: Message) -> MessageName:
    """What tells a message from others of its sender: messages of one sender with equal names are equal, but for the
    figures that a `Close` or `Commit` carries for frontends."""
    match message:
        case Propose():
            size = len(message.tokens)
            return ("propose", message.request, message.generation, message.serial, message.base_length, size)
        case Commit():
            size = len(message.tokens)
            told = (message.base_length, size, message.ask, message.floor, len(message.features))
            return ("commit", message.request, message.generation, *told)
        case Open():
            size = len(message.prompt) + len(message.generated)
            return ("open", message.request, message.generation, size, message.ask)
        case Need():
            return ("need", message.request, message.generation, message.have_length)
        case Close():
            return ("close", message.request, message.generation, message.reason)
        case Hello():
            fields = (message.protocol, message.vocab_size, message.kind, message.step_s)
            return ("hello", message.role, message.name, *fields)
        case Ping():
            clocks = (message.sent_s, message.echo_s, message.share_index, message.share_count)
            return ("ping", message.progress, message.busy_s, message.num_drafters, *clocks)
        case Bye():
            return ("bye", message.reason, message.fatal)
        case Forget():
            return ("forget",)
        case Features():
            return ("features", message.request, message.generation, message.base_length, len(message.rows))
        case Link():
            return ("link", message.state)


def describe(message: Open | Propose) -> list[Any]:
    """All of a message whose name does not say everything, as plain lists."""
    if isinstance(message, Propose):
        columns = (message.tokens.tolist(), message.parents.tolist(), message.scores.tolist())
        return [message.request, message.generation, message.base_length, message.base_digest, *columns, message.serial]
    texts = (message.prompt.tolist(), message.generated.tolist())
    sampling = {key: list(one) if isinstance(one, tuple) else one for key, one in asdict(message.sampling).items()}
    return [message.request, message.generation, *texts, message.generated_offset, sampling]


def rebuild(name: Sequence[Any], full: Sequence[Any] | None = None) -> Message:
    """The message again, from its name and (`Open`, `Propose`) its description.

    Raises:
        ProtocolError: the name alone does not say what the message was.
    """
    kind, *fields = name
    match kind:
        case "need":
            return Need(request=fields[0], generation=fields[1], have_length=fields[2])
        case "close":
            return Close(request=fields[0], generation=fields[1], reason=fields[2])
        case "hello":
            role, peer, protocol, vocab_size, what, step_s = fields
            return Hello(role=role, name=peer, protocol=protocol, vocab_size=vocab_size, kind=what, step_s=step_s)
        case "ping":
            progress, busy_s, num_drafters, sent_s, echo_s, index, count = fields
            shared = {"share_index": index, "share_count": count}
            return Ping(
                progress=progress, busy_s=busy_s, num_drafters=num_drafters, sent_s=sent_s, echo_s=echo_s, **shared
            )
        case "bye":
            return Bye(reason=fields[0], fatal=fields[1])
        case "forget":
            return Forget()
        case "open" if full is not None:
            return _open(full, ask=fields[-1])
        case "propose" if full is not None:
            return _propose(full)
    raise ProtocolError(f"a recorded {kind} {tuple(fields)} has no content, and no record of its sender is at hand")


def _open(full: Sequence[Any], *, ask: bool) -> Open:
    request, generation, prompt, generated, offset, sampling = full
    fields: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in sampling.items()}
    return Open(
        request=request,
        generation=generation,
        prompt=np.array(prompt, np.int32),
        generated=np.array(generated, np.int32),
        generated_offset=offset,
        sampling=Sampling(**fields),
        ask=ask,
    )


def _propose(full: Sequence[Any]) -> Propose:
    request, generation, base_length, base_digest, tokens, parents, scores, serial = full
    return Propose(
        request=request,
        generation=generation,
        base_length=base_length,
        base_digest=base_digest,
        tokens=np.array(tokens, np.int32),
        parents=np.array(parents, np.int32),
        scores=np.array(scores, np.float32),
        serial=serial,
    )


class Recorder:
    """Collects events of one state machine; `save` writes them as JSON lines.

    Args:
        machine: "leader", or the drafter's name (with "#2", "#3", ... for its later lives).
    """

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self.events: list[Event] = []

    def received(self, peer: str, message: Message | ProtocolError, *, now: float) -> None:
        """A message, by name; a request in full; None for something that was no message."""
        if isinstance(message, ProtocolError):
            self.events.append(("received", now, peer, None, None))
            return
        # Only frontends send a leader requests, and frontends are not replayed.
        full = describe(message) if isinstance(message, Open) and self.machine == "leader" else None
        self.events.append(("received", now, peer, name_of(message), full))

    def measured(self, costs: VerifyCost, *, now: float) -> None:
        """What verifications cost when the run began."""
        self.events.append(("measured", now, costs.table()))

    def opened(self, message: Open, *, now: float) -> None:
        """A request opened in process."""
        self.events.append(("opened", now, name_of(message), describe(message)))

    def planted(self, message: Propose, *, now: float) -> None:
        """A proposal that a test made up and sent in this machine's name."""
        self.events.append(("planted", now, name_of(message), describe(message)))

    def selected(self, plan: Plan | Wait | None, *, now: float) -> None:
        """What was decided, and the budget and price it was decided under."""
        match plan:
            case Plan():
                rows = [[*row.key, row.base_length, row.forward.num_nodes, row.ready_depth] for row in plan.rows]
                decided = (plan.budget, plan.price, plan.predicted_s)
                self.events.append(("selected", now, plan.step, *decided, rows))
            case Wait():
                self.events.append(("waited", now, plan.until_s, plan.cause))
            case None:
                self.rested(now=now)

    def rested(self, *, now: float) -> None:
        """There was nothing to do; once until there is."""
        if not self.events or self.events[-1][0] != "rested":
            self.events.append(("rested", now))

    def applied(self, plan: Plan, outcomes: Sequence[Outcome], *, now: float) -> None:
        """What the target said: (accepted path, tokens) per row, the text of an error, or None."""
        verdicts = [
            (one.path, one.tokens) if isinstance(one, Verdict) else None if one is None else str(one)
            for one in outcomes
        ]
        self.events.append(("applied", now, plan.step, verdicts))

    def started(self, *, now: float) -> None:
        self.events.append(("started", now))

    def ticked(self, *, now: float, busy_s: float = 0.0) -> None:
        self.events.append(("ticked", now, busy_s))

    def drained(self, *, now: float) -> None:
        """From here on nothing new was taken in."""
        self.events.append(("drained", now))

    def gave_back(self, *, now: float) -> None:
        """What still ran was given back."""
        self.events.append(("gave_back", now))

    def drafted(self, batch: DraftBatch, *, now: float) -> None:
        """Leaves picked, per request."""
        rows = [[*draft.key, len(leaves)] for draft, leaves in zip(batch.drafts, batch.leaves, strict=True)]
        self.events.append(("drafted", now, rows))

    def expanded(self, num_drafted: int, *, hold: bool = False, now: float) -> None:
        """A draft step is over; `num_drafted` nodes were made so far; with `hold` they are published by `flushed`."""
        self.events.append(("expanded", now, num_drafted, hold))

    def left(self, *, now: float) -> None:
        """The drafter said goodbye."""
        self.events.append(("left", now))

    def flushed(self, *, now: float) -> None:
        self.events.append(("flushed", now))

    def save(self, path: Path) -> None:
        head = {"machine": self.machine, "version": VERSION}
        path.write_text("\n".join([json.dumps(head), *map(json.dumps, self.events)]) + "\n")


def load_events(path: Path) -> tuple[str, list[Event]]:
    """Read back what `Recorder.save` wrote: the machine's name and its events.

    Raises:
        ProtocolError: another version wrote it.
    """
    head, *rest = map(json.loads, path.read_text().splitlines())
    if head.get("version") != VERSION:
        raise ProtocolError(f"{path} is a record of version {head.get('version')}, this is version {VERSION}")
    return head["machine"], [tuple(event) for event in rest]
