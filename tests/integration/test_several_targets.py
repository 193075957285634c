"""One drafter process for two targets: both speculate, and the death of one costs the other nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dist_spec.core.types import Sampling
from dist_spec.server.client import Client, Stream
from dist_spec.transports.zmq import ZmqPeer
from tests.integration.local_cluster import prompts_of
from tests.integration.test_commands import command, free_address
from tests.integration.test_processes import accepted, config, plain_texts, samplings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def until(condition: Callable[[], object], clients: list[Client], *, timeout_s: float = 150.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        for client in clients:
            client.poll(timeout_s=0.01)
        assert time.monotonic() < deadline, "timed out"


@pytest.mark.long  # four processes on two cores
def test_a_drafter_of_two_targets_outlives_one_of_them(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(config().to_yaml())
    addresses = [free_address(), free_address()]
    targets = [subprocess.Popen(command("target", settings, "--bind", address)) for address in addresses]
    drafter = subprocess.Popen(command("draft", settings, *(f"--connect={address}" for address in addresses)))
    clients = [Client(ZmqPeer(address, "f"), name="f", heartbeat_s=0.2) for address in addresses]
    first, second = clients
    try:
        for client in clients:
            assert client.connect(timeout_s=150)
        until(lambda: first.num_drafters and second.num_drafters, clients)
        streams = [opened(client, "r") for client in clients]  # the same name at both
        until(lambda: not first.streams and not second.streams, clients)
        for stream in streams:
            assert stream.tokens == plain_texts(1)[0]
            assert accepted([stream]) > 0
        os.kill(targets[0].pid, signal.SIGKILL)
        alone = opened(second, "alone")
        until(lambda: not second.streams, [second])
        assert alone.tokens == plain_texts(1)[0]
        assert accepted([alone]) > 0
        targets.append(subprocess.Popen(command("target", settings, "--bind", addresses[0])))
        until(lambda: first.num_drafters, [first])
        again = opened(first, "again")
        until(lambda: not first.streams, [first])
        assert again.tokens == plain_texts(1)[0]
        assert accepted([again]) > 0
        drafter.send_signal(signal.SIGTERM)
        assert drafter.wait(timeout=20) == 0
    finally:
        for client in clients:
            client.close()
        for process in (drafter, *targets):
            process.kill()
            process.wait()


def opened(client: Client, name: str) -> Stream:
    sampling: Sampling = samplings(1)[0]
    return client.open(name, prompt=prompts_of(1)[0], sampling=sampling)
