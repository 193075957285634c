"""What a process writes beside its work when it is asked to: its share of the trace, the decisions, its record for a
replay. It decides nothing; without a setting nothing of it exists."""

from __future__ import annotations

import os
from pathlib import Path

from dist_spec.config import TelemetryConfig
from dist_spec.errors import ConfigError
from dist_spec.telemetry.decisions import DecisionWriter
from dist_spec.telemetry.timeline import OnPhase, Timeline
from dist_spec.telemetry.trace import Trace
from dist_spec.transports.base import Transport
from dist_spec.transports.traced import TracedTransport
from dist_spec.workers.record import Recorder


class ProcessFiles:
    """The files of one process.

    Args:
        machine: "leader", or the drafter's name.

    Attributes:
        recorder: to be given to the worker; None when no record is asked for.

    Raises:
        ConfigError: a file has no place to go.
    """

    def __init__(self, telemetry: TelemetryConfig, *, machine: str) -> None:
        check_files(telemetry)
        self._telemetry = telemetry
        self._machine = machine
        self._trace = Trace(machine) if telemetry.trace else None
        self._decisions: DecisionWriter | None = None
        self.recorder = Recorder(machine) if telemetry.record else None

    @property
    def on_phase(self) -> OnPhase | None:
        """For the process's timeline."""
        return None if self._trace is None else self._trace.phase

    def traced(self, transport: Transport) -> Transport:
        """The transport, drawn into the trace when there is one."""
        return transport if self._trace is None else TracedTransport(transport, trace=self._trace, name=self._machine)

    def decisions(self, timeline: Timeline) -> DecisionWriter | None:
        """The writer of the leader's decisions, when they are asked for."""
        if self._telemetry.decisions is not None:
            path = Path(self._telemetry.decisions)
            self._decisions = DecisionWriter(path, busy_s=lambda: working_s(timeline))
        return self._decisions

    def save(self) -> None:
        """Write what was collected; call it once, at the end."""
        if self._decisions is not None:
            self._decisions.close()
        if self._trace is not None:
            self._trace.save_part(Path(str(self._telemetry.trace)))
        if self.recorder is not None:
            self.recorder.save(Path(str(self._telemetry.record)).with_suffix(f".{self._machine}.jsonl"))


def check_files(telemetry: TelemetryConfig) -> None:
    """ConfigError when one of the files has no place to go: before the work, not after it."""
    for name in ("record", "trace", "decisions"):
        file = getattr(telemetry, name)
        if file is not None:
            check_file(Path(file), place=f"telemetry.{name}")


def check_file(file: Path, *, place: str) -> None:
    """ConfigError, which names the place of the setting, when the file cannot be written."""
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise ConfigError(f"{place}: {file} cannot be written", fix="name a file in a folder that is there")


def working_s(timeline: Timeline) -> float:
    """Seconds of the account that are neither idle nor waits, up to the last change of phase."""
    idle = ("idle", "wait_")
    return sum(spent for phase, spent in timeline.totals.items() if not phase.startswith(idle))
