"""Starts the ranks of a target, and drafters, from one process that has imported everything already: in half a second each
and not in five. Each has a log of its own; all are ended with the test."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dist_spec.config import Config
from dist_spec.core.types import Sampling
from dist_spec.exits import run
from dist_spec.free_port import free_port
from dist_spec.models.parallel.place import TpPlace
from dist_spec.server.client import Client, Stream
from dist_spec.topology import listen_address
from dist_spec.transports.zmq import ZmqPeer
from tests.integration.local_cluster import prompts_of

_READY_S = 120.0

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "transformers.distributed",
        "transformers.models.llama.modeling_llama",
        "dist_spec.models.parallel.follow",
        "dist_spec.models.parallel.load",
        "dist_spec.models.tokenizer",
        "dist_spec.workers.draft_app",
        "dist_spec.workers.follower_app",
        "dist_spec.workers.target_app",
        "tests.integration.parallel_ranks",
    ]
)


def spawn(work: Callable[..., object], *arguments: object, log: Path) -> BaseProcess:
    process = context.Process(target=_main, args=(work, arguments, str(log), os.getcwd()), daemon=True)
    process.start()
    return process


def _main(work: Callable[..., object], arguments: Sequence[object], log: str, folder: str) -> None:
    os.chdir(folder)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.exit(run(lambda: work(*arguments)))


def run_rank(config: Config, place: TpPlace, bind: str) -> int:
    from dist_spec.workers.follower_app import run_follower
    from dist_spec.workers.target_app import run_target

    hide_gpus(place)
    if place.is_leader:
        run_target(config, bind=bind, place=place)
        return 0
    return run_follower(config, place=place)


def hide_gpus(place: TpPlace) -> None:
    """Transformers shards onto GPUs wherever it sees any."""
    if place.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def run_drafter(config: Config, name: str, address: str) -> None:
    from dist_spec.workers.draft_app import run_draft

    run_draft(config, name=name, connect=address)


def on_device(device: str, rank: int) -> dict[str, Any]:
    """Of a `TpPlace`: the CPU with gloo, or each rank's own GPU with NCCL."""
    return {} if device == "cpu" else {"device": f"{device}:{rank}", "backend": "nccl"}


class Ranks:
    """A target's ranks with its drafters; use as a context manager.

    Attributes:
        processes: of the target, by rank.
        client: connected once `wait_ready` has returned.
    """

    def __init__(self, config: Config, folder: Path, *, device: str = "cpu") -> None:
        self.config = config
        self.folder = folder
        self.address = listen_address("tcp://127.0.0.1:0")
        port, size = free_port(), config.parallel.tp_size
        places = [
            TpPlace(
                rank=rank,
                size=size,
                store_host="127.0.0.1",
                store_port=port,
                timeout_s=config.parallel.timeout_s,
                hosts_store=rank == 0,
                **on_device(device, rank),
            )
            for rank in range(size)
        ]
        self.processes = [spawn(run_rank, config, place, self.address, log=self.log(place.rank)) for place in places]
        self.drafters = [
            spawn(run_drafter, config, drafter.name, self.address, log=folder / drafter.name)
            for drafter in config.process_drafters
        ]
        self.client = Client(ZmqPeer(self.address, "frontend"), name="frontend", heartbeat_s=0.2)

    def log(self, rank: int) -> Path:
        return self.folder / f"rank{rank}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        for process in (*self.drafters, *self.processes):
            if process.is_alive():
                process.kill()
            process.join(10)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while not self.client.connect(timeout_s=0.2) or self.client.num_drafters < len(self.drafters):
            self.client.poll(timeout_s=0.05)
            ended = [process for process in self.processes if not process.is_alive()]
            assert not ended, self.logs()
            assert time.monotonic() < deadline, self.logs()

    def decode(
        self, asked: Sequence[Sampling], *, name: str = "r", prompts: Sequence[Sequence[int]] | None = None
    ) -> list[Stream]:
        """All prompts together, one per sampling."""
        streams = self.open(asked, name=name, prompts=prompts)
        deadline = time.monotonic() + _READY_S
        while self.client.streams:
            self.client.poll(timeout_s=0.01)
            assert all(process.is_alive() for process in self.processes), self.logs()
            assert time.monotonic() < deadline, "the run did not finish"
        return streams

    def open(
        self, asked: Sequence[Sampling], *, name: str = "r", prompts: Sequence[Sequence[int]] | None = None
    ) -> list[Stream]:
        return [
            self.client.open(f"{name}{i}", prompt=prompt, sampling=sampling)
            for i, (prompt, sampling) in enumerate(zip(prompts or prompts_of(len(asked)), asked, strict=True))
        ]

    def signal(self, rank: int, number: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def ends(self, *, within_s: float) -> list[int | None]:
        """Exit codes by rank; None of what still runs then."""
        deadline = time.monotonic() + within_s
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return [process.exitcode for process in self.processes]

    def logs(self) -> str:
        return "\n".join(
            f"--- rank {rank}\n{self.log(rank).read_text()}"
            for rank in range(len(self.processes))
            if self.log(rank).exists()
        )


def accepted(streams: Sequence[Stream]) -> int:
    return sum(int(stream.stats["accepted"]) for stream in streams)
