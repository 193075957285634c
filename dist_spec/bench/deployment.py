"""One configuration running on this machine: its processes and a frontend connected to the leader. Starts, waits until
it is ready, and ends everything; knows nothing of what is asked of it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from dist_spec.config import Config
from dist_spec.errors import TransportError, WorkerError
from dist_spec.server.client import Client
from dist_spec.telemetry.trace import Trace, collect, remove_parts
from dist_spec.topology import connect_address
from dist_spec.transports.base import Transport
from dist_spec.transports.traced import TracedTransport
from dist_spec.transports.zmq import ZmqPeer
from dist_spec.workers.files import check_files
from dist_spec.workers.supervisor import Supervisor
from dist_spec.workers.up_app import local_processes, watch

READY_TIMEOUT_S = 600.0
FRONTEND = "frontend"


class Deployment:
    """Processes of `config` under a supervisor, and a client; use as a context manager.

    Args:
        name: for error messages and the frontend's name.
        config: complete settings.
    """

    tag = ""
    shared = False

    def __init__(self, name: str, config: Config) -> None:
        self.name = name
        self.config = config
        check_files(config.telemetry)
        self.folder = Path(tempfile.mkdtemp(prefix=f"dist-spec-{name}-"))
        try:
            self.address, specs = local_processes(config, folder=self.folder, bind=config.transport.bind)
            log_dir = Path(config.telemetry.log_dir) / name if config.telemetry.log_dir else self.folder
            self.supervisor = Supervisor(specs, log_dir=log_dir)
            self._trace = Trace(FRONTEND) if config.telemetry.trace else None
            transport: Transport = ZmqPeer(connect_address(self.address), FRONTEND)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        if self._trace is not None:
            transport = TracedTransport(transport, trace=self._trace, name=FRONTEND)
        self.client = Client(transport, name=FRONTEND, heartbeat_s=config.transport.heartbeat_s)

    def __enter__(self) -> Self:
        if self._trace is not None:
            remove_parts(Path(str(self.config.telemetry.trace)))
        self.supervisor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.client.close()
        finally:
            try:
                self.supervisor.stop()
            finally:  # also when interrupted meanwhile
                shutil.rmtree(self.folder, ignore_errors=True)
                self._collect_trace()

    def _collect_trace(self) -> None:
        """What all processes left of the trace, and our own part, in one file."""
        if self._trace is not None:
            path = Path(str(self.config.telemetry.trace))
            self._trace.save_part(path)
            collect(path)

    def check(self) -> None:
        """Look after the processes. Raises WorkerError when the target, or a drafter that cannot fit, has ended."""
        watch(self.supervisor)

    def wait_ready(self) -> None:
        """Until the leader answers and every drafter process has had time to attach.

        Raises:
            WorkerError: a process ended instead, or nothing answered in time.
        """
        deadline = monotonic() + READY_TIMEOUT_S
        while not self.client.connect(timeout_s=0.5):
            self.check()
            if monotonic() > deadline:
                raise WorkerError(f"{self.name}: the target did not come up within {READY_TIMEOUT_S:.0f} s")
        drafters = len(self.config.process_drafters)
        while self.client.num_drafters < drafters:
            self.check()
            self.client.poll(timeout_s=0.1)
            if monotonic() > deadline:
                raise TransportError(f"{self.name}: only {self.client.num_drafters} of {drafters} drafters attached")
