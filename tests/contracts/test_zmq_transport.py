"""ZeroMQ alone: addresses, strangers, oversized frames, waiting, and that the ledger counts what crossed the wire."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import zmq

from dist_spec.core.messages import Bye, Message
from dist_spec.errors import TransportError
from dist_spec.transports.base import LEADER, Received
from dist_spec.transports.codec import MAX_FRAME_BYTES, decode, encode
from dist_spec.transports.zmq import ZmqLeader, ZmqPeer
from tests.contracts.transport_cases import collect, ping, wait_for


@pytest.fixture
def leader() -> Iterator[ZmqLeader]:
    end = ZmqLeader()
    yield end
    end.close()


def test_oversized_frames_never_arrive(leader: ZmqLeader) -> None:
    context = zmq.Context()
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(leader.address)
        dealer.send(b"\0" * (MAX_FRAME_BYTES + 1))
        assert leader.receive(0.5) == []
        peer = ZmqPeer(leader.address, "d0")
        peer.send(LEADER, ping(1))
        received = []

        def arrived() -> bool:
            peer.receive(0.0)
            received.extend(leader.receive(0.02))
            return bool(received)

        wait_for(arrived)
        assert received == [("d0", ping(1))]
        peer.close()
        dealer.close(linger=0)
    context.term()


def test_bytes_that_are_no_zeromq_at_all(leader: ZmqLeader) -> None:
    host, port = leader.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        assert leader.receive(0.2) == []


def test_anonymous_peers_can_be_answered(leader: ZmqLeader) -> None:
    context = zmq.Context()
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(leader.address)
        dealer.send_multipart(encode(ping(4)))
        [(name, message)] = collect(leader, 1)
        assert name.startswith("?")
        assert message == ping(4)
        leader.send(name, Bye(reason="no name", fatal=True))
        assert dealer.poll(5000)
        assert decode(dealer.recv_multipart()) == Bye(reason="no name", fatal=True)
        dealer.close(linger=0)
    context.term()


def test_a_living_predecessor_is_replaced(leader: ZmqLeader) -> None:
    old = ZmqPeer(leader.address, "d0")
    received: list[Received] = []

    def arrived(end: ZmqPeer, message: Message) -> bool:
        end.receive(0.0)
        received.extend(leader.receive(0.02))
        return ("d0", message) in received

    old.send(LEADER, ping(1))
    wait_for(lambda: arrived(old, ping(1)))
    new = ZmqPeer(leader.address, "d0")
    new.send(LEADER, ping(2))
    wait_for(lambda: arrived(new, ping(2)))
    old.close()
    new.close()


def test_an_end_that_nobody_closed_does_not_hang_the_collector() -> None:
    code = (
        "import gc\n"
        "from dist_spec.transports.zmq import ZmqLeader\n"
        "for _ in range(5):\n"
        "    end = ZmqLeader(); end.me = end\n"
        "    del end; gc.collect()\n"
        "print('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "alive\n"


def test_receive_waits_no_longer_than_told_and_no_shorter(leader: ZmqLeader) -> None:
    start, busy = time.monotonic(), time.process_time()
    assert leader.receive(0.3) == []
    assert 0.29 <= time.monotonic() - start < 2.0
    assert time.process_time() - busy < 0.1, "waiting must not spin"


def test_port_in_use(leader: ZmqLeader) -> None:
    with pytest.raises(TransportError, match="in use") as caught:
        ZmqLeader(leader.address)
    assert caught.value.fix


@pytest.mark.parametrize("address", ["tcp://*:0", "tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://eth0:0"])
def test_open_addresses_need_consent(address: str) -> None:
    with pytest.raises(TransportError, match="other hosts") as caught:
        ZmqLeader(address)
    assert "allow_plaintext" in str(caught.value.fix)


def test_open_address_with_consent() -> None:
    leader = ZmqLeader("tcp://0.0.0.0:0", allow_plaintext=True)
    peer = ZmqPeer(leader.address.replace("0.0.0.0", "127.0.0.1"), "d0")
    peer.send(LEADER, ping(1))
    received: list[Received] = []

    def arrived() -> bool:
        peer.receive(0.0)
        received.extend(leader.receive(0.02))
        return bool(received)

    wait_for(arrived)
    peer.close()
    leader.close()


@pytest.mark.parametrize("address", ["", "nonsense", "tcp://127.0.0.1", "tcp://127.0.0.1:99999", "udp://127.0.0.1:1"])
def test_malformed_addresses(address: str) -> None:
    with pytest.raises(TransportError):
        ZmqLeader(address)
    with pytest.raises(TransportError):
        ZmqPeer(address, "d0")


def test_an_address_of_another_host() -> None:
    with pytest.raises(TransportError, match="not an address of this host"):
        ZmqLeader("tcp://192.0.2.1:0", allow_plaintext=True)


@pytest.mark.parametrize("address", ["tcp://localhost:0", "tcp://127.0.0.1:*", "tcp://127.0.0.1:0"])
def test_loopback_addresses(address: str) -> None:
    leader = ZmqLeader(address)
    assert leader.address.startswith("tcp://127.0.0.1:")
    assert not leader.address.endswith((":0", ":*"))
    leader.close()
