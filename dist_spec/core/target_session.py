"""The leader's end of the protocol as a sans-I/O state machine: messages and verdicts in, plans and messages out.

It decides everything (law 9) and commits nothing but what the target said (law 1). It knows no sockets, clocks or
tensors. One verification is `select` -> (a target runs the plan) -> `apply`; no message and no wait lies between an
`apply` and the next `select` unless the settings ask for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from math import exp
from typing import Any, TypeAlias

import numpy as np

from dist_spec.core.admission import TargetFacts
from dist_spec.core.assignment import Assignment
from dist_spec.core.control.budget import Budget, Choice
from dist_spec.core.control.costs import VerifyCost
from dist_spec.core.control.depth_means import DepthMeans
from dist_spec.core.control.price import Price
from dist_spec.core.conversation import Conversation
from dist_spec.core.counts import SessionCounts
from dist_spec.core.decision import Decisions
from dist_spec.core.features import FeatureStream
from dist_spec.core.live import Live, plan_row
from dist_spec.core.membership import Membership
from dist_spec.core.messages import Commit, LastKind, Message, Open
from dist_spec.core.mirrors import Mirrors
from dist_spec.core.plan import Plan, PlanRow, Wait
from dist_spec.core.requests import Outgoing, Requests
from dist_spec.core.sampling.reported import reported
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.selection import Ranked, grouped, rank_blind, rank_chains, rank_trees
from dist_spec.core.settings import Speculation
from dist_spec.core.types import Expansion, HalfArray, Verdict
from dist_spec.core.waiting import Waiting
from dist_spec.errors import RequestError

__all__ = ["Outcome", "Outgoing", "TargetSession"]

Outcome: TypeAlias = Verdict | RequestError | None
"""A row's verdict; an error that ends this request alone; None for a prefill chunk that is not the last."""

_FLOOR_EVERY = 8
"""Steps between two looks at what nodes must be worth to be sent."""


