"""The loop of a drafter that serves several targets: a session for each of them, and draft steps that take leaves of all. It
keeps time and decides nothing but that nobody waits for another's requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, sleep

from dist_spec.core.draft_session import DraftBatch
from dist_spec.drafters.base import Drafter, ExpandRow
from dist_spec.drafters.partition import Partition
from dist_spec.telemetry.timeline import Timeline
from dist_spec.workers.draft import DraftWorker, expand_rows

_IDLE_S = 0.25
_BURST_S = 0.0005


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """One target.

    Attributes:
        address: where it listens.
        worker: session and transport towards it; its drafter is `part`.
    """

    address: str
    worker: DraftWorker
    part: Partition


class SharedDraft:
    """Sessions towards several targets around one drafter.

    Every draft step takes the best leaves of each session that has some, in one forward: the sessions share it evenly, and
    one that has nothing to draft costs the others nothing.

    Args:
        wait: until something has come from any target, or so many seconds have passed.
        step_s: least time of a draft step.
        log: is told of a target that refuses this drafter.
    """

    def __init__(
        self,
        targets: Sequence[Served],
        *,
        drafter: Drafter,
        timeline: Timeline,
        wait: Callable[[float], None],
        log: logging.Logger,
        step_s: float = 0.0,
    ) -> None:
        self.targets = list(targets)
        self._drafter = drafter
        self._timeline = timeline
        self._wait = wait
        self._log = log
        self._step_s = step_s
        self._next_tick_s = 0.0
        self._busy_s = dict.fromkeys((one.address for one in targets), 0.0)
        """By target, seconds of the draft steps that had leaves of its requests."""

    def run(self, *, stopping: Callable[[], bool]) -> None:
        """Draft until `stopping()`, or until no target is left that has not refused this drafter."""
        now = self._timeline.enter("receive")
        for one in self.targets:
            one.worker.start(now=now)
        busy = False
        while self.targets and not stopping():
            if not busy:
                self._timeline.enter("idle")
                self._wait(_IDLE_S)
            self._timeline.enter("receive")
            for one in self.targets:
                one.worker.receive(clock=monotonic)
            self._tick()
            self._part()
            busy = self._burst()
        for one in self.targets:
            one.worker.leave(now=monotonic())

    def _tick(self) -> None:
        now = monotonic()
        if now < self._next_tick_s:
            return
        for one in self.targets:
            one.worker.tick(now=now, busy_s=self._busy_s[one.address])
        self._next_tick_s = now + min(one.worker.attachment.heartbeat_s for one in self.targets) / 2

    def _part(self) -> None:
        """Leave the targets that refuse this drafter to themselves."""
        for one in [one for one in self.targets if one.worker.session.refused is not None]:
            self.targets.remove(one)
            reason = one.worker.session.refused.reason if one.worker.session.refused is not None else ""
            self._log.warning("the target at %s refused this drafter: %s", one.address, reason)

    def _burst(self) -> bool:
        """Draft steps until a moment has passed, published together; whether there was anything to draft."""
        started = now = self._timeline.enter("draft")
        drafted: dict[str, DraftWorker] = {}
        batches = self._begin(now)
        while batches:
            if self._step_s > 0:
                sleep(self._step_s)
            self._expand(batches, now=now)
            drafted |= {one.address: one.worker for one, _ in batches}
            began, now = now, self._timeline.enter("draft")
            for one, _ in batches:
                self._busy_s[one.address] += now - began
            if now - started > _BURST_S:
                break
            batches = self._begin(now)
        for worker in drafted.values():
            worker.flush(now=now)
        return bool(batches)

    def _begin(self, now: float) -> list[tuple[Served, DraftBatch]]:
        begun = ((one, one.worker.begin(now=now)) for one in self.targets)
        return [(one, batch) for one, batch in begun if batch is not None]

    def _expand(self, batches: Sequence[tuple[Served, DraftBatch]], *, now: float) -> None:
        """One step of the drafter for all sessions."""
        rows: list[ExpandRow] = []
        for one, batch in batches:
            rows += one.part.rows(expand_rows(batch))
        expansions = self._drafter.expand(rows)
        first = 0
        for one, batch in batches:
            last = first + len(batch.drafts)
            one.worker.take(batch, expansions[first:last], now=now, hold=True)
            first = last
