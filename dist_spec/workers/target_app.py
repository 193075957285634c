"""The target process: loads the model, checks it, builds the leader from its parts and serves until told to end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from dist_spec.config import Config
from dist_spec.core.admission import TargetFacts
from dist_spec.core.block_manager import BlockManager
from dist_spec.core.membership import Membership
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.settings import Speculation
from dist_spec.core.target_session import TargetSession
from dist_spec.drafters.base import Drafter
from dist_spec.drafters.build import build_drafter
from dist_spec.models.invariance import Probe, check_against_stock, probe
from dist_spec.models.loading import LoadedModel, load_model
from dist_spec.models.runner import ModelRunner
from dist_spec.telemetry.log import setup_logging
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.zmq import ZmqLeader
from dist_spec.workers.loop import run_target_loop
from dist_spec.workers.model_backend import ModelBackend
from dist_spec.workers.record import Recorder
from dist_spec.workers.report import COORDINATION_PHASES, run_stats
from dist_spec.workers.settings import speculation_of
from dist_spec.workers.signals import StopFlag
from dist_spec.workers.target import TargetWorker
from dist_spec.workers.threads import limit_threads, threads_elsewhere

_DEFAULT_MODEL_LEN = 4096


def run_target(config: Config, *, bind: str, stopping: Callable[[], bool] | None = None) -> None:
    """Serve as the target leader at `bind` until SIGTERM, SIGINT or `stopping()`.

    Raises:
        ModelError, UnsupportedError: the model cannot be run faithfully.
        TransportError: the address cannot be bound.
    """
    log = setup_logging("target", level=config.telemetry.log_level)
    stop = stopping or StopFlag().listen()
    limit_threads(config.target.threads)
    target = config.target
    loaded = load_model(
        target.model,
        dtype=target.dtype,
        device=target.device,
        trust_remote_code=target.trust_remote_code,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )
    settings = speculation_of(config)
    max_model_len = min(target.max_model_len or _DEFAULT_MODEL_LEN, loaded.max_positions)
    scheduler = _scheduler(config, settings, max_model_len=max_model_len)
    runner = ModelRunner(
        loaded,
        num_blocks=scheduler.blocks.num_blocks,
        block_size=scheduler.blocks.block_size,
        batch_invariant=target.batch_invariant,
    )
    check_against_stock(loaded, runner)
    found = probe(runner)
    log.info("probe: bit-equal %s, largest logit difference %.3g", found.bit_equal, found.max_logit_difference)
    timeline = Timeline(monotonic, per_step=COORDINATION_PHASES)
    recorder = Recorder("leader") if config.telemetry.record else None
    with threads_elsewhere():
        transport = ZmqLeader(bind, allow_plaintext=config.transport.allow_plaintext, vocab_size=loaded.vocab_size)
    try:
        worker = _worker(
            config, settings, loaded, runner, scheduler, found, transport, timeline, recorder, max_model_len
        )
        log.info("listening at %s", transport.address)
        run_target_loop(worker, timeline=timeline, stopping=stop)
    finally:
        transport.close()
        if recorder is not None and config.telemetry.record:
            recorder.save(Path(config.telemetry.record).with_suffix(".leader.jsonl"))


def _scheduler(config: Config, settings: Speculation, *, max_model_len: int) -> Scheduler:
    size, lookahead = config.target.kv_block_size, settings.budget + 1
    per_sequence = -(-(max_model_len + lookahead) // size)
    blocks = BlockManager(per_sequence * config.target.max_sequences, block_size=size)
    return Scheduler(blocks, max_sequences=config.target.max_sequences, lookahead=lookahead)


def _worker(
    config: Config,
    settings: Speculation,
    loaded: LoadedModel,
    runner: ModelRunner,
    scheduler: Scheduler,
    found: Probe,
    transport: ZmqLeader,
    timeline: Timeline,
    recorder: Recorder | None,
    max_model_len: int,
) -> TargetWorker:
    tokenizer = loaded.tokenizer
    session = TargetSession(
        settings,
        facts=TargetFacts(
            max_model_len=max_model_len,
            vocab_size=loaded.vocab_size,
            eos_ids=tuple(tokenizer.eos_ids),
            vocabulary=tokenizer.vocabulary_hashes(),
            vocabulary_tokens=tokenizer.token_map,
            decode=tokenizer.decode,
        ),
        scheduler=scheduler,
        membership=Membership(heartbeat_s=config.transport.heartbeat_s, dead_after_s=config.transport.dead_after_s),
    )
    strict = config.target.batch_invariant and found.bit_equal
    backend = ModelBackend(
        runner,
        vocab_size=loaded.vocab_size,
        rule=config.verification.rule,
        noise_rows=config.target.max_sequences * (min(settings.budget, settings.num_draft_tokens) + 2),
        with_margin=not strict,
        timeline=timeline,
    )
    session.run_stats = lambda: run_stats(session, timeline, transport.ledger, found, strict=strict)
    return TargetWorker(session, backend=backend, transport=transport, local=_local_drafter(config), recorder=recorder)


def _local_drafter(config: Config) -> Drafter | None:
    for drafter in config.drafters:
        if drafter.placement == "leader":
            return build_drafter(drafter).drafter
    return None
