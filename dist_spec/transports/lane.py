"""One `Pair` with its queues: whole messages of frames go in and come out, and nobody who uses it ever waits. It knows no
message, peer or ledger.

Sending begins at once, in the caller's thread. gloo tells of an end only to whoever waits for it, so a lane has two threads,
one for what is sent and one for what comes; they wait outside of Python. Both ends send a beat when they have nothing else
to say: an end that is silent beyond the deadline is given up. A lane that broke stays so; its owner goes on without it, or
makes another.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle
from threading import Condition, Thread
from time import monotonic

from dist_spec.errors import DistSpecError, TransportError
from dist_spec.transports import parcel as p
from dist_spec.transports.bell import Bell
from dist_spec.transports.codec import Frame
from dist_spec.transports.pair import Pair

LEFT = "the other end left"
"""Why a lane is over whose other end said so."""

_POSTED = 8
"""Receives posted ahead, so that no sender has to ask first."""
_BEATS = 4
"""Beats in a deadline."""
PATIENCE_S = 0.25
"""How long `close` may wait for the last messages to leave."""


class Lane:
    """Ends of lanes are made apart and meet in threads of their own.

    Args:
        meet: makes this end's pair; may take its time, and raise.
        bell: rung when something came, or the lane came up or broke.
        high_water: messages that may wait here to be sent, and to be taken.
        deadline_s: an end that is not heard for so long, or takes nothing, is gone.
        cores: where its threads run (None: where the caller runs).

    Attributes:
        is_up: it was up, at least.
        reason: why it is over; "" while it is not.
    """

    def __init__(
        self,
        meet: Callable[[], Pair],
        *,
        bell: Bell,
        high_water: int,
        deadline_s: float,
        cores: frozenset[int] | None = None,
    ) -> None:
        self.is_up = False
        self.reason = ""
        self._meet = meet
        self._bell = bell
        self._high_water = high_water
        self._beat_s = deadline_s / _BEATS
        self._cores = cores
        self._changed = Condition()
        self._out: deque[p.Parcel] = deque()
        self._in: deque[list[Frame]] = deque()
        self._pair: Pair | None = None
        self._is_urgent = False
        self._closing = False
        self._sender: Thread | None = None
        self._receiver = Thread(target=self._run, name="lane in", daemon=True)
        self._receiver.start()

    @property
    def is_over(self) -> bool:
        """It broke or was closed; `reason` says why."""
        return bool(self.reason)

    @property
    def has_mail(self) -> bool:
        """Whether `take` would find something."""
        return bool(self._in)

    @property
    def takes_tensors(self) -> bool:
        """Whether both ends keep tensors on devices, so that they need not visit the host."""
        pair = self._pair
        return pair is not None and pair.backend == "nccl"

    def offer(self, frames: Sequence[Frame]) -> bool:
        """Have a message sent; False when it cannot be taken now (too many wait, not up yet, or over)."""
        with self._changed:
            pair = self._pair
            # Twice: some have left long ago, and only the other thread, once it runs, finds out which.
            if pair is None or self._closing or len(self._out) >= 2 * self._high_water:
                return False
            parcel = p.Parcel(frames=frames, ready=pair.mark(frames))
            if all(one.works and not one.later for one in self._out) and not p.needs_device(pair, frames):
                try:
                    p.start(pair, parcel)
                except TransportError as error:
                    self.fail(error.message)
                    return False
            self._out.append(parcel)
            # What has begun ends by itself. To wake a thread for each is not free: it wants Python's lock at once.
            if not parcel.works or 2 * len(self._out) > self._high_water:
                self._is_urgent = True
                self._changed.notify_all()
        return True

    def take(self) -> list[list[Frame]]:
        """All messages that have come; also those that came before the lane broke."""
        with self._changed:
            arrived, self._in = list(self._in), deque()
            self._changed.notify_all()
        return arrived

    def leave(self) -> None:
        """Take nothing more, let what waits leave, and say farewell; does not wait."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self, *, until_s: float | None = None) -> None:
        """Leave, and wait for it until that moment (monotonic; None: for `PATIENCE_S`)."""
        until_s = monotonic() + PATIENCE_S if until_s is None else until_s
        self.leave()
        for thread in (self._sender, self._receiver):
            if thread is not None and self.is_up and not self.is_over:
                thread.join(max(until_s - monotonic(), 0.0))
        self.fail("closed")

    def fail(self, reason: str) -> None:
        """It is over, for this reason unless there was one before."""
        with self._changed:
            self.reason = self.reason or reason
            self._pair = None  # with the last reference the connection ends
            self._out.clear()
            self._changed.notify_all()
        self._bell.ring()

    # ---- the two threads ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """The receiving thread: it also makes the pair."""
        pair: Pair | None = None
        try:
            if self._cores:
                os.sched_setaffinity(0, self._cores)  # of this thread, and of those that it starts
            pair = self._meet()
            with self._changed:
                if self.is_over:
                    return
                self._pair = pair
                self._sender = Thread(target=self._send_all, args=(pair,), name="lane out", daemon=True)
                self._sender.start()
                self.is_up = True
            self._bell.ring()
            self._receive_all(pair)
        except Exception as error:  # whatever it was: this lane is lost, and nothing else
            self.fail(_told(error))
        finally:
            if pair is not None:
                pair.abort()

    def _receive_all(self, pair: Pair) -> None:
        boxes = [pair.buffer(p.HEADER_BYTES) for _ in range(_POSTED)]
        works = deque(pair.expect(box) for box in boxes)
        try:
            for box in cycle(boxes):
                pair.heard(works.popleft())
                what, frames = p.read(pair, box)
                if what == p.FAREWELL:
                    return self.fail(LEFT)
                if what == p.FRAMES:
                    self._came(frames)
                if self.is_over:
                    return
                works.append(pair.expect(box))
        finally:
            works.clear()  # before the boxes that they write to

    def _came(self, frames: list[Frame]) -> None:
        with self._changed:
            self._in.append(frames)
        self._bell.ring()
        with self._changed:  # not received is not lost: it waits at the other end, which drops what is oldest
            self._changed.wait_for(lambda: len(self._in) < self._high_water or self.is_over)

    def _send_all(self, pair: Pair) -> None:
        """The other thread: it waits for the end of what `offer` began, and sends what takes longer to begin."""
        try:
            while True:
                parcel = self._next()
                if parcel is None:
                    return
                if not parcel.works:
                    p.start(pair, parcel)
                pair.finish(parcel.works)
                for body in parcel.later:
                    pair.send_body(body, after=parcel.ready)
                if parcel.what == p.FAREWELL:
                    return
                with self._changed:
                    if self._out and self._out[0] is parcel:
                        self._out.popleft()
        except Exception as error:
            self.fail(_told(error))

    def _next(self) -> p.Parcel | None:
        """What to look after now: the oldest message, a beat when there was none for long, the last word; None: nothing
        ever."""
        with self._changed:
            if not (self._out and self._is_urgent):
                self._is_urgent = False
                self._changed.wait_for(lambda: self._is_urgent or self._closing or self.is_over, self._beat_s)
                self._is_urgent = True  # until nothing is left
            if self.is_over:
                return None
            if self._out:
                return self._out[0]
            return p.Parcel(frames=(), what=p.FAREWELL if self._closing else p.BEAT)


def _told(error: Exception) -> str:
    return error.message if isinstance(error, DistSpecError) else f"{type(error).__name__}: {error}"