class TargetSession:
    """Requests, their sequences and mirrors of their draft trees, peers, and the choice of what to verify.

    Attributes:
        run_stats: figures of the whole leader for frontends.
        observer: told of every verified row (`Decisions`); None: nobody asks.
    """

    def __init__(
        self, settings: Speculation, *, facts: TargetFacts, scheduler: Scheduler, membership: Membership
    ) -> None:
        self.settings = settings
        self.facts = facts
        self.scheduler = scheduler
        self.membership = membership
        self.counts = SessionCounts()
        self.price = Price()
        self.budget = Budget(limit=settings.budget, adaptive=settings.adaptive)
        self.assignment = Assignment(membership, per_request=settings.drafters_per_request)
        self.waiting = Waiting(settings, assignment=self.assignment, price=self.price)
        self.mirrors = Mirrors(settings, vocab_size=facts.vocab_size, counts=self.counts)
        self.requests = Requests(facts=facts, scheduler=scheduler, membership=membership, assignment=self.assignment)
        self.requests.stats = lambda: self.run_stats()
        self.features = FeatureStream(facts.features)
        self.conversation = Conversation(
            self.requests,
            membership=membership,
            mirrors=self.mirrors,
            waiting=self.waiting,
            counts=self.counts,
            features=self.features,
        )
        self.run_stats: Callable[[], dict[str, float]] = dict
        self.observer: Callable[[dict[str, Any]], None] | None = None
        self._decisions = Decisions(self.counts, mirrors=self.mirrors, scheduler=scheduler)
        self._depth_means = DepthMeans()
        self._floor = self.budget.floor(price=0.0, rows=1)
        self._selected_s = 0.0
        self._last_apply_s: float | None = None
        self._held_up = False

    # ---- messages and requests ------------------------------------------------------------------------------------

    def receive(self, peer: str, message: Message, *, now: float) -> list[Outgoing]:
        """Take in one message; returns what to send."""
        return self.conversation.receive(peer, message, now=now)

    def garbage(self, peer: str) -> list[Outgoing]:
        """A peer sent something that is no message: it is dropped and counted."""
        return self.conversation.garbage(peer)

    def lost(self, peer: str) -> list[Outgoing]:
        """A peer is gone: nobody waits for it; a frontend's requests end with it."""
        return self.conversation.lost(peer)

    def tick(self, *, now: float) -> list[Outgoing]:
        """Heartbeats and silence; call now and then."""
        return self.conversation.tick(now=now)

    def take_forgotten(self) -> bool:
        """Whether, since the last call, a frontend asked to forget what ended requests left behind."""
        forgotten, self.conversation.forgotten = self.conversation.forgotten, False
        return forgotten

    @property
    def live(self) -> dict[tuple[str, int], Live]:
        return self.requests.live

    @property
    def idle(self) -> bool:
        return not self.requests.live

    def open(self, message: Open, *, peer: str = "", now: float) -> list[Outgoing]:
        """Begin a request. One that cannot be served is closed at once with the reason; others are untouched."""
        return self.requests.open(message, peer=peer, now=now)

    def close(self, key: tuple[str, int], *, reason: str) -> list[Outgoing]:
        """End a request and tell everyone who knows of it."""
        return self.requests.close(key, reason=reason)

    def drain(self) -> list[Outgoing]:
        """Finish what runs and begin nothing: frontends are told to go elsewhere with the rest."""
        return self.requests.drain()

    def give_back(self) -> list[Outgoing]:
        """End what still runs without an end of its own, for its frontend to go on with elsewhere."""
        return self.requests.give_back()

    def take_closed(self) -> list[tuple[str, int]]:
        """Requests that ended since the last call."""
        return self.requests.take_closed()

    def without_guess(self) -> list[Live]:
        """Running requests whose next step would be plain, though a guess could be verified."""
        if self.settings.budget <= 0:
            return []
        return [
            live
            for live in self.live.values()
            if live.running and live.tree.is_empty() and live.sequence.cached > 0 and live.depth_cap() > 0
        ]

    def guess(self, key: tuple[str, int], guess: Expansion, *, drafter: str = "leader") -> None:
        """Guesses made inside the leader, below the present head."""
        self.mirrors.guess(self.live[key], guess, drafter=drafter)

    def measured(self, costs: VerifyCost) -> None:
        """What verifications cost; without it every budget is spent."""
        self.budget.costs = costs

    # ---- one step -------------------------------------------------------------------------------------------------

    def admit(self, *, now: float) -> list[Outgoing]:
        """Start waiting requests that fit, and see to it that drafters know what they serve."""
        self.requests.admit(now=now)
        return self.conversation.settle(now=now)

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
        limits = self.scheduler.share_pending(live.sequence for live in rows)
        ranked = self._rank(rows[: len(limits)], limits)
        choice = self._choose(rows[: len(limits)], limits, ranked)
        plan = self._plan(rows[: len(limits)], limits, ranked[: choice.num_nodes], choice)
        self._started(now=now)
        return plan

    def _rank(self, rows: Seq[Live], limits: Seq[int]) -> Ranked:
        """The best candidates of all rows, best first."""
        caps = [live.depth_cap() if live.will_finish_pending(n) else 0 for live, n in zip(rows, limits, strict=True)]
        trees = [live.tree for live in rows]
        if self.settings.blind:
            survival = self._depth_means.survival(self.settings.budget)
            return rank_blind(trees, depth_caps=caps, budget=self.settings.budget, survival=survival)
        rank = rank_chains if self.settings.verify_shape == "chain" else rank_trees
        return rank(trees, depth_caps=caps, budget=self.settings.budget)

    def _choose(self, rows: Seq[Live], limits: Seq[int], ranked: Ranked) -> Choice:
        """How many of the candidates are worth their price."""
        if self.budget.costs is None:
            return Choice(num_nodes=len(ranked), predicted_s=0.0)
        final = sum(live.will_finish_pending(limit) for live, limit in zip(rows, limits, strict=True))
        survival = [exp(one[0]) for one in ranked]
        price = self.price.tokens_per_s
        return self.budget.choose(survival, rows=final, extra=sum(limits) - final, price=price)

    def _plan(self, rows: Seq[Live], limits: Seq[int], chosen: Ranked, choice: Choice) -> Plan:
        nodes = grouped([live.tree for live in rows], chosen)
        planned = [
            plan_row(live, some, block_table=self.scheduler.tables[live.sequence.key], max_pending=limit)
            for live, some, limit in zip(rows, nodes, limits, strict=True)
        ]
        self.counts.steps += 1
        return Plan(
            step=self.counts.steps,
            rows=tuple(planned),
            budget=choice.num_nodes if self.settings.adaptive else self.settings.budget,
            price=self.price.tokens_per_s,
            predicted_s=choice.predicted_s,
        )

    def _started(self, *, now: float) -> None:
        costs = self.budget.costs
        if costs is not None and self._last_apply_s is not None and not self._held_up:
            costs.between(now - self._last_apply_s)
        self._selected_s, self._held_up = now, False

    def apply(
        self, plan: Plan, outcomes: Seq[Outcome], *, features: Seq[HalfArray | None] = (), now: float
    ) -> list[Outgoing]:
        """Commit what the target said and tell everyone; a failed row ends its own request only.

        Args:
            features: per row, hidden features of the last tokens that it read and keeps, (n, size); or empty.
        """
        out: list[Outgoing] = []
        committed = 0
        for row, outcome, read in zip(plan.rows, outcomes, features or [None] * len(outcomes), strict=True):
            live = self.live.get(row.key)
            if live is None or not live.running:
                continue  # ended in mid-step, or ended and begun anew
            if isinstance(outcome, RequestError):
                out += self.close(row.key, reason=f"error: {outcome}")
                continue
            live.sequence.cached += row.forward.num_pending
            if read is not None:
                self.features.computed(live, read, end=row.base_length + (len(outcome.path) if outcome else 0))
            if outcome is not None:
                committed += len(outcome.tokens)
                if self.observer is not None:
                    self.observer(self._decisions.row(plan, row, outcome, now=now))
                out += self._commit(live, row, outcome, now=now)
        self._timed(plan, committed, now=now)
        self._decisions.step()
        return out

    def bulk(self) -> list[Outgoing]:
        """What is large and can wait, to be sent after a step's commits: features that draft heads lack."""
        return self.features.due(self.live, self.membership.drafters(), serves=self.assignment.serves)

    def _timed(self, plan: Plan, committed: int, *, now: float) -> None:
        """Learn from what the step took; one that read a prompt says nothing of decoding."""
        decoding = all(row.forward.num_pending == 1 for row in plan.rows)
        if decoding and self.budget.costs is not None:
            self.budget.costs.observed(len(plan.rows), plan.num_nodes, now - self._selected_s)
        if self._last_apply_s is not None and committed and decoding:
            self.price.earned(committed, now - self._last_apply_s)
        if plan.step % _FLOOR_EVERY == 0:
            self._floor = self.budget.floor(price=self.price.tokens_per_s, rows=len(plan.rows))
        self._last_apply_s = now

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
        if self.settings.blind:
            self._depth_means.verdict(num_verified=row.ready_depth, num_accepted=num_accepted)
        self._credit(live, row, verdict.path[:num_accepted], now=now)
        self.mirrors.committed(live, row, verdict.path, tokens=kept)
        live.tree.advance(kept)
        commit = Commit(
            request=sequence.request,
            generation=sequence.generation,
            base_length=base_length,
            base_digest=base_digest,
            tokens=np.array(kept, np.int32),
            num_accepted=num_accepted,
        )
        out = self._tell(live, row, commit, verdict, now=now)
        if sequence.finish_reason:
            out += self.close(sequence.key, reason=sequence.finish_reason)
        return out

    def _credit(self, live: Live, row: PlanRow, accepted: Seq[int], *, now: float) -> None:
        """Who was of use in this verification."""
        by_name = Counter(self.mirrors.name(row.sources[node]) for node in accepted)
        for member in self.membership.members.values():
            member.accepted += by_name.get(member.name, 0)
        self.assignment.verified(live.sequence.key, fed=live.fed, accepted=by_name, now=now)
        live.fed.clear()

    def _tell(self, live: Live, row: PlanRow, commit: Commit, verdict: Verdict, *, now: float) -> list[Outgoing]:
        """The commit for drafters (until the end) and for the frontend."""
        finished = bool(live.sequence.finish_reason)
        asked = self.waiting.ask(live, asks=not finished and live.depth_cap() > 0, now=now)
        out: list[Outgoing] = []
        if not finished:
            told = live.tell_twice(commit, floor=self._floor)
            for peer in self.assignment.serving(live.sequence.key):
                one = self.features.with_commit(peer, live.sequence.key, told, num_tokens=len(commit.tokens))
                out.append((peer, replace(one, ask=True) if peer in asked else one))
        if live.owner in self.membership.members:
            shown = replace(commit, last_kind=_last_kind(row, verdict))
            if verdict.margin == verdict.margin:  # not NaN: the target reports margins
                shown = replace(shown, margins=np.full(len(commit.tokens), verdict.margin, np.float32))
            if verdict.logprobs:
                shown = replace(shown, **reported(verdict, len(commit.tokens)))
            out.append((live.owner, shown))
        return out


def _last_kind(row: PlanRow, verdict: Verdict) -> LastKind:
    """What the target's own token is: it replaces a drafted one, follows a whole branch, or nothing was drafted."""
    if not row.forward.num_nodes:
        return "plain"
    last = verdict.path[-1] if verdict.path else -1
    return "recovered" if any(max(above, -1) == last for above in row.forward.parents.tolist()) else "bonus"
