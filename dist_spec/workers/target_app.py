"""The target process: loads the model, binds its address and serves until told to end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic

from dist_spec.config import Config
from dist_spec.telemetry.log import setup_logging
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.zmq import ZmqLeader
from dist_spec.workers.loop import run_target_loop
from dist_spec.workers.record import Recorder
from dist_spec.workers.report import COORDINATION_PHASES
from dist_spec.workers.signals import StopFlag
from dist_spec.workers.target_build import build_target, load_target
from dist_spec.workers.threads import limit_threads, settle_memory, threads_elsewhere


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
    record = config.telemetry.record
    recorder = Recorder("leader") if record else None
    with threads_elsewhere():
        transport = ZmqLeader(
            bind, allow_plaintext=config.transport.allow_plaintext, vocab_size=target.loaded.vocab_size
        )
    try:
        timeline = Timeline(monotonic, per_step=COORDINATION_PHASES)
        worker = build_target(config, target, transport=transport, timeline=timeline, recorder=recorder)
        log.info("listening at %s", transport.address)
        settle_memory()
        run_target_loop(worker, timeline=timeline, stopping=stop)
    finally:
        transport.close()
        if recorder is not None and record is not None:
            recorder.save(Path(record).with_suffix(".leader.jsonl"))
