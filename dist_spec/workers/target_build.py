"""Builds the target leader from its settings: model, checks, cache, session, backend. It opens no socket and runs nothing,
so that a replay can build the very same leader on a transport of its own."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from dist_spec.config import DEFAULT_MODEL_LEN, Config
from dist_spec.core.admission import FeatureFacts, TargetFacts
from dist_spec.core.block_manager import BlockManager
from dist_spec.core.membership import Membership
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.settings import Speculation
from dist_spec.core.target_session import TargetSession
from dist_spec.drafters.base import Drafter
from dist_spec.drafters.build import build_drafter
from dist_spec.errors import ModelError
from dist_spec.models.features import tells_features
from dist_spec.models.invariance import Probe, check_against_stock, probe
from dist_spec.models.loading import LoadedModel, load_model
from dist_spec.models.runner import ModelRunner
from dist_spec.models.tokenizer import Tokenizer
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.base import Transport
from dist_spec.workers.costs import Space, measure_costs
from dist_spec.workers.model_backend import ModelBackend
from dist_spec.workers.record import Recorder
from dist_spec.workers.report import run_stats
from dist_spec.workers.settings import speculation_of
from dist_spec.workers.target import TargetWorker
from dist_spec.workers.threads import thread_elsewhere

if TYPE_CHECKING:
    from dist_spec.models.parallel.group import TpGroup
    from dist_spec.models.parallel.runner import ParallelRunner


@dataclass(kw_only=True, slots=True)
class LoadedTarget:
    """The model on its device, checked, with its cache.

    Attributes:
        found: what the start-up probe measured.
        max_model_len: longest sequence that is served.
    """

    loaded: LoadedModel
    runner: ModelRunner | ParallelRunner
    found: Probe
    settings: Speculation
    scheduler: Scheduler
    max_model_len: int


def load_target(config: Config, *, log: logging.Logger, group: TpGroup | None = None) -> LoadedTarget:
    """Load and check the target's model.

    Args:
        group: the ranks that it is spread over, this one being their leader; None: it is all here.

    Raises:
        ModelError, UnsupportedError: it cannot be run faithfully.
    """
    target = config.target
    loaded = load_weights(config, group=group)
    settings = speculation_of(config)
    if target.max_model_len is not None and target.max_model_len > loaded.max_positions:
        raise ModelError(
            f"target.max_model_len {target.max_model_len}: {target.model} has {loaded.max_positions} positions",
            fix=f"set target.max_model_len to {loaded.max_positions} or less",
        )
    max_model_len = min(target.max_model_len or DEFAULT_MODEL_LEN, loaded.max_positions)
    scheduler = _scheduler(config, settings, max_model_len=max_model_len)
    runner = _runner(config, loaded, scheduler, settings, group=group)
    check_against_stock(loaded, runner)
    found = probe(runner)
    log.info("probe: bit-equal %s, largest logit difference %.3g", found.bit_equal, found.max_logit_difference)
    if target.batch_invariant and not found.bit_equal:
        log.warning(
            "batch-invariant mode is not bit-equal here (try target.threads: 1); equality is judged numerically"
        )
    return LoadedTarget(
        loaded=loaded,
        runner=runner,
        found=found,
        settings=settings,
        scheduler=scheduler,
        max_model_len=max_model_len,
    )


def load_weights(config: Config, *, group: TpGroup | None = None) -> LoadedModel:
    """The target's model, or this rank's part of it (then it returns when all ranks have theirs).

    Raises:
        ModelError, UnsupportedError, ConfigError: it cannot be loaded.
    """
    target, parallel = config.target, config.parallel
    if group is None:
        return load_model(
            target.model,
            dtype=target.dtype,
            device=target.device,
            trust_remote_code=target.trust_remote_code,
            progress=_say,
        )
    from dist_spec.models.parallel.load import load_shard

    loaded = load_shard(
        target.model,
        dtype=target.dtype,
        place=group.place,
        backend=parallel.backend,
        attention=parallel.attention,
        ordered=target.batch_invariant,
        trust_remote_code=target.trust_remote_code,
        progress=_say,
    )
    group.await_others()
    return loaded


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _runner(
    config: Config, loaded: LoadedModel, scheduler: Scheduler, settings: Speculation, *, group: TpGroup | None
) -> ModelRunner | ParallelRunner:
    blocks, batch_invariant = scheduler.blocks, config.target.batch_invariant
    if group is None:
        return ModelRunner(
            loaded, num_blocks=blocks.num_blocks, block_size=blocks.block_size, batch_invariant=batch_invariant
        )
    from dist_spec.models.parallel.runner import Orders, ParallelRunner

    return ParallelRunner(
        loaded,
        orders=Orders(group),
        num_blocks=blocks.num_blocks,
        block_size=blocks.block_size,
        batch_invariant=batch_invariant,
        noise_rows=_noise_rows(config, settings),
        noise_maker=thread_elsewhere(),
    )


def _noise_rows(config: Config, settings: Speculation) -> int:
    return config.target.max_sequences * (min(settings.budget, settings.num_draft_tokens) + 2)


def build_target(
    config: Config, target: LoadedTarget, *, transport: Transport, timeline: Timeline, recorder: Recorder | None
) -> TargetWorker:
    """The leader's worker on a transport."""
    loaded, settings = target.loaded, target.settings
    tokenizer = loaded.tokenizer
    session = TargetSession(
        settings,
        facts=TargetFacts(
            max_model_len=target.max_model_len,
            vocab_size=loaded.vocab_size,
            eos_ids=tuple(tokenizer.eos_ids),
            vocabulary=tokenizer.vocabulary_hashes(),
            vocabulary_tokens=tokenizer.token_map,
            decode=tokenizer.decode,
            features=_feature_facts(loaded),
        ),
        scheduler=target.scheduler,
        membership=Membership(heartbeat_s=config.transport.heartbeat_s, dead_after_s=config.transport.dead_after_s),
    )
    strict = config.target.batch_invariant and target.found.bit_equal
    backend = ModelBackend(
        target.runner,
        vocab_size=loaded.vocab_size,
        rule=config.verification.rule,
        noise_rows=_noise_rows(config, settings),
        with_margin=not strict,
        eos_ids=tuple(tokenizer.eos_ids),
        timeline=timeline,
        noise_maker=thread_elsewhere(),
    )
    session.run_stats = lambda: {
        **run_stats(session, timeline, transport.ledger, target.found, strict=strict),
        "rejections": backend.rejections.num_rejected,
        "residual_fallbacks": backend.rejections.num_fallbacks,
    }
    local = _local_drafters(config, tokenizer)
    return TargetWorker(session, backend=backend, transport=transport, local=local, recorder=recorder)


