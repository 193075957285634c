"""Notices that a rank of the group is dead or stuck and ends this process with the rank and the cause. It knows the store
where the ranks meet, and nothing of what they compute.

Two threads: one counts how long the present piece of work has lasted (in ticks of its own, so that a process that was
stopped as a whole is not blamed when it goes on), one looks into the store for what other ranks have to say. A rank that
notices a failure writes it there; whoever neither wrote nor answers within a moment is the dead one.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

from dist_spec.errors import WorkerError

_TICK_S = 0.25
_LOOK_S = 0.5
_GRACE_S = 1.5
"""Others look into the store every half second, so whoever lives has answered by then."""


class Watch:
    """The watch of one rank, from its start to `stop`.

    Args:
        store: where the ranks meet, for this watch alone (a store's client answers one question at a time).
        timeout_s: longest a piece of work may last.
    """

    def __init__(self, store: Any, *, rank: int, size: int, timeout_s: float) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._work: tuple[str, int] | None = None  # and at which tick it began
        self._ticks = 0
        self._meets: tuple[str, int] | None = None  # a place, and at which tick this rank came there
        self._reason: str | None = None
        self._found: str | None = None
        self._first: str | None = None
        self._arrived: str | None = None
        self._patience_s = self._told_s = 0.0
        store.set(f"who/{rank}", f"{socket.gethostname()} pid {os.getpid()}")
        self._who: list[str] = []

    def start(self) -> None:
        """After all ranks have said who they are."""
        self._who = [self._store.get(f"who/{rank}").decode() for rank in range(self.size)]
        for loop in (self._count, self._look):
            threading.Thread(target=loop, name=f"watch{loop.__name__}", daemon=True).start()

    def doing(self, work: str | None) -> None:
        """A new piece of work begins (None: nothing that other ranks wait for)."""
        # The count is never set back: its own thread alone writes it, so no old count is taken for that of new work.
        self._work = None if work is None else (work, self._ticks)

    def meets(self, place: str | None, *, patience_s: float = 0.0) -> None:
        """This rank waits for the others at a place that has a name of its own (None: all have come). From time to time it
        is told who is missing; after `patience_s` all ranks end."""
        self._patience_s, self._told_s = patience_s, 0.0
        self._meets = None if place is None else (place, self._ticks)

    def stop(self) -> None:
        """The ranks part in peace."""
        self._stopped.set()

    def failure(self, error: BaseException) -> WorkerError:
        """What to raise for an error of this rank, which may come from another's death; others are told."""
        self.doing(None)
        return WorkerError(self._conclude(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))

    def _count(self) -> None:
        while not self._stopped.wait(_TICK_S):
            self._ticks += 1
            work = self._work
            if work is not None and (self._ticks - work[1]) * _TICK_S > self._timeout_s:
                self._die(f"no progress for {self._timeout_s:g} s while {work[0]}")

    def _look(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            try:
                failed = self._store.check(["failed"])
            except Exception:
                if self._stopped.wait(_LOOK_S):  # the leader may have left in peace
                    return
                self._die("its store does not answer")
            else:
                if failed:
                    self._die(None)
                self._look_who_is_missing()

    def _look_who_is_missing(self) -> None:
        meets = self._meets
        if meets is None:
            return
        place, since = meets
        waited_s = (self._ticks - since) * _TICK_S
        try:
            if self._arrived != place:
                self._store.set(f"{place}/{self.rank}", b"")
                self._arrived = place
            if waited_s - self._told_s < min(self._timeout_s, self._patience_s):
                return
            missing = [rank for rank in range(self.size) if not self._store.check([f"{place}/{rank}"])]
        except Exception:
            return  # the next look finds out why
        if missing and waited_s >= self._patience_s:
            self._die(f"{self._ranks(missing)} did not come within {waited_s:.0f} s: {place}")
        elif missing:
            self._told_s = waited_s
            print(
                f"still waiting for {self._ranks(missing)} after {waited_s:.0f} s: {place}", file=sys.stderr, flush=True
            )

    def _die(self, reason: str | None) -> None:
        """Ends the process: its main thread may be in a call that never returns."""
        message = self._conclude(reason)
        if not self._stopped.is_set():
            print(f"error: {message}", file=sys.stderr, flush=True)
            os._exit(WorkerError.exit_code)

    def _conclude(self, reason: str | None) -> str:
        """Tell the others and find out who is dead. The first call of this process counts."""
        with self._lock:
            if self._reason is None:
                # In a thread of its own: a leader that is stuck does not answer, nor refuse, questions to its store.
                inquiry = threading.Thread(target=self._inquire, args=(reason,), name="watch_inquire", daemon=True)
                inquiry.start()
                inquiry.join(2 * _GRACE_S)
                state = "is stuck" if inquiry.is_alive() else "is dead"
                leader = f"rank 0 of {self.size} ({self._name(0)}), the leader, {state}" + _because(reason)
                self._reason = self._found or self._first or leader
            return f"target rank {self.rank} ends: {self._reason}"

    def _inquire(self, reason: str | None) -> None:
        try:
            self._found = self._told(reason)
        except Exception:  # the store is gone, and with it the leader
            return

    def _told(self, reason: str | None) -> str:
        store = self._store
        if reason is not None and store.add("failed", 1) == 1:
            store.set("first", f"rank {self.rank} of {self.size} ({self._name(self.rank)}) failed: {reason}")
        store.set(f"here/{self.rank}", b"")
        self._stopped.wait(_GRACE_S / 3)
        if store.check(["first"]):  # looked up early: a leader that failed takes its store along a moment later
            self._first = store.get("first").decode()
        self._stopped.wait(2 * _GRACE_S / 3)
        missing = [rank for rank in range(self.size) if not store.check([f"here/{rank}"])]
        if missing:
            return f"{self._ranks(missing)} is dead or stuck" + _because(reason)
        return str(self._first or reason)

    def _ranks(self, ranks: Sequence[int]) -> str:
        return ", ".join(f"rank {rank} of {self.size} ({self._name(rank)})" for rank in ranks)

    def _name(self, rank: int) -> str:
        return self._who[rank] if self._who else "unknown"


def _because(reason: str | None) -> str:
    return "" if reason is None else f" ({reason})"
