"""The leader's end of the protocol as a sans-I/O state machine: messages and verdicts in, plans and messages out.

It decides everything (law 9) and commits nothing but what the target said (law 1). It knows no sockets, clocks or
tensors. One verification is `select` -> (a target runs the plan) -> `apply`; no message and no wait lies between an
`apply` and the next `select` unless the settings ask for one.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from dist_spec.core.admission import TargetFacts, admissible
from dist_spec.core.control.price import Price
from dist_spec.core.counts import SessionCounts
from dist_spec.core.ended import EndedRequests
from dist_spec.core.live import Live, plan_row
from dist_spec.core.membership import Membership
from dist_spec.core.messages import Bye, Close, Commit, Hello, Message, Need, Open, Ping, Propose
from dist_spec.core.plan import Plan, PlanRow, Wait
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.selection import select_chains, select_trees
from dist_spec.core.settings import Speculation
from dist_spec.core.types import Expansion, Verdict
from dist_spec.core.vocabulary import refusal
from dist_spec.core.waiting import Waiting
from dist_spec.errors import RequestError

Outgoing: TypeAlias = tuple[str, Message]
"""(peer, message)"""

Outcome: TypeAlias = Verdict | RequestError | None
"""A row's verdict; an error that ends this request alone; None for a prefill chunk that is not the last."""


