"""What the tests of lanes share: a composed pair of ends whose lane is up, and how to cut its connections from outside."""

from __future__ import annotations

import ctypes
import os
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from dist_spec.core.messages import LinkCargo
from dist_spec.transports.base import LEADER, Received, Transport
from dist_spec.transports.composed import ComposedLeader, ComposedPeer
from dist_spec.transports.reunion import Reunion
from dist_spec.transports.zmq import ZmqLeader, ZmqPeer
from tests.contracts.transport_cases import greeting, wait_for

PIDFD_GETFD = 438
ESTABLISHED = "01"


class Ends:
    """A leader and a drafter with a lane between them."""

    def __init__(self, stack: ExitStack, *, carries: LinkCargo = "tensors", deadline_s: float = 5.0) -> None:
        self.leader = ComposedLeader(ZmqLeader(), device="cpu", allow_plaintext=False, deadline_s=deadline_s)
        stack.callback(self.leader.close)
        self.peer = ComposedPeer(
            ZmqPeer(self.leader.address, "d0", bulk=True),
            connect=self.leader.address,
            carries=carries,
            device="cpu",
            backend=None,
            deadline_s=deadline_s,
        )
        self.peer._reunion = Reunion(patience_s=10.0)  # this machine may be busy
        stack.callback(self.peer.close)
        self.at_leader: list[Received] = []
        self.at_peer: list[Received] = []

    def greet(self) -> None:
        self.peer.send(LEADER, greeting("d0"))
        wait_for(lambda: self.turn() and self.is_up)

    def turn(self) -> bool:
        """Have both ends look; true."""
        self.at_leader += self.leader.receive(0.002)
        self.at_peer += self.peer.receive(0.002)
        return True

    @property
    def is_up(self) -> bool:
        lane = self.peer._collective
        return lane is not None and lane.is_up and self.leader._collective.lanes.reaches("d0")

    def ports(self) -> set[int]:
        """Of the sockets that are not the lane's."""
        return {int(end.rsplit(":", 1)[1]) for end in (self.leader.address, self.leader._collective.address)}


def rows_of(end: Transport, direction: str, kind: str, link: str) -> Any:
    """The ledger's row, or None."""
    found = [row for row in end.ledger.rows() if (row.direction, row.kind, row.link) == (direction, kind, link)]
    return found[0] if found else None


def cut(pid: int, *, spare: set[int]) -> int:
    """Shut all TCP connections of a process down but those with a port to be spared at either end; returns how many."""
    links = {os.readlink(one): int(one.name) for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink()}
    with ExitStack() as stack:
        borrowed: list[socket.socket] = []
        for line in [*_lines(pid, "tcp"), *_lines(pid, "tcp6")]:
            fields = line.split()
            ports = {int(fields[i].rsplit(":", 1)[1], 16) for i in (1, 2)}
            fd = links.get(f"socket:[{fields[9]}]")
            if fields[3] == ESTABLISHED and fd is not None and not ports & spare:
                borrowed.append(stack.enter_context(_borrowed(pid, fd)))
        for one in borrowed:  # all are held before the first is cut: what is closed then would give its number away
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
    return len(borrowed)


def _lines(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/net/{name}").read_text(encoding="ascii").splitlines()[1:]


def _borrowed(pid: int, fd: int) -> socket.socket:
    """The same socket in this process."""
    holder = os.pidfd_open(pid)
    try:
        ours = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, holder, fd, 0)
    finally:
        os.close(holder)
    if ours < 0:
        pytest.skip("this system lets no process take another's sockets (ptrace is restricted)")
    return socket.socket(fileno=ours)
