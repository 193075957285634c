"""The target process: loads the model, binds its address and serves until told to end."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from dist_spec.config import Config
from dist_spec.core.plan import PlanRow
from dist_spec.telemetry.decisions import DecisionWriter
from dist_spec.telemetry.log import setup_logging
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.base import LEADER
from dist_spec.transports.zmq import ZmqLeader
from dist_spec.workers.files import ProcessFiles
from dist_spec.workers.loop import run_target_loop
from dist_spec.workers.model_backend import ModelBackend
from dist_spec.workers.report import PER_STEP
from dist_spec.workers.signals import StopFlag
from dist_spec.workers.target import TargetWorker
from dist_spec.workers.target_build import build_target, load_target, measure_target
from dist_spec.workers.threads import limit_threads, settle_memory, threads_elsewhere

if TYPE_CHECKING:
    import torch


def run_target(config: Config, *, bind: str, stopping: Callable[[], bool] | None = None) -> None:
    """Serve as the target leader at `bind` until SIGTERM, SIGINT or `stopping()`.

    Raises:
        ModelError, UnsupportedError: the model cannot be run faithfully.
        TransportError: the address cannot be bound.
    """
    log = setup_logging("target", level=config.telemetry.log_level)
    stop = stopping or StopFlag().listen()
    limit_threads(config.target.threads)
    target = load_target(config, log=log)
    files = ProcessFiles(config.telemetry, machine=LEADER)
    with threads_elsewhere():
        transport = ZmqLeader(
            bind, allow_plaintext=config.transport.allow_plaintext, vocab_size=target.loaded.vocab_size
        )
    try:
        timeline = Timeline(monotonic, per_step=PER_STEP, on_phase=files.on_phase)
        worker = build_target(
            config, target, transport=files.traced(transport), timeline=timeline, recorder=files.recorder
        )
        measure_target(worker, target, timeline=timeline, log=log)
        decisions = files.decisions(timeline)
        if decisions is not None:
            _tell_decisions(worker, decisions)
        log.info("listening at %s", transport.address)
        settle_memory()
        run_target_loop(worker, timeline=timeline, stopping=stop)
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
