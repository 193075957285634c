"""A drafter process: builds its drafter, attaches to the leader and drafts until told to end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic

from dist_spec.config import Config, DrafterConfig, ModelDrafterConfig
from dist_spec.core.attachment import Attachment
from dist_spec.core.draft_session import DraftSession
from dist_spec.core.messages import Bye, Hello
from dist_spec.core.vocabulary import first_difference
from dist_spec.drafters.base import Drafter
from dist_spec.drafters.build import BuiltDrafter, build_drafter
from dist_spec.drafters.partition import Partition
from dist_spec.errors import DistSpecError, TokenizerMismatchError, TransportError, UnsupportedError, WorkerError
from dist_spec.models.tokenizer import load_tokenizer
from dist_spec.telemetry.log import setup_logging
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.base import Transport
from dist_spec.transports.build import build_peer
from dist_spec.transports.zmq import ZmqPeer, wait_any
from dist_spec.workers.draft import DraftWorker
from dist_spec.workers.files import ProcessFiles
from dist_spec.workers.loop import run_draft_loop
from dist_spec.workers.record import Recorder
from dist_spec.workers.settings import law_settings_of, speculation_of
from dist_spec.workers.shared_draft import Served, SharedDraft
from dist_spec.workers.signals import StopFlag


def run_draft(
    config: Config, *, name: str, connect: str | Sequence[str], stopping: Callable[[], bool] | None = None
) -> None:
    """Serve as the drafter called `name` until SIGTERM, SIGINT or `stopping()`.

    Args:
        connect: where the target listens; several: one model drafts for all of them.

    Raises:
        ConfigError: no such drafter, or it cannot serve several targets.
        TokenizerMismatchError: the target's tokenizer is another one; names the first id that differs.
        TransportError: the target (with several: each of them) refused the drafter for another reason.
        WorkerError: it failed while drafting.
    """
    log = setup_logging(name, level=config.telemetry.log_level)
    stop = stopping or StopFlag().listen()
    entry = config.drafter(name)
    if entry.kind in ("model", "head", "plugin"):
        from dist_spec.workers.threads import limit_threads

        limit_threads(getattr(entry, "threads", None))
    addresses = [connect] if isinstance(connect, str) else list(dict.fromkeys(connect))
    if len(addresses) > 1:
        _serve_several(config, entry, addresses, stopping=stop, log=log)
        return
    files = ProcessFiles(config.telemetry, machine=name)
    transport = files.traced(build_peer(config, entry, connect=addresses[0]))
    worker, built = build_draft(config, name=name, transport=transport, recorder=files.recorder)
    timeline = Timeline(monotonic, on_phase=files.on_phase)
    if built.note:
        log.warning("%s", built.note)
    log.info("drafting for %s", addresses[0])
    try:
        run_draft_loop(worker, timeline=timeline, stopping=stop, step_s=built.step_s)
        worker.leave(now=monotonic())
    except DistSpecError as error:  # no longer bad input, which would end the target too: it is started again
        raise WorkerError(f"drafter {name}: {error.message}", fix=error.fix) from error
    finally:
        worker.transport.close()
        files.save()
    if worker.session.refused is not None:
        raise refusal_error(name, worker.session.refused, built)


def _serve_several(
    config: Config,
    entry: DrafterConfig,
    addresses: Sequence[str],
    *,
    stopping: Callable[[], bool],
    log: logging.Logger,
) -> None:
    if entry.link.tensors != "zmq" or config.telemetry.record or config.telemetry.trace:
        raise UnsupportedError(
            f"drafter {entry.name}: a drafter of several targets has ZeroMQ links, and writes neither trace nor record, in "
            "this release",
            fix="set its link.tensors: zmq and no telemetry.trace or telemetry.record, or start a drafter per target",
        )
    built = _build(config, entry, num_targets=len(addresses))
    if built.note:
        log.warning("%s", built.note)
    ends = [ZmqPeer(address, entry.name, bulk=entry.kind == "head") for address in addresses]
    targets: list[Served] = []
    for number, (address, end) in enumerate(zip(addresses, ends, strict=True)):
        part = Partition(built.drafter, number=number)
        worker = _worker(config, entry, built, drafter=part, transport=end, recorder=None)
        targets.append(Served(address=address, worker=worker, part=part))
    shared = SharedDraft(
        targets,
        drafter=built.drafter,
        timeline=Timeline(monotonic),
        # Nobody reads what still comes from one that refused: it would wake the drafter for ever.
        wait=lambda timeout_s: wait_any([ends[addresses.index(one.address)] for one in shared.targets], timeout_s),
        log=log,
        step_s=built.step_s,
    )
    log.info("drafting for %s", ", ".join(addresses))
    try:
        shared.run(stopping=stopping)
    except DistSpecError as error:
        raise WorkerError(f"drafter {entry.name}: {error.message}", fix=error.fix) from error
    finally:
        for end in ends:
            end.close()
    refused = targets[0].worker.session.refused
    if not shared.targets and refused is not None:
        raise refusal_error(entry.name, refused, built)


def build_draft(
    config: Config, *, name: str, transport: Transport, recorder: Recorder | None
) -> tuple[DraftWorker, BuiltDrafter]:
    """The drafter's worker on a transport (also for a replay).

    Raises:
        ConfigError, ModelError, UnsupportedError: it cannot be built.
    """
    entry = config.drafter(name)
    built = _build(config, entry)
    return _worker(config, entry, built, drafter=built.drafter, transport=transport, recorder=recorder), built


def _build(config: Config, entry: DrafterConfig, *, num_targets: int = 1) -> BuiltDrafter:
    itself = isinstance(entry, ModelDrafterConfig) and entry.is_model_of(config.target)
    return build_drafter(
        entry,
        max_requests=config.target.max_sequences * num_targets,
        batch_invariant=itself and config.target.batch_invariant,
        laws=law_settings_of(config),
        tokenizer=lambda: load_tokenizer(config.target.model),
        target=config.target.model,
    )


def _worker(
    config: Config,
    entry: DrafterConfig,
    built: BuiltDrafter,
    *,
    drafter: Drafter,
    transport: Transport,
    recorder: Recorder | None,
) -> DraftWorker:
    hello = Hello(
        role="drafter",
        name=entry.name,
        kind=entry.kind,
        vocabulary=built.vocabulary,
        vocab_size=len(built.tokens),
        step_s=built.step_s,
        features=built.features,
    )
    return DraftWorker(
        DraftSession(speculation_of(config, entry)),
        drafter=drafter,
        transport=transport,
        attachment=Attachment(hello, heartbeat_s=config.transport.heartbeat_s),
        recorder=recorder,
    )


def refusal_error(name: str, bye: Bye, built: BuiltDrafter) -> TransportError | TokenizerMismatchError:
    """Why the leader refused this drafter, with the first token id that differs where that is the reason."""
    difference = first_difference(bye, built.tokens)
    if difference is not None:
        token_id, ours, theirs = difference
        return TokenizerMismatchError(
            f"drafter {name}: token {token_id} is {ours!r} here and {theirs!r} at the target",
            fix="set the drafter's vocabulary: auto, with the target's tokenizer at hand, or use a drafter with the "
            "target's own tokenizer",
        )
    return TransportError(f"drafter {name}: the target refused it: {bye.reason}")