def measure_target(worker: TargetWorker, target: LoadedTarget, *, timeline: Timeline, log: logging.Logger) -> None:
    """Have the worker know what verifications cost, where the budget is chosen by it; before the first request."""
    settings = target.settings
    if not settings.adaptive or settings.budget <= 0:
        return
    blocks = target.scheduler.blocks
    space = Space(
        num_blocks=blocks.num_blocks,
        block_size=blocks.block_size,
        max_model_len=target.max_model_len,
        max_rows=target.scheduler.max_sequences,
        max_nodes=settings.budget,
    )
    costs = measure_costs(worker.backend, space, clock=monotonic)
    worker.measured(costs, now=monotonic())
    timeline.reset()
    curve = costs.curve(1, budget=settings.budget)
    log.info("costs: a plain step %.1f ms, with %d nodes %.1f ms", 1e3 * curve[0], settings.budget, 1e3 * curve[-1])


def _feature_facts(loaded: LoadedModel) -> FeatureFacts | None:
    """None: a head that greets is refused."""
    if not tells_features(loaded.model):
        return None
    return FeatureFacts(hidden_size=int(loaded.config.hidden_size), num_layers=int(loaded.config.num_hidden_layers))


def _scheduler(config: Config, settings: Speculation, *, max_model_len: int) -> Scheduler:
    size, lookahead = config.target.kv_block_size, settings.budget + 1
    per_sequence = -(-(max_model_len + lookahead) // size)
    blocks = BlockManager(per_sequence * config.target.max_sequences, block_size=size)
    return Scheduler(blocks, max_sequences=config.target.max_sequences, lookahead=lookahead)


def _local_drafters(config: Config, tokenizer: Tokenizer) -> dict[str, Drafter]:
    return {
        drafter.name: build_drafter(drafter, tokenizer=lambda: tokenizer).drafter
        for drafter in config.drafters
        if drafter.placement == "leader"
    }
