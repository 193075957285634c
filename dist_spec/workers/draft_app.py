"""A drafter process: builds its drafter, attaches to the leader and drafts until told to end."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from dist_spec.config import Config, ModelDrafterConfig
from dist_spec.core.attachment import Attachment
from dist_spec.core.draft_session import DraftSession
from dist_spec.core.messages import Bye, Hello
from dist_spec.drafters.build import BuiltDrafter, build_drafter
from dist_spec.errors import DistSpecError, TokenizerMismatchError, TransportError, WorkerError
from dist_spec.models.tokenizer import load_tokenizer
from dist_spec.telemetry.log import setup_logging
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.base import Transport
from dist_spec.transports.zmq import ZmqPeer
from dist_spec.workers.draft import DraftWorker
from dist_spec.workers.files import ProcessFiles
from dist_spec.workers.loop import run_draft_loop
from dist_spec.workers.record import Recorder
from dist_spec.workers.settings import law_settings_of, speculation_of
from dist_spec.workers.signals import StopFlag


def run_draft(config: Config, *, name: str, connect: str, stopping: Callable[[], bool] | None = None) -> None:
    """Serve as the drafter called `name` until SIGTERM, SIGINT or `stopping()`.

    Raises:
        ConfigError: no such drafter.
        TokenizerMismatchError: the target's tokenizer is another one; names the first id that differs.
        TransportError: the target refused the drafter for another reason.
        WorkerError: it failed while drafting.
    """
    log = setup_logging(name, level=config.telemetry.log_level)
    stop = stopping or StopFlag().listen()
    entry = config.drafter(name)
    if entry.kind in ("model", "head", "plugin"):
        from dist_spec.workers.threads import limit_threads

        limit_threads(getattr(entry, "threads", None))
    files = ProcessFiles(config.telemetry, machine=name)
    transport = files.traced(ZmqPeer(connect, name, bulk=entry.kind == "head"))
    worker, built = build_draft(config, name=name, transport=transport, recorder=files.recorder)
    timeline = Timeline(monotonic, on_phase=files.on_phase)
    if built.note:
        log.warning("%s", built.note)
    log.info("drafting for %s", connect)
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


def build_draft(
    config: Config, *, name: str, transport: Transport, recorder: Recorder | None
) -> tuple[DraftWorker, BuiltDrafter]:
    """The drafter's worker on a transport (also for a replay).

    Raises:
        ConfigError, ModelError, UnsupportedError: it cannot be built.
    """
    entry = config.drafter(name)
    settings = speculation_of(config, entry)
    itself = isinstance(entry, ModelDrafterConfig) and entry.is_model_of(config.target)
    built = build_drafter(
        entry,
        max_requests=config.target.max_sequences,
        batch_invariant=itself and config.target.batch_invariant,
        laws=law_settings_of(config),
        tokenizer=lambda: load_tokenizer(config.target.model),
        target=config.target.model,
    )
    hello = Hello(
        role="drafter",
        name=name,
        kind=entry.kind,
        vocabulary=built.vocabulary,
        vocab_size=len(built.tokens),
        step_s=built.step_s,
        features=built.features,
    )
    worker = DraftWorker(
        DraftSession(settings),
        drafter=built.drafter,
        transport=transport,
        attachment=Attachment(hello, heartbeat_s=config.transport.heartbeat_s),
        recorder=recorder,
    )
    return worker, built


def refusal_error(name: str, bye: Bye, built: BuiltDrafter) -> TransportError | TokenizerMismatchError:
    """Why the leader refused this drafter, with the first token id that differs where that is the reason."""
    for offset, theirs in enumerate(bye.tokens):
        token_id = bye.first_id + offset
        ours = built.tokens[token_id] if token_id < len(built.tokens) else ""
        if ours != theirs:
            return TokenizerMismatchError(
                f"drafter {name}: token {token_id} is {ours!r} here and {theirs!r} at the target",
                fix="set the drafter's vocabulary: auto, with the target's tokenizer at hand, or use a drafter with the "
                "target's own tokenizer",
            )
    return TransportError(f"drafter {name}: the target refused it: {bye.reason}")