class TargetSession:
    """Requests, their sequences and mirrors of their draft trees, peers, and the choice of what to verify."""

    def __init__(
        self, settings: Speculation, *, facts: TargetFacts, scheduler: Scheduler, membership: Membership
    ) -> None:
        self.settings = settings
        self.facts = facts
        self.scheduler = scheduler
        self.membership = membership
        self.price = Price()
        self.waiting = Waiting(settings, membership=membership, price=self.price)
        self.counts = SessionCounts()
        self.live: dict[tuple[str, int], Live] = {}
        self.run_stats: Callable[[], dict[str, float]] = dict
        self._closed: list[tuple[str, int]] = []
        self._ended = EndedRequests()
        self._last_apply_s: float | None = None
        self._held_up = False

    # ---- messages -------------------------------------------------------------------------------------------------

    def receive(self, peer: str, message: Message, *, now: float) -> list[Outgoing]:
        """Take in one message; returns what to send."""
        out: list[Outgoing] = []
        if self.membership.heard(peer, now=now) and not isinstance(message, Hello):
            out += self._tell_all(peer)
        match message:
            case Hello():
                return self._hello(peer, message, now=now)
            case Bye():
                return self.lost(peer, now=now)
            case _ if peer not in self.membership.members:
                return [(peer, Bye(reason="unknown peer: say hello first"))]
            case Open() if self.membership.members[peer].role == "frontend":
                out += self.open(message, peer=peer, now=now)
            case Propose():
                out += self._propose(peer, message, now=now)
            case Need():
                out += self._need(peer, message)
            case Close():
                live = self.live.get((message.request, message.generation))
                if live is not None and live.owner == peer:
                    out += self.close(live.sequence.key, reason="abort")
            case Ping():
                self.membership.members[peer].busy_s = message.busy_s
            case _:
                pass  # only the target commits (law 1)
        return out

    def _hello(self, peer: str, hello: Hello, *, now: float) -> list[Outgoing]:
        no = refusal(hello, self.facts.vocabulary, self.facts.vocabulary_tokens)
        if no is not None:
            return [(peer, no)]
        # Who greets again may have lost everything (a restart) or nothing (it only missed our pings). A drafter is told
        # everything anew; a frontend's requests go on: tokens that it does not expect are no harm to it.
        for live in self.live.values():
            live.asked.discard(peer)
        self.membership.join(peer, hello, now=now)
        # The pong tells a frontend that the leader is up; a drafter learns it from what it is told of.
        return [(peer, self._ping()), *self._tell_all(peer)]

    def _tell_all(self, peer: str) -> list[Outgoing]:
        """Every running request from the start: late joiners and revived peers catch up."""
        if peer not in self.membership.drafters():
            return []
        return [(peer, live.opening()) for live in self.live.values() if live.running]

    def _need(self, peer: str, need: Need) -> list[Outgoing]:
        key = (need.request, need.generation)
        live = self.live.get(key)
        if live is None or not live.running:
            return self._unknown(peer, need)
        prefix = live.sequence.prefix
        if not 0 < need.have_length <= len(prefix):
            return [(peer, live.opening(ask=peer in live.asked))]
        commit = Commit(
            request=need.request,
            generation=need.generation,
            base_length=need.have_length,
            base_digest=prefix.digests[need.have_length],
            tokens=np.array(prefix.tokens[need.have_length :], np.int32),
            ask=peer in live.asked,
        )
        return [(peer, commit)]

    def _unknown(self, peer: str, message: Need | Propose) -> list[Outgoing]:
        """A drafter may forget this request; a frontend is told of an end by its reason, or tells the request again."""
        if self.membership.members[peer].role != "drafter":
            return []
        return [(peer, Close(request=message.request, generation=message.generation, reason="unknown"))]

    def _propose(self, peer: str, proposal: Propose, *, now: float) -> list[Outgoing]:
        key = (proposal.request, proposal.generation)
        live = self.live.get(key)
        if live is None:
            return self._unknown(peer, proposal)
        member = self.membership.members[peer]
        member.proposals += 1
        self.counts.proposals += 1
        prefix = live.sequence.prefix
        known = prefix.matches(proposal.base_length, proposal.base_digest)
        # Seen as unsigned, a negative id is larger than any vocabulary.
        ids = proposal.tokens.view(np.uint32)
        in_vocabulary = not len(ids) or int(ids.max()) < self.facts.vocab_size
        if not known or not in_vocabulary:
            self.counts.stale += 1
            return []
        if len(live.tree) < 2 * self.settings.max_nodes:
            since = prefix.tokens[proposal.base_length :]
            before = len(live.tree)
            live.tree.graft_late(since, proposal.tokens, proposal.parents, proposal.scores)
            self.counts.drafted += len(live.tree) - before
            live.usage.drafted += len(live.tree) - before
            member.useful_nodes += len(live.tree) - before
        if proposal.base_length == len(prefix):
            self.waiting.answered(live, peer, now=now)
        return []

    def lost(self, peer: str, *, now: float) -> list[Outgoing]:
        """A peer is gone: nobody waits for it; a frontend's requests end with it."""
        member = self.membership.leave(peer)
        if member is None:
            return []
        out: list[Outgoing] = []
        for key, live in list(self.live.items()):
            live.asked.discard(peer)
            if live.owner == peer:
                out += self.close(key, reason="abort")
        return out

    def garbage(self, peer: str) -> list[Outgoing]:
        """A peer sent something that is no message: it is dropped and counted, and nothing else is touched."""
        self.counts.garbage += 1
        member = self.membership.members.get(peer)
        if member is not None:
            member.garbage += 1
        return []

    def tick(self, *, now: float) -> list[Outgoing]:
        """Heartbeats and silence; call now and then."""
        out: list[Outgoing] = []
        for peer in self.membership.silenced(now=now):
            for live in self.live.values():
                live.asked.discard(peer)
            if self.membership.members[peer].role == "frontend":
                out += self.lost(peer, now=now)
        self.membership.forget(now=now)
        return [*out, *((peer, self._ping()) for peer in self.membership.due_pings(now=now))]

    def _ping(self) -> Ping:
        return Ping(progress=self.counts.steps, num_drafters=len(self.membership.drafters()))

    # ---- requests -------------------------------------------------------------------------------------------------

    def open(self, message: Open, *, peer: str = "", now: float) -> list[Outgoing]:
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
            goodbye = replace(goodbye, stats={**live.report(), **self.run_stats()}, length=length)
            out.append((live.owner, goodbye))
        self._ended.remember(live.sequence, owner=live.owner, close=goodbye)
        return out

    def take_closed(self) -> list[tuple[str, int]]:
        """Requests that ended since the last call."""
        closed, self._closed = self._closed, []
        return closed

    def without_guess(self) -> list[Live]:
        """Running requests whose next step would be plain, though a guess could be verified."""
        if self.settings.budget <= 0:
            return []
        return [
            live
            for live in self.live.values()
            if live.running and live.tree.is_empty() and live.sequence.cached > 0 and live.depth_cap() > 0
        ]

    def guess(self, key: tuple[str, int], guess: Expansion) -> None:
        """Guesses made inside the leader, below the present head."""
        live = self.live[key]
        before = len(live.tree)
        live.tree.graft(live.tree.root, guess.tokens, guess.parents, guess.scores)
        self.counts.drafted += len(live.tree) - before
        live.usage.drafted += len(live.tree) - before

    @property
    def idle(self) -> bool:
        return not self.live

    # ---- one step -------------------------------------------------------------------------------------------------

    def admit(self, *, now: float) -> list[Outgoing]:
        """Start waiting requests that fit; drafters hear of them at once, so both sides prefill in parallel."""
        out: list[Outgoing] = []
        for sequence in self.scheduler.admit():
            live = self.live[sequence.key]
            live.running, live.started_s = True, now
            out += [(peer, live.opening()) for peer in self.membership.drafters()]
        return out

    def select(self, *, now: float) -> Plan | Wait | None:
        """What to do now: verify a plan, wait for an answer, or (None) nothing, as no request is running."""
        rows = [live for live in self.live.values() if live.running]
        if not rows:
            self._last_apply_s = None
            return None
        wait = self.waiting.due(rows, now=now)
        if wait is not None:
            self.counts.waits += not self._held_up
            self._held_up = True
            return wait
        self._held_up = False
        limits = self.scheduler.share_pending(live.sequence for live in rows)
        rows = rows[: len(limits)]
        caps = [live.depth_cap() if live.will_finish_pending(n) else 0 for live, n in zip(rows, limits, strict=True)]
        choose = select_chains if self.settings.verify_shape == "chain" else select_trees
        nodes = choose([live.tree for live in rows], depth_caps=caps, budget=self.settings.budget)
        planned = [
            plan_row(live, chosen, block_table=self.scheduler.tables[live.sequence.key], max_pending=limit)
            for live, chosen, limit in zip(rows, nodes, limits, strict=True)
        ]
        self.counts.steps += 1
        return Plan(
            step=self.counts.steps, rows=tuple(planned), budget=self.settings.budget, price=self.price.tokens_per_s
        )

    def apply(self, plan: Plan, outcomes: Seq[Outcome], *, now: float) -> list[Outgoing]:
        """Commit what the target said and tell everyone; a failed row ends its own request only."""
        out: list[Outgoing] = []
        committed = 0
        for row, outcome in zip(plan.rows, outcomes, strict=True):
            live = self.live.get(row.key)
            if live is None or not live.running:
                continue  # ended in mid-step, or ended and begun anew
            if isinstance(outcome, RequestError):
                out += self.close(row.key, reason=f"error: {outcome}")
                continue
            live.sequence.cached += row.forward.num_pending
            if outcome is not None:
                committed += len(outcome.tokens)
                out += self._commit(live, row, outcome, now=now)
        if self._last_apply_s is not None and committed:
            self.price.earned(committed, now - self._last_apply_s)
        self._last_apply_s = now
        return out

    def _commit(self, live: Live, row: PlanRow, verdict: Verdict, *, now: float) -> list[Outgoing]:
        sequence = live.sequence
        base_length, base_digest = len(sequence.prefix), sequence.prefix.digest
        sequence.cached += len(verdict.path)
        kept = sequence.accept(verdict.tokens)
        num_accepted = min(len(verdict.path), len(kept))
        if live.waited:
            self.waiting.miss_wait.brought(len(verdict.path))
        live.count(row, num_accepted=num_accepted, now=now)
        self.counts.row(row, num_accepted=num_accepted, num_kept=len(kept))
        finished = bool(sequence.finish_reason)
        live.tree.advance(kept)
        asked = self.waiting.ask(live, asks=not finished and live.depth_cap() > 0, now=now)
        commit = Commit(
            request=sequence.request,
            generation=sequence.generation,
            base_length=base_length,
            base_digest=base_digest,
            tokens=np.array(kept, np.int32),
            num_accepted=num_accepted,
        )
        out: list[Outgoing] = []
        if not finished:
            told = live.tell_twice(commit)
            out += [(peer, replace(told, ask=peer in asked)) for peer in self.membership.drafters()]
        if live.owner in self.membership.members:
            known = verdict.margin == verdict.margin  # not NaN: the target reports margins
            margins = np.full(len(kept) if known else 0, verdict.margin, np.float32)
            out.append((live.owner, replace(commit, margins=margins)))
        if finished:
            out += self.close(live.sequence.key, reason=sequence.finish_reason)
        return out
