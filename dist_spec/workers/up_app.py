"""`dist-spec up`: target and drafters of one machine under a supervisor, until Ctrl-C or until the target ends."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from dist_spec.config import Config
from dist_spec.errors import BadInputError, DistSpecError, WorkerError
from dist_spec.telemetry.trace import collect, remove_parts
from dist_spec.topology import TARGET, ProcessSpec, listen_address, plan_processes
from dist_spec.workers.files import check_files
from dist_spec.workers.signals import StopFlag
from dist_spec.workers.supervisor import Supervisor

_POLL_S = 0.1


def local_processes(config: Config, *, folder: Path, bind: str) -> tuple[str, list[ProcessSpec]]:
    """Write the settings where the processes find them; returns the address and what to start.

    Raises:
        TransportError: the address is in use.
        ConfigError: a core is named that this machine does not have.
    """
    address = listen_address(bind)
    path = folder / "config.yaml"
    path.write_text(config.to_yaml())
    return address, plan_processes(config, config_path=str(path), address=address)


def run_up(config: Config, *, bind: str, stopping: Callable[[], bool] | None = None) -> None:
    """Start everything, keep drafters alive, end everything when the target ends.

    Raises:
        ConfigError: a file to be written has no place to go.
        WorkerError: the target ended by itself; carries the end of its log.
    """
    check_files(config.telemetry)
    stop = stopping or StopFlag().listen()
    with traced(config), tempfile.TemporaryDirectory(prefix="dist-spec-") as name:
        folder = Path(name)
        address, specs = local_processes(config, folder=folder, bind=bind)
        log_dir = Path(config.telemetry.log_dir) if config.telemetry.log_dir else folder
        with Supervisor(specs, log_dir=log_dir) as supervisor:
            print(f"target at {address}, {len(specs) - 1} drafter(s); Ctrl-C ends everything", file=sys.stderr)
            while not stop():
                watch(supervisor)
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


def watch(supervisor: Supervisor) -> None:
    """Restart what may be restarted.

    Raises:
        BadInputError: a process ended because of what it was given (exit code 2), which no restart mends.
        WorkerError: the target ended otherwise. Both carry what the process said.
    """
    for event in supervisor.poll(monotonic()):
        if event.kind != "exited":
            continue
        said = supervisor.tail(event.name)
        if event.code == DistSpecError.exit_code:
            said = said[said.rfind("error: ") + len("error: ") :] if "error: " in said else said
            raise BadInputError(f"{event.name}: {said}")
        if event.name == TARGET:
            raise WorkerError(
                f"the target ended with code {event.code}:\n{said}",
                fix="mend what its log says; `dist-spec check CONFIG` finds most causes beforehand",
            )
