"""A process group of two ranks beside all others: blocking send and receive of byte tensors, each with a deadline. Nothing
here knows messages, queues or threads, nor who the two are.

Both ends are made with `ProcessGroupGloo` or `ProcessGroupNCCL` themselves: no default group, no `init_process_group`, so
the target's own group of ranks is not touched and a peer that dies harms nobody else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from threading import Lock
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dist_spec.errors import TransportError, UnsupportedError

if TYPE_CHECKING:
    import torch

TensorBackend: TypeAlias = Literal["gloo", "nccl"]
_HEADERS, _BODIES = 0, 1
_POLL_S = 20e-6
_MEET_S = 10.0
"""How long the other end may take to connect, at least."""
_making = Lock()


def backend_for(device: str) -> TensorBackend:
    """NCCL where tensors live on a GPU and this torch has it, else gloo."""
    import torch.distributed as dist

    return "nccl" if device.startswith("cuda") and dist.is_nccl_available() else "gloo"


class Pair:
    """One of two ranks.

    Headers always go over gloo, from and to host memory; bodies over `backend`, to and from `device`. With NCCL each
    direction has a group (and so a stream) of its own: on one stream a send would wait behind a receive that waits for the
    other end.

    Args:
        store: where the two meet; keys below it are theirs alone.
        rank: 0 or 1.
        host: this end's own address, to which gloo is bound.
        deadline_s: how long the other end may take for anything.

    Raises:
        TransportError: the other end did not come, or gloo cannot be bound to `host`.
        UnsupportedError: this torch has no such backend.
    """

    def __init__(
        self, store: Any, *, rank: int, backend: TensorBackend, device: str, host: str, deadline_s: float
    ) -> None:
        import torch
        import torch.distributed as dist

        self.backend = backend
        self.deadline_s = deadline_s
        self._other = 1 - rank
        if backend == "nccl" and not dist.is_nccl_available():
            raise UnsupportedError("this torch has no NCCL", fix="set link.backend: gloo, or install torch with CUDA")
        self.device = torch.device(device if backend == "nccl" else "cpu")
        self._control = _gloo(dist.PrefixStore("control", store), rank=rank, host=host, deadline_s=deadline_s)
        self._sending = self._receiving = self._control
        if backend == "nccl":
            there, back = (_nccl(dist.PrefixStore(f"from{i}", store), rank=rank) for i in range(2))
            self._sending, self._receiving = (there, back) if rank == 0 else (back, there)
            self._stream = torch.cuda.Stream(self.device)

    def start(self, header: torch.Tensor, body: torch.Tensor | None = None) -> list[Any]:
        """Begin to send a header, and over gloo a body; both must stay as they are until `finish`. Does not wait.

        Args:
            header, body: (n,) uint8 on the host.
        """
        try:
            works = [self._control.send([header], self._other, _HEADERS)]
            return works if body is None else [*works, self._control.send([body], self._other, _BODIES)]
        except RuntimeError as error:
            raise TransportError(f"the connection is broken: {_first_line(error)}") from error

    def finish(self, works: Sequence[Any]) -> None:
        """Wait for what `start` began.

        Raises:
            TransportError: the other end is gone, or took it not in time. Nothing can be sent or received any more.
        """
        for work in works:
            self._wait(work, "did not take what it was sent")

    def expect(self, into: torch.Tensor) -> Any:
        """Post a receive of the next header that nobody expects yet, into the beginning of a host tensor; see `heard`."""
        try:
            return self._control.recv([into], self._other, _HEADERS)
        except RuntimeError as error:
            raise TransportError(f"the connection is broken: {_first_line(error)}") from error

    def heard(self, work: Any) -> None:
        """Wait for what `expect` posted; may be shorter than the tensor."""
        self._wait(work, "was not heard")

    def mark(self, frames: Sequence[object]) -> Any:
        """To be called where these frames were made: the point which the device must reach before they can be read."""
        if self.backend == "gloo" or all(isinstance(frame, bytes | memoryview) for frame in frames):
            return None
        import torch

        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def send_body(self, body: torch.Tensor, *, after: Any = None) -> None:
        """(n,) uint8, on the host or on this end's device, sent once the device has come to a `mark`."""
        if self.backend == "gloo":
            return self.finish([self._control.send([body], self._other, _BODIES)])
        import torch

        with torch.cuda.stream(self._stream):
            if body.device == self.device:  # a forward that was begun since is not waited for
                if after is not None:
                    self._stream.wait_event(after)
                body.record_stream(self._stream)
            there = body.to(self.device, non_blocking=True)
            work = self._sending.send([there], self._other, 0)
        self._poll(work, "did not take a body")

    def receive_body(self, num_bytes: int) -> torch.Tensor:
        """(num_bytes,) uint8 on this end's device, complete."""
        import torch

        if self.backend == "gloo":
            body = torch.empty(num_bytes, dtype=torch.uint8)
            self._wait(self._control.recv([body], self._other, _BODIES), "did not send a body that it announced")
            return body
        with torch.cuda.stream(self._stream):
            body = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
            work = self._receiving.recv([body], self._other, 0)
        self._poll(work, "did not send a body that it announced")
        body.record_stream(torch.cuda.default_stream(self.device))
        return body

    def buffer(self, num_bytes: int) -> torch.Tensor:
        """(num_bytes,) uint8 on the host, page-locked where the device copies from it by itself."""
        import torch

        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self.backend == "nccl")

    def abort(self) -> None:
        """Have the device give up what it still waits for. The host's side ends when the last reference is gone."""
        if self.backend == "nccl":
            for group in (self._sending, self._receiving):
                group.abort()

    def _wait(self, work: Any, what: str) -> None:
        """gloo tells of an end only whoever waits for it; another thread may run meanwhile."""
        try:
            work.wait(timedelta(seconds=self.deadline_s))
        except RuntimeError as error:
            # A wait that ends for lack of time closes the connection, and so all other waits.
            left = "" if "Timed out" in str(error) else "left, or "
            raise TransportError(f"the other end {left}{what} within {self.deadline_s:g} s") from error

    def _poll(self, work: Any, what: str) -> None:
        """NCCL's work is done when its stream has come so far; nothing is synchronised."""
        deadline = monotonic() + self.deadline_s
        try:
            while not work.is_completed():
                if monotonic() > deadline:
                    self.abort()
                    raise TransportError(f"the other end {what} within {self.deadline_s:g} s")
                sleep(_POLL_S)
            work.wait()
        except RuntimeError as error:
            raise TransportError(f"NCCL failed: {_first_line(error)}") from error


def _gloo(store: Any, *, rank: int, host: str, deadline_s: float) -> Any:
    import torch.distributed as dist

    try:
        group: Any = dist.ProcessGroupGloo  # torch's types leave out what is needed to choose the address
        options = group._Options()
        options._devices = [group.create_device(hostname=host)]
        options._timeout = timedelta(seconds=max(deadline_s, _MEET_S))
        return group(store, rank, 2, options)
    except RuntimeError as error:
        raise TransportError(f"no connection of its own at {host}: {_first_line(error)}") from error


def _nccl(store: Any, *, rank: int) -> Any:
    """Its communicator is made with the first tensor. Deadlines are ours: torch's own watchdog would end the process."""
    import torch.distributed as dist

    with _making, _environment(TORCH_NCCL_ASYNC_ERROR_HANDLING="0", TORCH_NCCL_BLOCKING_WAIT="0"):
        return dist.ProcessGroupNCCL(store, rank, 2, dist.ProcessGroupNCCL.Options())


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """torch reads these while a group is made, and only then."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
