"""`dist-spec up`: target and drafters of one machine under a supervisor, until Ctrl-C; who dies is started again."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from dist_spec.config import Config
from dist_spec.errors import BadInputError, DistSpecError, WorkerError
from dist_spec.held_port import HeldPort
from dist_spec.telemetry.trace import collect, remove_parts
from dist_spec.topology import TARGET, ProcessSpec, kept_alive, listen_address, plan_processes
from dist_spec.workers.files import check_files
from dist_spec.workers.signals import StopFlag
from dist_spec.workers.supervisor import Supervisor

_POLL_S = 0.1
_MAX_FAILURES = 3
"""A target that fails so often in a row, soon after its start, would fail again."""
_STOP_GRACE_S = 3.0


def local_processes(config: Config, *, folder: Path, bind: str) -> tuple[str, list[ProcessSpec]]:
    """Write the settings where the processes find them; returns the address and what to start.

    Raises:
        TransportError: the address is in use.
        ConfigError: a core is named that this machine does not have.
    """
    address = listen_address(bind)
    path = folder / "config.yaml"
    path.write_text(config.to_yaml())
    store = HeldPort() if config.parallel.tp_size > 1 else None  # the leader comes, and may come again, much later
    return address, plan_processes(config, config_path=str(path), address=address, store=store)


def run_up(config: Config, *, bind: str, stopping: Callable[[], bool] | None = None) -> None:
    """Start everything and keep it alive until the wish to end: SIGINT ends all at once, SIGTERM lets running requests
    finish (for `target.drain_s` at most).

    Raises:
        ConfigError: a file to be written has no place to go.
        BadInputError: a process cannot begin with what it was given.
        WorkerError: the target fails again and again; carries the end of its log.
    """
    check_files(config.telemetry)
    stop = stopping or StopFlag().listen()
    at_once = stop.hurried if isinstance(stop, StopFlag) else lambda: True
    with traced(config), tempfile.TemporaryDirectory(prefix="dist-spec-") as name:
        folder = Path(name)
        address, specs = local_processes(config, folder=folder, bind=bind)
        log_dir = Path(config.telemetry.log_dir) if config.telemetry.log_dir else folder
        with Supervisor(kept_alive(specs), log_dir=log_dir) as supervisor:
            print(
                f"target at {address}, {len(config.process_drafters)} drafter(s); Ctrl-C ends everything",
                file=sys.stderr,
            )
            while not stop():
                watch(supervisor, say=lambda line: print(line, file=sys.stderr, flush=True))
                sleep(_POLL_S)
            if not at_once():
                finish(supervisor, drain_s=config.target.drain_s, hurried=at_once)
            supervisor.stop(grace_s=_STOP_GRACE_S, number=signal.SIGINT)


def finish(supervisor: Supervisor, *, drain_s: float, hurried: Callable[[], bool]) -> None:
    """Let the target end in order, its drafters beside it; until its deadline, or until `hurried()`."""
    supervisor.tell(TARGET, signal.SIGTERM)
    deadline = monotonic() + drain_s + _STOP_GRACE_S
    while TARGET in supervisor.running() and monotonic() < deadline and not hurried():
        if any(event.name == TARGET for event in supervisor.poll()):
            return
        sleep(_POLL_S)


@contextmanager
def traced(config: Config) -> Iterator[None]:
    """Around the life of local processes: what they leave of a trace (`telemetry.trace`) becomes one file at the end."""
    trace = Path(config.telemetry.trace) if config.telemetry.trace else None
    if trace is not None:
        remove_parts(trace)
    try:
        yield
    finally:
        if trace is not None:
            collect(trace)


def watch(supervisor: Supervisor, *, say: Callable[[str], None] = lambda line: None) -> None:
    """Restart what may be restarted.

    Args:
        say: is told of a target that ended and is started again.

    Raises:
        BadInputError: a process ended because of what it was given (exit code 2), which no restart mends.
        WorkerError: the target ended otherwise, and is not started again. Both carry what the process said.
    """
    for event in supervisor.poll(monotonic()):
        if event.kind != "exited" or event.cause is not None:
            continue
        said = supervisor.tail(event.name)
        if event.code == DistSpecError.exit_code:
            said = said[said.rfind("error: ") + len("error: ") :] if "error: " in said else said
            raise BadInputError(f"{event.name}: {said}")
        if supervisor.group(event.name) != TARGET:
            continue
        who = "the target" if event.name == TARGET else f"{event.name} (a rank of the target)"
        if event.restart_in_s is None or event.failures >= _MAX_FAILURES:
            raise WorkerError(
                f"{who} ended with code {event.code}:\n{said}",
                fix="mend what its log says; `dist-spec check CONFIG` finds most causes beforehand",
            )
        say(f"{who} ended with code {event.code}; it is started again in {event.restart_in_s:.1f} s")
