"""The leader's end of the protocol as a sans-I/O state machine: messages and verdicts in, plans and messages out.

It decides everything (law 9) and commits nothing but what the target said (law 1). It knows no sockets, clocks or
tensors. One verification is `select` -> (a target runs the plan) -> `apply`; no message and no wait lies between an
`apply` and the next `select` unless the settings ask for one.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TypeAlias

import numpy as np

from dist_spec.core.admission import TargetFacts, admissible
from dist_spec.core.control.price import Price
from dist_spec.core.counts import SessionCounts
from dist_spec.core.live import Live, plan_row
from dist_spec.core.membership import Membership
from dist_spec.core.messages import Bye, Close, Commit, Hello, Message, Need, Open, Ping, Propose
from dist_spec.core.plan import Plan, PlanRow, Wait
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.selection import select_chains, select_trees
from dist_spec.core.settings import Speculation
from dist_spec.core.types import Expansion, FloatArray, Verdict
from dist_spec.core.vocabulary import refusal
from dist_spec.core.waiting import Waiting
from dist_spec.errors import RequestError

_NO_MARGINS: FloatArray = np.empty(0, np.float32)

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
        self._last_apply_s: float | None = None

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
            case Open():
                out += self.open(message, peer=peer, now=now)
            case Propose():
                out += self._propose(peer, message, now=now)
            case Need():
                out += self._need(peer, message)
            case Close():
                out += self.close((message.request, message.generation), reason="abort")
            case Ping():
                self.membership.members[peer].busy_s = message.busy_s
            case Commit():
                pass
        return out

    def _hello(self, peer: str, hello: Hello, *, now: float) -> list[Outgoing]:
        no = refusal(hello, self.facts.vocabulary, self.facts.vocabulary_tokens)
        if no is not None:
            return [(peer, no)]
        self.lost(peer, now=now)
        self.membership.join(peer, hello, now=now)
        # The pong tells a frontend that the leader is up; a drafter learns it from what it is told of.
        return [(peer, self._ping()), *self._tell_all(peer)]

    def _tell_all(self, peer: str) -> list[Outgoing]:
        """Every running request from the start: late joiners and revived peers catch up."""
        if peer not in self.membership.drafters():
            return []
        return [(peer, self._opening(live)) for live in self.live.values() if live.running]

    @staticmethod
    def _opening(live: Live) -> Open:
        sequence = live.sequence
        split = sequence.prompt_length
        return Open(
            request=sequence.request,
            generation=sequence.generation,
            prompt=np.array(sequence.tokens[:split], np.int32),
            generated=np.array(sequence.tokens[split:], np.int32),
            generated_offset=sequence.generated_offset,
            sampling=sequence.sampling,
        )

    def _need(self, peer: str, need: Need) -> list[Outgoing]:
        key = (need.request, need.generation)
        live = self.live.get(key)
        if live is None or not live.running:
            return [(peer, Close(request=need.request, generation=need.generation, reason="unknown"))]
        prefix = live.sequence.prefix
        if not 0 < need.have_length <= len(prefix):
            return [(peer, self._opening(live))]
        commit = Commit(
            request=need.request,
            generation=need.generation,
            base_length=need.have_length,
            base_digest=prefix.digests[need.have_length],
            tokens=np.array(prefix.tokens[need.have_length :], np.int32),
            ask=peer in live.asked,
        )
        return [(peer, commit)]

    def _propose(self, peer: str, proposal: Propose, *, now: float) -> list[Outgoing]:
        key = (proposal.request, proposal.generation)
        live = self.live.get(key)
        if live is None:
            return [(peer, Close(request=proposal.request, generation=proposal.generation, reason="unknown"))]
        member = self.membership.members[peer]
        member.proposals += 1
        self.counts.proposals += 1
        prefix = live.sequence.prefix
        known = prefix.matches(proposal.base_length, proposal.base_digest)
        in_vocabulary = not len(proposal.tokens) or int(proposal.tokens.max()) < self.facts.vocab_size
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
        for peer in self.membership.silenced(now=now):
            if self.membership.members[peer].role == "frontend":
                self.lost(peer, now=now)
            for live in self.live.values():
                live.asked.discard(peer)
        due = self.membership.due_pings(now=now)
        return [(peer, self._ping()) for peer in due]

    def _ping(self) -> Ping:
        return Ping(progress=self.counts.steps, num_drafters=len(self.membership.drafters()))

    # ---- requests -------------------------------------------------------------------------------------------------

    def open(self, message: Open, *, peer: str = "", now: float) -> list[Outgoing]:
        """Begin a request. One that cannot be served is closed at once with the reason; others are untouched."""
        key = (message.request, message.generation)
        if key in self.live:
            return []
        out: list[Outgoing] = []
        for old in [k for k in self.live if k[0] == message.request and k[1] < message.generation]:
            out += self.close(old, reason="abort")
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
            stats = {**self.run_stats(), **live.report()}
            out.append((live.owner, Close(request=key[0], generation=key[1], reason=reason, stats=stats)))
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
            out += [(peer, self._opening(live)) for peer in self.membership.drafters()]
        return out

    def select(self, *, now: float) -> Plan | Wait | None:
        """What to do now: verify a plan, wait for an answer, or (None) nothing, as no request is running."""
        rows = [live for live in self.live.values() if live.running]
        if not rows:
            self._last_apply_s = None
            return None
        wait = self.waiting.due(rows, now=now)
        if wait is not None:
            self.counts.waits += 1
            return wait
        caps = [live.depth_cap() for live in rows]
        choose = select_chains if self.settings.verify_shape == "chain" else select_trees
        trees = [live.tree for live in rows]
        nodes = choose(trees, depth_caps=caps, budget=self.settings.budget)
        pending = self.scheduler.max_pending
        planned: list[PlanRow] = []
        for live, chosen in zip(rows, nodes, strict=True):
            if pending <= 0:
                break
            row = plan_row(live, chosen, block_table=self.scheduler.tables[live.sequence.key], max_pending=pending)
            pending -= row.forward.num_pending
            planned.append(row)
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
            if live is None:
                continue
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
        self._count(live, row, verdict, num_accepted, len(kept), now=now)
        finished = bool(sequence.finish_reason)
        live.tree.advance(kept)
        self.waiting.ask(live, asks=not finished, now=now)
        tokens = np.array(kept, np.int32)

        margins = np.empty(0, np.float32)
        if verdict.margin == verdict.margin:  # not NaN: the target reports margins
            margins = np.full(len(kept), verdict.margin, np.float32)

        def commit(*, ask: bool, margins: FloatArray = _NO_MARGINS) -> Commit:
            return Commit(
                request=sequence.request,
                generation=sequence.generation,
                base_length=base_length,
                base_digest=base_digest,
                tokens=tokens,
                num_accepted=num_accepted,
                ask=ask,
                margins=margins,
            )

        out: list[Outgoing] = [] if finished else [(p, commit(ask=p in live.asked)) for p in self.membership.drafters()]
        if live.owner in self.membership.members:
            out.append((live.owner, commit(ask=False, margins=margins)))
        if finished:
            out += self.close(live.sequence.key, reason=sequence.finish_reason)
        return out

    def _count(
        self, live: Live, row: PlanRow, verdict: Verdict, num_accepted: int, num_kept: int, *, now: float
    ) -> None:
        if live.waited:
            self.waiting.miss_wait.brought(len(verdict.path))
        counts, nodes = self.counts, row.forward.num_nodes
        live.count(row, num_accepted=num_accepted, num_kept=num_kept, now=now)
        counts.rows += 1
        counts.ready_rows += nodes > 0
        counts.verified += nodes
        counts.accepted += num_accepted
        counts.committed += num_kept
        seen = counts.depths.setdefault(row.ready_depth, [0, 0])
        seen[0] += 1
        seen[1] += num_kept
