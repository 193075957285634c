"""A port that outlives the processes that it is handed: whoever asks while nobody is there is answered by the next."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from dist_spec.held_port import HeldPort
from dist_spec.topology import ProcessSpec, split_address
from dist_spec.workers.supervisor import Supervisor
from tests.integration.process_cases import alive, wait_for
from tests.integration.test_supervisor import SLEEP, UP, events_until, spec, wait_up

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

ACCEPTING = f"""
import os, socket, sys
{UP}
with socket.socket(fileno=int(sys.argv[1])) as listener:
    while True:
        listener.accept()[0].send(b"%d" % os.getpid())
"""


def test_one_process_after_another_listens_at_one_port(tmp_path: Path) -> None:
    held = HeldPort()
    argv = (sys.executable, "-S", "-c", ACCEPTING, str(held.fd))
    specs = [ProcessSpec(name="d0", argv=argv, listens=held, restart=True), spec("other", SLEEP)]

    def ask() -> socket.socket:
        return socket.create_connection(split_address(held.address), timeout=60)

    with Supervisor(specs, log_dir=tmp_path) as supervisor:
        wait_up(supervisor, "d0", "other")
        first = supervisor.running()["d0"]
        with ask() as connection:
            assert connection.recv(20) == b"%d" % first
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: not alive(first))
        with ask() as connection:
            events_until(supervisor, "restarted")
            assert connection.recv(20) == b"%d" % supervisor.running()["d0"]
        name = os.readlink(f"/proc/self/fd/{held.fd}")
        others = Path(f"/proc/{supervisor.running()['other']}/fd").iterdir()
        assert name not in {os.readlink(fd) for fd in others}
