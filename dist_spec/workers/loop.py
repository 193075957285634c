"""The loops of the leader and of a drafter: one thread, one poll, no waiting while there is work. They keep time and
decide nothing."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep

from dist_spec.core.draft_session import DraftBatch
from dist_spec.core.plan import Plan, Wait
from dist_spec.telemetry.timeline import Timeline
from dist_spec.workers.draft import DraftWorker
from dist_spec.workers.drain import Drain
from dist_spec.workers.target import TargetWorker

_IDLE_S = 0.25


def run_target_loop(
    worker: TargetWorker,
    *,
    timeline: Timeline,
    stopping: Callable[[], bool],
    hurried: Callable[[], bool] = lambda: False,
    drain_s: float = 0.0,
) -> None:
    """Serve until `stopping()`, and then until what runs has finished (see `Drain`); what arrived during a forward is
    drained just before the next selection."""
    next_tick = monotonic()
    drain = Drain(worker, stopping=stopping, hurried=hurried, drain_s=drain_s)
    while not drain.over(now=monotonic()):
        # Heartbeats without a request are no part of any run: they count as idle.
        now = timeline.enter("idle" if worker.session.idle else "receive")
        worker.receive(clock=monotonic)
        if now >= next_tick:
            worker.tick(now=now)
            next_tick = now + worker.session.membership.heartbeat_s / 2
        selected = timeline.enter("idle" if worker.session.idle else "select")
        plan = worker.begin(now=selected)
        if isinstance(plan, Plan):
            outcomes = worker.backend.collect(plan)
            verified = timeline.enter("commit")
            worker.transport.ledger.verifying(selected, verified)
            worker.apply(plan, outcomes, now=verified)
        else:
            _pause(worker, plan, timeline=timeline)
    worker.give_back(now=monotonic())


def await_readers(
    worker: TargetWorker,
    *,
    patience_s: float,
    hurried: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = monotonic,
) -> bool:
    """After the loop: until all frontends have read how their requests ended, for ZeroMQ drops what nobody has read by the
    time that a connection ends; whether they have within `patience_s`, and before there is a hurry."""
    until_s = clock() + patience_s
    while worker.session.requests.unread.peers:
        left_s = until_s - clock()
        if left_s <= 0 or hurried():
            return False
        worker.receive(clock=clock, timeout_s=min(left_s, _IDLE_S))
    return True


def _pause(worker: TargetWorker, plan: Wait | None, *, timeline: Timeline) -> None:
    """Nothing to verify: wait for a message, but not beyond the wait's own deadline."""
    now = timeline.enter("idle" if plan is None else f"wait_{plan.cause}")
    timeout_s = _IDLE_S if plan is None else max(0.0, min(plan.until_s - now, _IDLE_S))
    worker.receive(clock=monotonic, timeout_s=timeout_s)
    if plan is not None:
        worker.transport.ledger.waited("propose", timeline.enter("receive") - now)


def run_draft_loop(
    worker: DraftWorker,
    *,
    timeline: Timeline,
    stopping: Callable[[], bool],
    burst_s: float = 0.0005,
    step_s: float = 0.0,
) -> None:
    """Draft until `stopping()`.

    Args:
        step_s: least time of a draft step (a scripted drafter that stands for a model takes as long as one).
        burst_s: draft steps cheaper than this (n-grams) are taken several at a time before the next look at the socket,
            and published together.
    """
    worker.start(now=timeline.enter("receive"))
    next_tick = monotonic()
    batch: DraftBatch | None = None
    while not stopping():
        timeline.enter("receive" if batch is not None else "idle")
        worker.receive(clock=monotonic, timeout_s=0.0 if batch is not None else _IDLE_S)
        now = timeline.enter("receive")
        if now >= next_tick:
            worker.tick(now=now, busy_s=timeline.totals.get("draft", 0.0))
            next_tick = now + worker.attachment.heartbeat_s / 2
        if worker.session.refused is not None:
            return
        batch = _burst(worker, timeline=timeline, burst_s=burst_s, step_s=step_s)


def _burst(worker: DraftWorker, *, timeline: Timeline, burst_s: float, step_s: float) -> DraftBatch | None:
    """Draft steps until `burst_s` has passed, published together; the last batch, None when there is nothing to draft."""
    started = now = timeline.enter("draft")
    drafted = False
    while (batch := worker.begin(now=now)) is not None:
        if step_s > 0:
            sleep(step_s)
        worker.finish(batch, now=now, hold=True)
        drafted = True
        now = timeline.enter("draft")
        if now - started > burst_s:
            break
    if drafted:
        worker.flush(now=now)
    return batch
