"""The four independent switches of speculation, and the numbers that go with them; knows nothing of files or YAML.

The published methods are settings of one system: synchronous speculation = none/pull, PEARL = optimistic/pull/chain,
SSD (Saguaro) = fan_out/pull/chain/draft, the default = best_first/push/tree/plain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from dist_spec.errors import ConfigError

Growth: TypeAlias = Literal["none", "optimistic", "fan_out", "best_first"]
Delivery: TypeAlias = Literal["push", "pull"]
VerifyShape: TypeAlias = Literal["chain", "tree"]
PerRequest: TypeAlias = int | Literal["all", "auto"]
OnMiss: TypeAlias = Literal["plain", "draft", "wait"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Speculation:
    """What the leader and the drafters agree on.

    Attributes:
        growth: which leaves a drafter expands, and when.
        delivery: `push` streams nodes as they are made; `pull` sends them when asked for after a verdict.
        verify_shape: the best chain or the best sub-tree is verified.
        on_miss: without a guess, verify plainly, have the drafter draft first (pull only), or wait while the price allows.
        budget: most draft-tree nodes verified per step over all rows; 0 is plain decoding.
        adaptive: verify only as many of them as the price says (else always the best `budget`).
        blind: the verification rule forbids looking at drafted tokens (law 5).
        num_draft_tokens: depth to which a draft is made (chains, on-demand drafts) or capped (best first).
        num_leaves: leaves a drafter expands in one step, over all requests.
        num_children: guesses published below each expanded leaf.
        fan_out: prepared next tokens per outcome (`fan_out` growth).
        lookahead: guesses ready below the head with which `best_first` growth rests, but for what is more likely than
            not (0: it never rests); for drafters so cheap that only messages limit them.
        drafters_per_request: drafters of one kind that serve one request at most; "auto": as many as there are per
            request.
        max_nodes: nodes of one request's draft tree, at a drafter and in the leader's mirror.
        max_wait_s: upper bound of a wait on a miss.
        pull_timeout_s: how long a pulled proposal may take before the step goes on without it.
    """

    growth: Growth = "best_first"
    delivery: Delivery = "push"
    verify_shape: VerifyShape = "tree"
    on_miss: OnMiss = "plain"
    budget: int = 8
    adaptive: bool = False
    blind: bool = False
    num_draft_tokens: int = 16
    num_leaves: int = 8
    num_children: int = 4
    fan_out: int = 3
    lookahead: int = 0
    max_nodes: int = 4096
    drafters_per_request: PerRequest = "all"
    max_wait_s: float = 0.005
    pull_timeout_s: float = 1.0

    def __post_init__(self) -> None:
        if self.growth == "none" and self.delivery != "pull":
            raise ConfigError(
                "speculation.growth 'none' drafts only when asked, but speculation.delivery is 'push'",
                fix="set speculation.delivery: pull",
            )
        if self.growth == "fan_out" and self.delivery != "pull":
            raise ConfigError(
                "speculation.growth 'fan_out' prepares answers to a question, but speculation.delivery is 'push'",
                fix="set speculation.delivery: pull, or growth: best_first",
            )
        if self.blind and self.budget > 0:
            self._check_blind()
        if self.on_miss == "draft" and self.delivery != "pull":
            raise ConfigError(
                "speculation.on_miss 'draft' answers a pull, but speculation.delivery is 'push'",
                fix="set speculation.delivery: pull, or on_miss: wait",
            )

    def _check_blind(self) -> None:
        """Law 5: what is a choice between drafted tokens is refused."""
        if self.growth in ("best_first", "fan_out"):
            raise ConfigError(
                f"speculation.growth {self.growth!r} prefers some drafted tokens to others, which this verification rule "
                "forbids (law 5)",
                fix="set speculation.growth: optimistic (or none, with delivery: pull), or verification.rule: coupled",
            )
        if self.verify_shape != "chain":
            raise ConfigError(
                f"speculation.verify_shape {self.verify_shape!r} offers several tokens per position, and this "
                "verification rule weighs one (law 5)",
                fix="set speculation.verify_shape: chain, or verification.rule: coupled",
            )

    @property
    def asks(self) -> bool:
        """Whether the leader asks for an answer after a verdict."""
        return self.delivery == "pull" or self.on_miss == "wait"
