"""A lane between two ends in one process: frames arrive as they were, whatever their number and size, and faults end it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import timedelta
from time import monotonic

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dist_spec.transports import parcel as p
from dist_spec.transports.bell import Bell
from dist_spec.transports.lane import LEFT, Lane
from dist_spec.transports.pair import Pair

DEADLINE_S = 5.0


class Meeting:
    """A store, and ends that meet there one after the other."""

    def __init__(self) -> None:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            self.port = listening.getsockname()[1]
            self._store = dist.TCPStore(
                "127.0.0.1", self.port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
            )
        self.bell = Bell()
        self._number = 0

    def pair(self, rank: int, key: str, *, deadline_s: float = DEADLINE_S) -> Pair:
        client = dist.TCPStore("127.0.0.1", self.port, is_master=False, timeout=timedelta(seconds=10))
        store = dist.PrefixStore(key, client)
        return Pair(store, rank=rank, backend="gloo", device="cpu", host="127.0.0.1", deadline_s=deadline_s)

    def lane(self, rank: int, key: str, *, deadline_s: float = DEADLINE_S, high_water: int = 16) -> Lane:
        def meet() -> Pair:
            return self.pair(rank, key, deadline_s=deadline_s)

        return Lane(meet, bell=self.bell, high_water=high_water, deadline_s=deadline_s)

    def lanes(self, **options: float) -> tuple[Lane, Lane]:
        self._number += 1
        ends = [self.lane(rank, f"k{self._number}", **options) for rank in range(2)]  # type: ignore[arg-type]
        self.until(lambda: all(end.is_up for end in ends))
        return ends[0], ends[1]

    def until(self, condition: object) -> None:
        start = monotonic()
        while not condition():  # type: ignore[operator]
            assert monotonic() - start < 20
            self.bell.silence()
            self.bell.wait(0.01)


@pytest.fixture(scope="module")
def meeting() -> Iterator[Meeting]:
    meeting = Meeting()
    yield meeting
    meeting.bell.close()


def receive(meeting: Meeting, lane: Lane, count: int) -> list[list[p.Frame]]:
    found: list[list[p.Frame]] = []
    meeting.until(lambda: found.extend(lane.take()) or len(found) >= count)
    return found


def test_frames_arrive_as_they_were(meeting: Meeting) -> None:
    left, right = meeting.lanes()
    draw = np.random.default_rng(1)
    messages = [
        [draw.bytes(size) for size in sizes]
        for sizes in ([], [0], [1], [5, 0, 7], [p.HEADER_BYTES - 24], [p.HEADER_BYTES - 23], [1 << 20, 3], [2] * 300)
    ]
    for lane, other in ((left, right), (right, left)):
        for frames in messages:
            assert lane.offer(frames)
        assert [[bytes(frame) for frame in frames] for frames in receive(meeting, other, len(messages))] == messages
    left.close()
    meeting.until(lambda: right.is_over)
    assert right.reason == LEFT


def test_tensors_arrive_as_tensors_in_their_places(meeting: Meeting) -> None:
    left, right = meeting.lanes()
    tensors = [torch.arange(size, dtype=torch.int32).view(torch.uint8) for size in (3, 0, 100_000)]
    sent: list[list[p.Frame]] = [[b"a", tensors[0], b"b"], [tensors[2], b"c" * 200_000], [b""], [tensors[1], b"d"]]
    for frames in sent * 3:
        assert left.offer(frames)
    for came, frames in zip(receive(meeting, right, 12), sent * 3, strict=True):
        assert len(came) == len(frames)
        for one, other in zip(came, frames, strict=True):
            if isinstance(other, torch.Tensor) and len(other):
                assert isinstance(one, torch.Tensor)
                assert torch.equal(one, other)
            else:
                assert bytes(one) == bytes(other if isinstance(other, bytes) else b"")  # type: ignore[arg-type]
    left.close()
    right.close()


def test_beats_keep_a_lane_alive_that_has_nothing_to_say(meeting: Meeting) -> None:
    left, right = meeting.lanes(deadline_s=2.0)
    start = monotonic()
    meeting.until(lambda: monotonic() - start > 4.5)
    assert left.offer([b"still here"])
    assert receive(meeting, right, 1) == [[b"still here"]]
    left.close()
    right.close()


@pytest.mark.parametrize(
    "head", [b"\0" * 16, b"\xff" * 64, p._HEAD.pack(p._MAGIC, p.FRAMES, 2, 9) + p._SIZE.pack(9) * 2]
)
def test_another_language_ends_the_lane_and_nothing_else(meeting: Meeting, head: bytes) -> None:
    lane = meeting.lane(0, f"strange{head[:2]!r}")
    other = meeting.pair(1, f"strange{head[:2]!r}")
    other.finish(other.start(torch.frombuffer(bytearray(head), dtype=torch.uint8)))
    meeting.until(lambda: lane.is_over)
    assert "other end" in lane.reason


def test_an_end_that_does_not_beat_is_gone_at_the_deadline(meeting: Meeting) -> None:
    lane = meeting.lane(0, "silent", deadline_s=0.4)
    other = meeting.pair(1, "silent")
    meeting.until(lambda: lane.is_over)
    assert "within 0.4 s" in lane.reason
    assert "other end" in lane.reason
    assert other.backend == "gloo"


def test_only_so_much_waits(meeting: Meeting) -> None:
    left, right = meeting.lanes(high_water=4)
    count = 0
    while left.offer([bytes(1 << 20)]):
        count += 1
        assert count < 200
    assert len(receive(meeting, right, count)) == count
    meeting.until(lambda: left.offer([b"room again"]))
    left.close()
    right.close()


def test_nobody_comes(meeting: Meeting) -> None:
    def meet() -> Pair:
        raise OSError("no way there")

    lane = Lane(meet, bell=meeting.bell, high_water=1, deadline_s=1.0)
    meeting.until(lambda: lane.is_over)
    assert "no way there" in lane.reason
    assert not lane.offer([b"x"])
    lane.close()
