"""Which drafters serve which requests, where there may be more of them than a request needs. Pure: time is an argument; it
sends nothing, and what it decides costs or gains speed, never text.

Drafters of one kind form teams: one, as many as there are requests, or as many as a given size makes. Every request is
served by one team of each kind, and the members of a team take disjoint branches of its trees (`core/growth/share.py`).
So four drafters grow one request's tree together and serve four requests alone: simulated, that is worth 11% and 19%
against the other way. Requests are shared out among teams by what their drafters are worth (`core/usefulness.py`), moved
one by one when that changes, and taken from who is of no use. Lookup drafters serve everything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from dist_spec.core.membership import LOOKUP_KINDS, Membership
from dist_spec.core.settings import PerRequest
from dist_spec.core.usefulness import Usefulness

RequestKey: TypeAlias = tuple[str, int]

_LOOK_EVERY_S = 1.0
"""How often it is asked whether a request is better served elsewhere: every move costs its new drafter a prefill."""
_WORTH_MOVING = 0.75
"""A request moves when the busier of the two teams is then at most this busy."""


class Assignment:
    """Teams of drafters and the requests they serve.

    Args:
        membership: who is there.
        per_request: drafters of one kind that serve one request at most; "auto": as many as there are per request.

    Attributes:
        usefulness: what each drafter was worth.
        num_updates: how often something may have changed.
    """

    def __init__(self, membership: Membership, *, per_request: PerRequest = "all") -> None:
        self.membership = membership
        self.per_request = per_request
        self.usefulness = Usefulness()
        self._pool: list[str] = []
        self._team: dict[str, int] = {}
        self._requests: dict[RequestKey, dict[str, int]] = {}
        self._changed = False
        self._look_s = float("-inf")
        self.num_updates = 0

    # ---- what others read -----------------------------------------------------------------------------------------

    def serving(self, key: RequestKey) -> list[str]:
        """Drafters worth sending this request's news to, in the order in which they joined."""
        teams = self._requests.get(key)
        drafters = self.membership.drafters()
        if teams is None:
            return drafters
        return [peer for peer in drafters if self._serves(peer, teams)]

    def serves(self, peer: str, key: RequestKey) -> bool:
        """Whether this drafter serves this request."""
        teams = self._requests.get(key)
        return teams is None or self._serves(peer, teams)

    def _serves(self, peer: str, teams: Mapping[str, int]) -> bool:
        kind = self.membership.members[peer].kind
        return kind in LOOKUP_KINDS or (peer in self._team and self._team[peer] == teams.get(kind))

    def share(self, peer: str) -> tuple[int, int]:
        """(index, count) of a drafter in its team, whose members share branches out; (0, 1) for whoever shares nothing."""
        if peer not in self._team:
            return 0, 1
        mates = [one for one in self._alike(self._kind(peer)) if self._team[one] == self._team[peer]]
        return mates.index(peer), len(mates)

    # ---- what happened --------------------------------------------------------------------------------------------

    def began(self, key: RequestKey) -> None:
        """A request begins to run; the next `update` finds drafters for it."""
        self._requests[key] = {}
        self._changed = True

    def ended(self, key: RequestKey) -> None:
        self._requests.pop(key, None)

    def joined(self, peer: str, *, now: float) -> None:
        """A drafter greeted, or came back."""
        self.usefulness.joined(peer, now=now)
        self._changed = True

    def touched(self) -> None:
        """Something changed that the next `update` is to take in."""
        self._changed = True

    def left(self, peer: str) -> None:
        self.usefulness.left(peer)
        self._changed = True

    def verified(self, key: RequestKey, *, fed: Collection[str], accepted: Mapping[str, int], now: float) -> None:
        """One verification of a request (see `Usefulness.verified`; `accepted` by name)."""
        members = self.membership.members
        serving = [peer for peer in self.serving(key) if members[peer].kind not in LOOKUP_KINDS]
        by_peer = {peer: accepted[members[peer].name] for peer in serving if members[peer].name in accepted}
        self.usefulness.verified(serving, fed=fed, accepted=by_peer, now=now)

    # ---- decisions ------------------------------------------------------------------------------------------------

    def update(self, *, now: float) -> bool:
        """Take in who came, went or failed, and see now and then whether a request is better served elsewhere; returns
        whether anything may have changed."""
        looks = now >= self._look_s
        if looks:
            self._look_s = now + _LOOK_EVERY_S
            for kind in dict.fromkeys(map(self._kind, self._team)):
                self.usefulness.judge({peer: self._load(peer) for peer in self._alike(kind)}, now=now)
        pool = [peer for peer in self.membership.drafters() if self._kind(peer) not in LOOKUP_KINDS]
        pool = [peer for peer in pool if not self.usefulness.is_resting(peer, now=now)]
        if pool == self._pool and not self._changed and not looks:
            return False
        self._changed, self._pool = False, pool
        self._team = {peer: team for peer, team in self._team.items() if peer in pool}
        for kind in dict.fromkeys(map(self._kind, pool)):
            self._team_up(kind, merges=looks)
            self._place(kind, moves=looks)
        self.num_updates += 1
        return True

    def _kind(self, peer: str) -> str:
        member = self.membership.members.get(peer)
        return member.kind if member is not None else ""

    def _alike(self, kind: str) -> list[str]:
        return [peer for peer in self._pool if peer in self._team and self._kind(peer) == kind]

    def _load(self, peer: str) -> int:
        kind, team = self._kind(peer), self._team.get(peer)
        return sum(teams.get(kind) == team for teams in self._requests.values())

    def _team_up(self, kind: str, *, merges: bool) -> None:
        """As many teams as it takes, of sizes that differ by one at most; whoever need not change teams does not."""
        pool = [peer for peer in self._pool if self._kind(peer) == kind]
        num_teams = self._num_teams(pool, merges=merges)
        teams: list[list[str]] = [[] for _ in range(num_teams)]
        loose = [peer for peer in pool if self._team.get(peer, num_teams) >= num_teams]
        for peer in pool:
            if peer not in loose:
                teams[self._team[peer]].append(peer)
        for peer in loose:
            min(teams, key=len).append(peer)
        while len(max(teams, key=len)) > len(min(teams, key=len)) + 1:
            min(teams, key=len).append(max(teams, key=len).pop())
        self._team.update({peer: number for number, team in enumerate(teams) for peer in team})

    def _num_teams(self, pool: Sequence[str], *, merges: bool) -> int:
        """A split costs nothing; after a merger requests must be read by drafters that are new to them."""
        if self.per_request == "all":
            return 1
        if self.per_request != "auto":
            return -(-len(pool) // self.per_request)
        now = len({self._team[peer] for peer in pool if peer in self._team})
        wanted = max(min(len(pool), len(self._requests)), 1)
        return wanted if merges else max(wanted, now)

    def _place(self, kind: str, *, moves: bool) -> None:
        """A team for every request that has none of this kind, and a better one for the worst served."""
        weights = self._team_weights(kind)
        loads = dict.fromkeys(weights, 0)
        waiting: list[RequestKey] = []
        for key, teams in self._requests.items():
            if teams.get(kind) in loads:
                loads[teams[kind]] += 1
            else:
                waiting.append(key)
        for key in waiting:
            team = min(weights, key=lambda one: (loads[one] + 1) / weights[one])
            self._requests[key][kind] = team
            loads[team] += 1
        for _ in range(max(1, len(self._requests) // 8) if moves else 0):
            if not self._move(kind, weights, loads):
                return

    def _move(self, kind: str, weights: Mapping[int, float], loads: dict[int, int]) -> bool:
        """Move one request from the busiest team to where it is served best, if that is worth a prefill."""
        busiest = max(weights, key=lambda one: loads[one] / weights[one])
        best = min(weights, key=lambda one: (loads[one] + 1) / weights[one])
        if not loads[busiest] or best == busiest:
            return False
        if (loads[best] + 1) / weights[best] > _WORTH_MOVING * loads[busiest] / weights[busiest]:
            return False
        # The youngest has the shortest text, as a rule.
        key = next(key for key in reversed(self._requests) if self._requests[key].get(kind) == busiest)
        self._requests[key][kind] = best
        loads[busiest], loads[best] = loads[busiest] - 1, loads[best] + 1
        return True

    def _team_weights(self, kind: str) -> dict[int, float]:
        alike = self._alike(kind)
        single = self.usefulness.weights({peer: self.membership.members[peer].step_s for peer in alike})
        weights: defaultdict[int, float] = defaultdict(float)
        for peer in alike:
            weights[self._team[peer]] += single[peer]
        return dict(weights)
