"""The leader's requests from opening to end: admission, queue, who owns them, what is told at the end. It decides nothing
about drafts and knows no sockets or clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from dist_spec.core.admission import TargetFacts, admissible
from dist_spec.core.assignment import Assignment
from dist_spec.core.ended import EndedRequests
from dist_spec.core.live import Live
from dist_spec.core.membership import Membership
from dist_spec.core.messages import DRAINING, Close, Message, Open
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.unread import Unread
from dist_spec.errors import RequestError

Outgoing: TypeAlias = tuple[str, Message]
"""(peer, message)"""


class Requests:
    """All requests that have not ended.

    Attributes:
        live: by (request, generation), in order of arrival.
        stats: figures of the whole leader, sent to frontends with the end of each request.
        draining: nothing new is taken in.
        unread: ends that frontends were told of.
    """

    def __init__(
        self, *, facts: TargetFacts, scheduler: Scheduler, membership: Membership, assignment: Assignment
    ) -> None:
        self.facts = facts
        self.assignment = assignment
        self.scheduler = scheduler
        self.membership = membership
        self.live: dict[tuple[str, int], Live] = {}
        self.stats: Callable[[], dict[str, float]] = dict
        self.draining = False
        self.unread = Unread()
        self._closed: list[tuple[str, int]] = []
        self._ended = EndedRequests()

    def open(self, message: Open, *, peer: str, now: float) -> list[Outgoing]:
        """Begin a request. One that cannot be served is closed at once with the reason; others are untouched."""
        key = (message.request, message.generation)
        same = [live for live in self.live.values() if live.sequence.request == message.request]
        if any(live.owner != peer for live in same):
            reason = f"error: another frontend's request is called {message.request!r} too"
            return [(peer, Close(request=key[0], generation=key[1], reason=reason))]
        if any(live.sequence.generation >= message.generation for live in same):
            return []  # a repeated or late message
        if told := self._ended.again(message, peer=peer):
            return told
        out = [sent for live in same for sent in self.close(live.sequence.key, reason="abort")]
        if self.draining:
            self.unread.told(key, peer=peer)
            return [*out, (peer, Close(request=key[0], generation=key[1], reason=DRAINING))]
        try:
            sequence = admissible(message, self.facts)
            if sequence.finish_reason:  # a predecessor of this leader decoded all of it
                end = Close(
                    request=key[0], generation=key[1], reason=sequence.finish_reason, length=len(sequence.prefix)
                )
                return [*out, (peer, end)]
            self.scheduler.submit(sequence)
        except RequestError as error:
            return [*out, (peer, Close(request=key[0], generation=key[1], reason=f"error: {error}"))]
        self.live[key] = Live.start(sequence, owner=peer, now=now)
        return out

    def drain(self) -> list[Outgoing]:
        """Take in nothing more; what has not begun to run is given back."""
        self.draining = True
        waiting = [key for key, live in self.live.items() if not live.running]
        return [sent for key in waiting for sent in self.close(key, reason=DRAINING)]

    def give_back(self) -> list[Outgoing]:
        """Whoever opened what is still running may go on with it elsewhere."""
        self.draining = True
        return [sent for key in list(self.live) for sent in self.close(key, reason=DRAINING)]

    def admit(self, *, now: float) -> None:
        """Start waiting requests that fit; drafters hear of them at once (`settle`), so both sides prefill in parallel."""
        for sequence in self.scheduler.admit():
            live = self.live[sequence.key]
            live.running, live.started_s = True, now
            self.assignment.began(sequence.key)

    def settle(self, *, now: float) -> list[Outgoing]:
        """Tell drafters of requests that they serve and know nothing of; let them forget those that others serve now."""
        out: list[Outgoing] = []
        if not self.assignment.update(now=now):
            return out
        for key, live in self.live.items():
            if not live.running:
                continue
            serving = self.assignment.serving(key)
            if live.told == set(serving):
                continue
            out += [(peer, live.opening()) for peer in serving if peer not in live.told]
            gone = live.told.difference(serving)
            goodbye = Close(request=key[0], generation=key[1], reason="reassigned")
            out += [(peer, goodbye) for peer in self.membership.drafters() if peer in gone]
            live.asked -= gone
            live.told = set(serving)
        return out

    def close(self, key: tuple[str, int], *, reason: str) -> list[Outgoing]:
        """End a request and tell everyone who knows of it."""
        live = self.live.pop(key, None)
        if live is None:
            return []
        self._closed.append(key)
        self.scheduler.remove(key)
        self.assignment.ended(key)
        goodbye = Close(request=key[0], generation=key[1], reason=reason)
        out: list[Outgoing] = [(peer, goodbye) for peer in self.membership.drafters() if peer in live.told]
        if live.owner in self.membership.members:
            length = len(live.sequence.prefix) if live.sequence.finish_reason else 0
            goodbye = replace(goodbye, stats={**live.report(), **self.stats()}, length=length)
            self.unread.told(key, peer=live.owner)
            out.append((live.owner, goodbye))
        self._ended.remember(live.sequence, owner=live.owner, close=goodbye)
        return out

    def take_closed(self) -> list[tuple[str, int]]:
        """Requests that ended since the last call."""
        closed, self._closed = self._closed, []
        return closed

    def knows_nothing(self, peer: str) -> None:
        """A drafter lost what it was told, or is gone; nobody waits for it."""
        self.assignment.touched()
        for live in self.live.values():
            live.told.discard(peer)
            live.asked.discard(peer)
