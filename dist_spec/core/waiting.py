"""Who is asked for guesses after a commit, and how long the next verification may be held up for the answer.

Under `push` nobody is asked and nothing waits, unless `on_miss` is `wait`; under `pull` every proposal is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from dist_spec.core.assignment import Assignment
from dist_spec.core.control.price import MissWait, Price
from dist_spec.core.live import Live
from dist_spec.core.plan import Wait
from dist_spec.core.settings import Speculation


class Waiting:
    """Questions to drafters and the waits that come of them; every wait has a deadline (law 10)."""

    def __init__(self, settings: Speculation, *, assignment: Assignment, price: Price) -> None:
        self.settings = settings
        self.assignment = assignment
        self.price = price
        self.miss_wait = MissWait(max_wait_s=settings.max_wait_s)

    def ask(self, live: Live, *, asks: bool, now: float) -> frozenset[str]:
        """Decide which drafters must answer this commit, and how long the next step may wait for them.

        A drafter that was late is asked like the others under `pull`, but not waited for until it answers.
        """
        live.asked.clear()
        live.waited = False
        if not asks or not self.settings.asks or self.settings.budget <= 0:
            return frozenset()
        if self.settings.delivery == "pull":
            bound_s = self.settings.pull_timeout_s
        elif live.tree.is_empty():
            bound_s = self.miss_wait.bound_s(self.price.tokens_per_s)
        else:
            return frozenset()
        if bound_s > 0:
            live.asked.update(self._answering(live))
            live.waited = self.settings.delivery == "push" and bool(live.asked)
            live.asked_s, live.wait_until_s = now, now + bound_s
        return frozenset(self.assignment.serving(live.sequence.key) if self.settings.delivery == "pull" else live.asked)

    def _answering(self, live: Live) -> list[str]:
        """Drafters of this request that are worth waiting for."""
        answering = self.assignment.membership.answering()
        return [peer for peer in self.assignment.serving(live.sequence.key) if peer in answering]

    def answered(self, live: Live, peer: str, *, now: float) -> None:
        """A proposal for the present head came from `peer`."""
        if peer in live.asked:
            live.asked.discard(peer)
            if not live.asked:
                self.miss_wait.answered(now - live.asked_s)

    def due(self, rows: Seq[Live], *, now: float) -> Wait | None:
        """The earliest moment at which no row has a reason to wait any more; None: now."""
        until = 0.0
        for live in rows:
            if not live.asked:
                continue
            if self.settings.delivery == "push" and not live.tree.is_empty():
                live.asked.clear()  # a guess is all that a wait on a miss is for
                self.miss_wait.answered(now - live.asked_s)
                continue
            if now < live.wait_until_s:
                until = max(until, live.wait_until_s)
                continue
            if self.settings.delivery == "pull":
                for peer in live.asked:
                    self.assignment.membership.members[peer].late = True
            else:
                self.miss_wait.answered(now - live.asked_s)
            live.asked.clear()
        if until <= now:
            return None
        return Wait(until_s=until, cause=self.settings.delivery if self.settings.delivery == "pull" else "miss")
