"""Starts the local processes, restarts those that may be restarted, and leaves none behind; it knows nothing of what they
do or say to each other.

Each process leads a session and group of its own (a Ctrl-C in the terminal reaches only the supervisor, which then stops
all in order) and is killed by the kernel when the supervisor dies, even by SIGKILL. For that it must be started from a
thread that lives as long as the supervisor: the main thread.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Literal, Self

from dist_spec.errors import BadInputError, WorkerError
from dist_spec.topology import ProcessSpec, thread_env

__all__ = ["ProcessEvent", "Supervisor", "install_signal_handlers"]

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 5.0
HEALTHY_AFTER_S = 30.0
"""A process that ran for this long is restarted without a history."""

_LEASH = str(Path(__file__).with_name("leash.py"))
GROUP_GRACE_S = 2.0
"""Between the request to end and SIGKILL for what is left of a group that lost a member."""
_TAIL_BYTES = 16_384
_POLL_S = 0.02
_KILLED_WITHIN_S = 5.0
"""A killed process that is still there after this hangs in the kernel; nothing more can be done about it."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessEvent:
    """What happened to a process.

    Attributes:
        kind: "exited", or "restarted" (also: started again).
        name: of its spec.
        code: exit code, negative for the signal that ended it; None for "restarted".
        restart_in_s: how long after the end of its whole group it will be started again; None: never.
        cause: the member of its group whose end ended it; None: it ended by itself.
        failures: how often in a row it, or its group, failed (exit code above 0) soon after its start.
    """

    kind: Literal["exited", "restarted"]
    name: str
    code: int | None = None
    restart_in_s: float | None = None
    cause: str | None = None
    failures: int = 0


