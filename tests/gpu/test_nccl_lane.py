"""A lane between two processes: over NCCL between two GPUs (skipped without), and the very same over gloo."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, perf_counter

import numpy as np
import pytest
import torch

from dist_spec.core.messages import Features, Ping
from dist_spec.transports.collective import CollectiveLeader

pytestmark = pytest.mark.slow

TWO_GPUS = torch.cuda.device_count() > 1
NCCL = pytest.param(
    ("cuda:0", "cuda:1"), marks=[pytest.mark.gpu, pytest.mark.skipif(not TWO_GPUS, reason="needs two CUDA devices")]
)
SIZES = ((1, 1728), (20, 1728), (64, 24_576))
"""Rows and their size: a token's features of a small target, several, a chunk of a 70B target's."""


@pytest.fixture(params=[("cpu", "cpu"), NCCL], ids=["gloo", "nccl"])
def devices(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


@contextmanager
def both_ends(devices: tuple[str, str]) -> Iterator[tuple[CollectiveLeader, subprocess.Popen[bytes]]]:
    leader = CollectiveLeader(device=devices[0], deadline_s=20.0)
    child = subprocess.Popen([sys.executable, "-m", "tests.gpu.lane_peer", leader.address, devices[1]])
    try:
        until(lambda: leader.receive(0.05) == [] and leader.lanes.reaches("d0"))
        yield leader, child
    finally:
        child.kill()
        child.wait()
        leader.close()


def until(condition: object) -> None:
    start = monotonic()
    while not condition():  # type: ignore[operator]
        assert monotonic() - start < 60


def features(count: int, size: int, *, value: int, device: str) -> Features:
    rows = torch.zeros((count, size), dtype=torch.float16, device=device)
    rows[-1, -1] = value
    told = rows if device.startswith("cuda") else rows.numpy()
    return Features(request="r", generation=0, base_length=count, base_digest=1, rows=told)  # type: ignore[arg-type]


def answer(leader: CollectiveLeader) -> Ping:
    got: list[Ping] = []
    until(lambda: got.extend(message for _, message in leader.receive(0.01) if isinstance(message, Ping)) or got)
    return got[0]


def test_features_arrive_where_they_are_wanted(devices: tuple[str, str]) -> None:
    with both_ends(devices) as (leader, _):
        for count, size in SIZES:
            times: list[float] = []
            for value in range(1, 21):
                start = perf_counter()
                leader.send("d0", features(count, size, value=value, device=devices[0]))
                found = answer(leader)
                times.append(perf_counter() - start)
                assert found.progress == value
                assert bool(found.num_drafters) == devices[1].startswith("cuda"), "tensors stay on devices"
            middle = 1e6 * float(np.median(times[5:]))
            print(
                f"{devices[0]}: {count} x {size} float16 ({2 * count * size} bytes) there, a ping back: {middle:.0f} us"
            )


def test_a_killed_end_is_noticed_and_harms_nobody(devices: tuple[str, str]) -> None:
    with both_ends(devices) as (leader, child):
        leader.send("d0", features(1, 64, value=3, device=devices[0]))
        assert answer(leader).progress == 3
        for _ in range(5):
            leader.send("d0", features(64, 4096, value=1, device=devices[0]))
        child.kill()
        until(lambda: leader.receive(0.05) is not None and not leader.lanes.reaches("d0"))
        leader.send("d0", features(1, 64, value=3, device=devices[0]))
        assert leader.ledger.total("features", direction="out").drops > 0
    with both_ends(devices) as (again, _):
        again.send("d0", features(1, 64, value=4, device=devices[0]))
        assert answer(again).progress == 4
