"""The target leader's step: receive, select, verify, commit, send. The loop around it (and the simulator) keeps time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from dist_spec.core.control.costs import VerifyCost
from dist_spec.core.messages import Open
from dist_spec.core.plan import Plan, Wait
from dist_spec.core.target_session import Outcome, Outgoing, TargetSession
from dist_spec.core.types import HalfArray
from dist_spec.drafters.base import Drafter, ExpandRow
from dist_spec.errors import ProtocolError
from dist_spec.transports.base import Transport
from dist_spec.workers.draft import forget
from dist_spec.workers.record import Recorder


class TargetBackend(Protocol):
    """Runs a plan: one forward pass and the verification rule. Started and collected apart, so that a device may run
    while the host does something else."""

    def launch(self, plan: Plan) -> None: ...

    def collect(self, plan: Plan) -> Sequence[Outcome]:
        """One outcome per row of the plan, in order; accepted K/V is in place afterwards."""
        ...


@runtime_checkable
class Featuring(Protocol):
    """A backend that can tell the hidden features of what it ran."""

    def capture(self, layers: Sequence[int], *, window: int) -> None:
        """From the next launch on, keep features of these layers (none: of nothing), of `window` tokens of a row at most."""
        ...

    def features(self, plan: Plan, outcomes: Sequence[Outcome]) -> Sequence[HalfArray]:
        """After `collect`, per row: features of the last tokens that were read and are kept, (n, size); or empty."""
        ...


@runtime_checkable
class Ticking(Protocol):
    """A backend that others wait for."""

    def tick(self) -> None:
        """Call now and then, between two steps."""
        ...


class TargetWorker:
    """Session, backend and transport of the leader put together; five lines a step.

    receive -> begin (select, launch) -> [the forward runs] -> finish (verify, commit, send)

    Args:
        local: by name, drafters cheap enough to be asked on the critical path (n-gram, suffix), for rows that have no
            guess; all of them are asked.
    """

    def __init__(
        self,
        session: TargetSession,
        *,
        backend: TargetBackend,
        transport: Transport,
        local: Mapping[str, Drafter] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.session = session
        self.backend = backend
        self.transport = transport
        self.local = dict(local or {})
        self.recorder = recorder
        self._captured: tuple[tuple[int, ...], int] = ((), 0)

    def receive(self, *, clock: Callable[[], float], timeout_s: float = 0.0) -> int:
        """Take in what has arrived (waiting up to `timeout_s` for something); returns how many messages."""
        received = self.transport.receive(timeout_s)
        now = clock()
        for peer, message in received:
            if self.recorder is not None:
                self.recorder.received(peer, message, now=now)
            if isinstance(message, ProtocolError):
                self._send(self.session.garbage(peer))
                continue
            self._send(self.session.receive(peer, message, now=now))
        return len(received)

    def open(self, message: Open, *, now: float) -> list[Outgoing]:
        """Begin a request in process. Not empty when it is refused: then it holds the `Close` that says why."""
        if self.recorder is not None:
            self.recorder.opened(message, now=now)
        out = self.session.open(message, now=now)
        self._send([(peer, sent) for peer, sent in out if peer])
        return [(peer, sent) for peer, sent in out if not peer]

    def begin(self, *, now: float) -> Plan | Wait | None:
        """Decide what to verify and start it."""
        self._send(self.session.admit(now=now))
        self._forget_closed()  # before a new request of an old name is guessed for
        if self.local:
            self._guess_locally()
        plan = self.session.select(now=now)
        if self.recorder is not None:
            self.recorder.selected(plan, now=now)
        if isinstance(plan, Plan):
            self._capture()
            self.backend.launch(plan)
        return plan

    def _capture(self) -> None:
        """Tell the backend which features draft heads want, when that has changed."""
        wanted = (self.session.features.layers, self.session.features.window)
        if wanted != self._captured and isinstance(self.backend, Featuring):
            self.backend.capture(wanted[0], window=wanted[1])
            self._captured = wanted

    def finish(self, plan: Plan, *, now: float) -> None:
        """Verify, commit and tell everyone."""
        outcomes = self.backend.collect(plan)
        self.apply(plan, outcomes, now=now)

    def _forget_closed(self) -> None:
        for key in self.session.take_closed():
            for drafter in self.local.values():
                drafter.close(key)
        if self.session.take_forgotten():
            for drafter in self.local.values():
                forget(drafter)

    def measured(self, costs: VerifyCost, *, now: float) -> None:
        """Tell what verifications cost, before the first of them."""
        if self.recorder is not None:
            self.recorder.measured(costs, now=now)
        self.session.measured(costs)

    def apply(self, plan: Plan, outcomes: Sequence[Outcome], *, now: float) -> None:
        if self.recorder is not None:
            self.recorder.applied(plan, outcomes, now=now)
        features: Sequence[HalfArray] = ()
        if self._captured[0] and isinstance(self.backend, Featuring):
            features = self.backend.features(plan, outcomes)
        self._send(self.session.apply(plan, outcomes, features=features, now=now))
        if self._captured[0]:
            self._send(self.session.bulk())

    def tick(self, *, now: float) -> None:
        """Heartbeats; call now and then."""
        if isinstance(self.backend, Ticking):
            self.backend.tick()
        if self.recorder is not None:
            self.recorder.ticked(now=now)
        self._send(self.session.tick(now=now))

    def drain(self, *, now: float) -> None:
        """Begin nothing new; what runs goes on."""
        if self.recorder is not None:
            self.recorder.drained(now=now)
        self._send(self.session.drain())

    def give_back(self, *, now: float) -> None:
        """The loop is over: what still runs is its frontends' again."""
        if self.recorder is not None:
            self.recorder.gave_back(now=now)
        self._send(self.session.give_back())

    def _guess_locally(self) -> None:
        settings = self.session.settings
        rows = [
            ExpandRow(
                key=live.sequence.key,
                history=live.sequence.tokens,
                history_slots=[],
                prompt_length=live.sequence.prompt_length,
                generated_offset=live.sequence.generated_offset,
                sampling=live.sequence.sampling,
                tree=live.tree,
                leaves=[live.tree.root],
                width=settings.num_children,
                digest=live.sequence.prefix.digest,
            )
            for live in self.session.without_guess()
        ]
        # All guess before any guess is taken in: a drafter expects the tree as it was told of it.
        guesses = {name: drafter.expand(rows) for name, drafter in self.local.items()} if rows else {}
        for name, expansions in guesses.items():
            for row, [guess] in zip(rows, expansions, strict=True):
                self.session.guess(row.key, guess, drafter=name)

    def _send(self, outgoing: Sequence[Outgoing]) -> None:
        for peer, message in outgoing:
            self.transport.send(peer, message)