class _Child:
    """One spec and the process that now stands for it, if any."""

    def __init__(self, spec: ProcessSpec, *, log_path: Path) -> None:
        self.spec = spec
        self.log_path = log_path
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises WorkerError when not even the interpreter can be started."""
        cores = ",".join(map(str, self.spec.cores)) or "-"
        argv = [sys.executable, "-I", "-S", _LEASH, str(os.getpid()), cores, *self.spec.argv]
        env = {**os.environ, "PYTHONUNBUFFERED": "1", **thread_env(max(1, len(self.spec.cores))), **self.spec.env}
        held = () if self.spec.listens is None else (self.spec.listens.fd,)
        log: IO[bytes]
        with self.log_path.open("ab") as log:
            try:
                self.process = subprocess.Popen(
                    argv,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=held,
                )
            except OSError as error:
                raise WorkerError(f"cannot start {self.spec.name}: {error.strerror or error}") from error

    def reap(self) -> int | None:
        """The exit code once the process has ended, with whatever it left in its group; None while it runs."""
        if self.process is None:
            return None
        pid = self.process.pid
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        # Before it is reaped nobody else can have its number, so this hits its own group or nothing.
        self.signal(signal.SIGKILL)
        code = self.process.wait()
        self.process = None
        return code

    def signal(self, number: int) -> None:
        """To the whole group; harmless when it is gone."""
        if self.process is None:
            return
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return


class _Group:
    """Processes that live and die together; mostly one."""

    def __init__(self, members: Sequence[_Child]) -> None:
        self.members = members
        self.restart = all(child.spec.restart for child in members)
        self.due_s: float | None = None
        self._started_s = 0.0
        self._backoff_s = FIRST_BACKOFF_S
        self._failures = 0
        self._cause: str | None = None
        self._wait_s: float | None = None
        self._kill_s = 0.0

    def start(self, now: float) -> None:
        """Start those that do not run. Raises WorkerError."""
        self._started_s, self.due_s, self._cause = now, None, None
        for child in self.members:
            if child.process is None:
                child.start()

    def poll(self, now: float) -> list[ProcessEvent]:
        """What has ended or been started again; ends what is left of a group that lost a member."""
        ended = [(child.spec.name, code) for child in self.members if (code := child.reap()) is not None]
        left = [child for child in self.members if child.process is not None]
        if ended and self._cause is None:
            self._lost(ended, left, now=now)
        elif self._cause is not None and left and now >= self._kill_s:
            _signal(left, signal.SIGKILL)
        events = [self._exited(name, code) for name, code in ended]
        if ended and not left and self._wait_s is not None:
            self.due_s = now + self._wait_s
        if self.due_s is not None and now >= self.due_s:
            self.start(now)
            events += [ProcessEvent(kind="restarted", name=child.spec.name) for child in self.members]
        return events

    def _lost(self, ended: Sequence[tuple[str, int]], left: Sequence[_Child], *, now: float) -> None:
        """The first of the group has ended: the others are to follow. Of several, one that was killed was not the one
        that noticed."""
        self._cause, code = min(ended, key=lambda one: one[1] >= 0)
        healthy = now - self._started_s >= HEALTHY_AFTER_S
        self._failures = self._failures + 1 if self.restart and code > 0 and not healthy else 0
        self._wait_s = self._plan_restart(healthy=healthy) if self.restart else None
        self._kill_s = now + GROUP_GRACE_S
        _signal(left, signal.SIGTERM)

    def _exited(self, name: str, code: int) -> ProcessEvent:
        cause = None if name == self._cause else self._cause
        return ProcessEvent(
            kind="exited", name=name, code=code, restart_in_s=self._wait_s, cause=cause, failures=self._failures
        )

    def _plan_restart(self, *, healthy: bool) -> float:
        """Seconds until the next start: longer each time, from the beginning after a healthy while."""
        if healthy:
            self._backoff_s = FIRST_BACKOFF_S
        wait_s, self._backoff_s = self._backoff_s, min(2 * self._backoff_s, LONGEST_BACKOFF_S)
        return wait_s


def _signal(children: Sequence[_Child], number: int) -> None:
    """To the whole process group of each; a stopped process cannot end in order, so it is woken."""
    for child in children:
        child.signal(number)
        child.signal(signal.SIGCONT)


class Supervisor:
    """Runs the processes of `specs` until `stop`; use it as a context manager.

    Args:
        specs: what to run; names are unique and serve as file names.
        log_dir: made if missing; `NAME.log` there takes a process's output (of this run only).

    Raises:
        WorkerError: a name is unusable or taken twice.
        BadInputError: `log_dir` cannot be written.
    """

    def __init__(self, specs: Sequence[ProcessSpec], *, log_dir: Path | str) -> None:
        log_dir = Path(log_dir)
        self._children: dict[str, _Child] = {}
        for spec in specs:
            if spec.name in self._children or not _NAME.fullmatch(spec.name):
                raise WorkerError(
                    f"{spec.name!r} cannot be the name of a process",
                    fix="use unique names of letters, digits, . _ and -",
                )
            self._children[spec.name] = _Child(spec, log_path=log_dir / f"{spec.name}.log")
        together: dict[tuple[str, str], list[_Child]] = {}
        for name, child in self._children.items():
            key = ("group", child.spec.group) if child.spec.group else ("process", name)
            together.setdefault(key, []).append(child)
        self._groups = [_Group(members) for members in together.values()]
        try:
            log_dir.mkdir(parents=True, exist_ok=True)
            for child in self._children.values():
                child.log_path.write_bytes(b"")
        except OSError as error:
            raise BadInputError(
                f"cannot write logs to {log_dir}: {error.strerror}", fix="set telemetry.log_dir to a folder of yours"
            ) from error

    def start(self, now: float | None = None) -> None:
        """Start every process that does not run; all or none. Raises WorkerError."""
        try:
            for group in self._groups:
                group.start(_now(now))
        except BaseException:
            self.stop(grace_s=0.0)
            raise

    def poll(self, now: float | None = None) -> list[ProcessEvent]:
        """What has ended or been started again since the last call; never waits."""
        now = _now(now)
        return [event for group in self._groups for event in group.poll(now)]

    def running(self) -> dict[str, int]:
        """Names and process ids of those not yet seen to have ended."""
        return {name: child.process.pid for name, child in self._children.items() if child.process is not None}

    def group(self, name: str) -> str:
        """The group that a process belongs to; one without a group is its own."""
        return self._children[name].spec.group or name

    def tell(self, name: str, number: int) -> None:
        """Send a signal to one process (and what it started); harmless when it is gone."""
        _signal([self._children[name]], number)

    def tail(self, name: str, *, lines: int = 20) -> str:
        """The last lines that a process printed, for error messages."""
        path = self._children[name].log_path
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    def stop(self, grace_s: float = 3.0, *, number: int = signal.SIGTERM) -> None:
        """SIGTERM (or another signal that ends in order) to all; after `grace_s`, or when interrupted meanwhile, SIGKILL.
        Nothing is restarted after it."""
        children = list(self._children.values())
        try:
            for group in self._groups:
                group.due_s = None
            _signal(children, number)
            deadline = time.monotonic() + grace_s
            while self._reap_all() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        finally:
            for child in children:
                child.signal(signal.SIGKILL)
            deadline = time.monotonic() + _KILLED_WITHIN_S
            while self._reap_all() and time.monotonic() < deadline:
                time.sleep(_POLL_S)

    def _reap_all(self) -> bool:
        """Whether any process is left."""
        for child in self._children.values():
            child.reap()
        return bool(self.running())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def install_signal_handlers() -> None:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does (KeyboardInterrupt), so that `with Supervisor` stops all."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays in force
            signal.signal(number, interrupt)


def _now(now: float | None) -> float:
    return time.monotonic() if now is None else now
