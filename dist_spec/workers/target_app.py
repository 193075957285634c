"""The target process: loads the model, binds its address and serves until told to end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from dist_spec.config import Config
from dist_spec.core.plan import PlanRow
from dist_spec.telemetry.decisions import DecisionWriter
from dist_spec.telemetry.log import setup_logging
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.base import LEADER
from dist_spec.transports.build import build_leader, keeps_tensors
from dist_spec.workers.files import ProcessFiles
from dist_spec.workers.loop import await_readers, run_target_loop
from dist_spec.workers.model_backend import ModelBackend
from dist_spec.workers.report import PER_STEP
from dist_spec.workers.signals import StopFlag
from dist_spec.workers.target import TargetWorker
from dist_spec.workers.target_build import build_target, load_target, measure_target
from dist_spec.workers.threads import limit_threads, settle_memory, threads_elsewhere

if TYPE_CHECKING:
    import torch

    from dist_spec.models.parallel.group import TpGroup
    from dist_spec.models.parallel.place import TpPlace

_LAST_WORDS_S = 2.0
"""How long frontends are given to read the last messages: one may be dead, or busy elsewhere."""


def run_target(
    config: Config, *, bind: str, place: TpPlace | None = None, stopping: Callable[[], bool] | None = None
) -> None:
    """Serve as the target leader at `bind` until SIGTERM, SIGINT or `stopping()`.

    Args:
        place: the leader's among the ranks of a target of several (`run_follower` runs the others); None: it is one.

    Raises:
        ModelError, UnsupportedError: the model cannot be run faithfully.
        TransportError: the address cannot be bound.
        WorkerError: a rank is dead or stuck.
    """
    log = setup_logging("target", level=config.telemetry.log_level)
    stop = stopping or StopFlag().listen()
    limit_threads(config.target.threads)
    if place is None or place.size == 1:
        _serve(config, bind=bind, stop=stop, log=log)
        return
    from dist_spec.models.parallel.group import TpGroup

    with TpGroup.join(place) as group:
        _serve(config, bind=bind, stop=stop, log=log, group=group)


def _serve(
    config: Config, *, bind: str, stop: Callable[[], bool], log: logging.Logger, group: TpGroup | None = None
) -> None:
    target = load_target(config, log=log, group=group)
    files = ProcessFiles(config.telemetry, machine=LEADER)
    with threads_elsewhere():
        device = str(target.loaded.device)
        transport = build_leader(config, bind=bind, vocab_size=target.loaded.vocab_size, device=device)
    try:
        timeline = Timeline(monotonic, per_step=PER_STEP, on_phase=files.on_phase)
        worker = build_target(
            config, target, transport=files.traced(transport), timeline=timeline, recorder=files.recorder
        )
        if isinstance(worker.backend, ModelBackend):
            worker.backend.features_stay = keeps_tensors(transport)
        measure_target(worker, target, timeline=timeline, log=log)
        decisions = files.decisions(timeline)
        if decisions is not None:
            _tell_decisions(worker, decisions)
        log.info("listening at %s", transport.address)
        settle_memory()
        hurried = stop.hurried if isinstance(stop, StopFlag) else lambda: False
        run_target_loop(
            worker,
            timeline=timeline,
            stopping=lambda: stop() or target.runner.asked_to_stop,
            hurried=hurried,
            drain_s=config.target.drain_s,
        )
        patience_s = min(_LAST_WORDS_S, config.parallel.timeout_s / 2)  # followers hear nothing meanwhile
        if not await_readers(worker, patience_s=patience_s, hurried=hurried):
            log.info("not every frontend has said that it read the end of its requests")
        target.runner.close()
    finally:
        transport.close()
        files.save()


def _tell_decisions(worker: TargetWorker, decisions: DecisionWriter) -> None:
    """The session tells what it decided and what came of it, the backend shows the target's logits."""
    worker.session.observer = decisions.row
    if isinstance(worker.backend, ModelBackend):

        def inspect(row: PlanRow, logits: torch.Tensor) -> None:
            decisions.logits(row.key, logits[0].float().numpy(), temperature=row.sampling.temperature)

        worker.backend.inspect = inspect
