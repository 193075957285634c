"""The leader's requests from opening to end: admission, queue, who owns them, what is told at the end. It decides nothing
about drafts and knows no sockets or clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from dist_spec.core.admission import TargetFacts, admissible
from dist_spec.core.ended import EndedRequests
from dist_spec.core.live import Live
from dist_spec.core.membership import Membership
from dist_spec.core.messages import Close, Message, Open
from dist_spec.core.scheduler import Scheduler
from dist_spec.errors import RequestError

Outgoing: TypeAlias = tuple[str, Message]
"""(peer, message)"""


class Requests:
    """All requests that have not ended.

    Attributes:
        live: by (request, generation), in order of arrival.
        stats: figures of the whole leader, sent to frontends with the end of each request.
    """

    def __init__(self, *, facts: TargetFacts, scheduler: Scheduler, membership: Membership) -> None:
        self.facts = facts
        self.scheduler = scheduler
        self.membership = membership
        self.live: dict[tuple[str, int], Live] = {}
        self.stats: Callable[[], dict[str, float]] = dict
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
        try:
            sequence = admissible(message, self.facts)
            self.scheduler.submit(sequence)
        except RequestError as error:
            return [*out, (peer, Close(request=key[0], generation=key[1], reason=f"error: {error}"))]
        self.live[key] = Live.start(sequence, owner=peer, now=now)
        return out

    def admit(self, *, now: float) -> list[Outgoing]:
        """Start waiting requests that fit; drafters hear of them at once, so both sides prefill in parallel."""
        out: list[Outgoing] = []
        for sequence in self.scheduler.admit():
            live = self.live[sequence.key]
            live.running, live.started_s = True, now
            out += [(peer, live.opening()) for peer in self.membership.drafters()]
        return out

    def close(self, key: tuple[str, int], *, reason: str) -> list[Outgoing]:
        """End a request and tell everyone who knows of it."""
        live = self.live.pop(key, None)
        if live is None:
            return []
        self._closed.append(key)
        self.scheduler.remove(key)
        goodbye = Close(request=key[0], generation=key[1], reason=reason)
        out: list[Outgoing] = [(peer, goodbye) for peer in self.membership.drafters()] if live.running else []
        if live.owner in self.membership.members:
            length = len(live.sequence.prefix) if live.sequence.finish_reason else 0
            goodbye = replace(goodbye, stats={**live.report(), **self.stats()}, length=length)
            out.append((live.owner, goodbye))
        self._ended.remember(live.sequence, owner=live.owner, close=goodbye)
        return out

    def take_closed(self) -> list[tuple[str, int]]:
        """Requests that ended since the last call."""
        closed, self._closed = self._closed, []
        return closed

    def tell_all(self, peer: str) -> list[Outgoing]:
        """Every running request from the start, if the peer is a drafter: late joiners and revived peers catch up."""
        if peer not in self.membership.drafters():
            return []
        return [(peer, live.opening()) for live in self.live.values() if live.running]

    def nobody_waits_for(self, peer: str) -> None:
        """A peer owes no answer any more."""
        for live in self.live.values():
            live.asked.discard(peer)
