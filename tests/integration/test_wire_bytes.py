"""The transfer ledger against the wire itself: a relay between the ends reads ZeroMQ's own framing and counts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic, sleep

import pytest

from dist_spec.core.admission import TargetFacts
from dist_spec.core.attachment import Attachment
from dist_spec.core.block_manager import BlockManager
from dist_spec.core.draft_session import DraftSession
from dist_spec.core.membership import Membership
from dist_spec.core.messages import Hello
from dist_spec.core.plan import Plan
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.settings import Speculation
from dist_spec.core.target_session import Outcome, TargetSession
from dist_spec.core.types import Sampling
from dist_spec.drafters.ngram import NgramDrafter
from dist_spec.server.client import Client
from dist_spec.sim.devices import ScriptedTarget
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.ledger import Ledger
from dist_spec.transports.zmq import ZmqLeader, ZmqPeer
from dist_spec.workers.draft import DraftWorker
from dist_spec.workers.loop import run_draft_loop, run_target_loop
from dist_spec.workers.target import TargetWorker
from tests.integration.process_cases import wait_for

GREETING_BYTES = 64
COMMAND, LONG = 4, 2
SETTINGS = Speculation(budget=8, num_draft_tokens=8)
PROMPT = [*range(40_000, 40_012), 7, 8, 9]
TEXT = [*PROMPT, *(PROMPT * 40)]
VERIFY_S = 0.004


def message_bytes(stream: bytes) -> int:
    """Bytes of all message frames in one direction of a ZeroMQ connection (ZMTP 3: flags, length, body)."""
    at, total = GREETING_BYTES, 0
    while at < len(stream):
        flags = stream[at]
        wide = 8 if flags & LONG else 1
        size = int.from_bytes(stream[at + 1 : at + 1 + wide], "big")
        at += 1 + wide + size
        total += 0 if flags & COMMAND else size
    assert at == len(stream), "the stream ends between two frames"
    return total


@dataclass
class Relay:
    """Passes bytes both ways between one peer and the leader, and keeps them."""

    target: tuple[str, int]
    to_leader: bytearray = field(default_factory=bytearray)
    to_peer: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        with self.listener, self.listener.accept()[0] as peer, socket.create_connection(self.target) as leader:
            upward = threading.Thread(target=_pass_on, args=(peer, leader, self.to_leader))
            upward.start()
            _pass_on(leader, peer, self.to_peer)
            upward.join()

    def seen(self) -> tuple[int, int]:
        """Message bytes towards the leader and towards the peer, once both have hung up."""
        self.thread.join(timeout=60)
        assert not self.thread.is_alive()
        return message_bytes(bytes(self.to_leader)), message_bytes(bytes(self.to_peer))


def _pass_on(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            kept += data
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class SlowTarget(ScriptedTarget):
    """Takes its time, as a model does."""

    def collect(self, plan: Plan) -> list[Outcome]:
        sleep(VERIFY_S)
        return super().collect(plan)


class Leader:
    """The leader's loop in a thread of its own."""

    def __init__(self) -> None:
        self.session = TargetSession(
            SETTINGS,
            facts=TargetFacts(max_model_len=4096, vocab_size=50_000),
            scheduler=Scheduler(BlockManager(1024, block_size=16), max_sequences=4, lookahead=SETTINGS.budget + 1),
            membership=Membership(),
        )
        self.transport = ZmqLeader()
        host, port = self.transport.address.removeprefix("tcp://").split(":")
        self.place = (host, int(port))

    def run(self, stopping: Callable[[], bool]) -> None:
        worker = TargetWorker(self.session, backend=SlowTarget(lambda key: TEXT), transport=self.transport)
        run_target_loop(worker, timeline=Timeline(monotonic), stopping=stopping)


def draft(transport: ZmqPeer, stopping: Callable[[], bool]) -> None:
    worker = DraftWorker(
        DraftSession(SETTINGS),
        drafter=NgramDrafter(),
        transport=transport,
        attachment=Attachment(Hello(role="drafter", name="d0")),
    )
    run_draft_loop(worker, timeline=Timeline(monotonic), stopping=stopping)


@contextmanager
def running(*loops: Callable[[Callable[[], bool]], None]) -> Iterator[None]:
    stop = threading.Event()
    threads = [threading.Thread(target=loop, args=(stop.is_set,)) for loop in loops]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()


def bytes_of(ledger: Ledger, direction: str, *, peer: str | None = None) -> int:
    rows = [row for row in ledger.rows() if row.direction == direction and peer in (None, row.peer)]
    return sum(row.num_bytes for row in rows)


def test_the_ledgers_of_both_ends_and_the_wire_agree_to_the_byte() -> None:
    leader = Leader()
    relays = {name: Relay(leader.place) for name in ("d0", "frontend")}
    drafter, frontend = (ZmqPeer(relays[name].address, name) for name in ("d0", "frontend"))
    client = Client(frontend, name="frontend")
    with running(leader.run, lambda stopping: draft(drafter, stopping)):
        assert client.connect(timeout_s=60)
        wait_for(lambda: "d0" in leader.session.membership.members)
        sampling = Sampling(max_tokens=200, ignore_eos=True)
        streams = [client.open(f"chatcmpl-{i:032x}", prompt=PROMPT, sampling=sampling) for i in range(2)]
        for _ in client.follow():
            pass
    ends = {"d0": drafter, "frontend": frontend}

    def arrived() -> bool:
        """Nothing is under way any more."""
        for end in (leader.transport, *ends.values()):
            end.receive(0.0)
        at_leader = leader.transport.ledger
        return all(
            bytes_of(end.ledger, one) == bytes_of(at_leader, other, peer=name)
            for name, end in ends.items()
            for one, other in (("out", "in"), ("in", "out"))
        )

    wait_for(arrived)
    for end in (*ends.values(), leader.transport):
        end.close()
    assert all(stream.tokens == TEXT[len(PROMPT) : len(PROMPT) + 200] for stream in streams)
    for name, relay in relays.items():
        upward, downward = relay.seen()
        assert bytes_of(ends[name].ledger, "out") == bytes_of(leader.transport.ledger, "in", peer=name) == upward
        assert bytes_of(ends[name].ledger, "in") == bytes_of(leader.transport.ledger, "out", peer=name) == downward
        assert upward > 100
        assert downward > 100
    check_times(leader)


def check_times(leader: Leader) -> None:
    """It speculated, for little, and nobody waited for what came: it came during verifications."""
    counts, ledger = leader.session.counts, leader.transport.ledger
    assert counts.accepted > 100
    moving = [row for row in ledger.totals() if row.kind in ("commit", "propose")]
    assert sum(row.num_bytes for row in moving) / counts.committed < 100
    proposals = ledger.total("propose", direction="in")
    assert 0 < proposals.hidden_s <= proposals.transit_s
    assert proposals.hidden_s > proposals.transit_s / 2
    assert proposals.exposed_s == pytest.approx(0.0)
