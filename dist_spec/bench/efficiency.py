"""What keeps a run from the speed it would have with a full tree of the same drafter ready at every start, taken apart.
Pure arithmetic over two runs of the same text; it runs nothing.

Let u be our seconds per token and r those of the ready replay with its waiting taken off; *pipeline efficiency* is r / u.
A run's second is forward, coordination or idle (everything else: waits, an empty queue, the frontend's link), and

    forward seconds per token = (verifications per token) x (forward seconds per verification) = s x f.

With primes for the ready replay, f x s - f' x s' = (f - f') x s  +  (s - s') x f':

    verify_inflation   (f - f') x s: a verification takes longer than a ready one (useless nodes, a busier machine)
    the rest           (s - s') x f': there are more verifications, as each commits fewer tokens: a < a', where s = 1 / a

a = e x a0 + (1 - e) x b, where e is the share of verifications that started without a tree, a0 the tokens these commit
(1), b those of the others. Of the missing tokens a' - a

    empty_start        (e - e') x (b' - a0') + e x (a0' - a0): more starts without a tree than in the ready replay
    shallow_tree       (1 - e) x (b' - b): trees, but less deep or less right ones

and either takes its share of (s - s') x f' = (a' - a) / (a x a') x f'. Then

    idle               idle seconds per token beyond the ready replay's (whose waits are taken off)
    coordination       coordination seconds per token beyond the ready replay's

The five parts add up to u - r exactly. Each may be negative: the replay is a run of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from dist_spec.bench.accounts import time_shares
from dist_spec.bench.run import RunResult

PARTS = ("idle", "empty_start", "shallow_tree", "verify_inflation", "coordination")


@dataclass(frozen=True, kw_only=True, slots=True)
class Efficiency:
    """Seconds per token, ours and ready, and the difference by cause.

    Attributes:
        ours_s, ready_s: u and r.
        loss_s: by cause (`PARTS`); adds up to u - r.
    """

    ours_s: float
    ready_s: float
    loss_s: dict[str, float]

    @property
    def value(self) -> float:
        """Pipeline efficiency r / u."""
        return self.ready_s / self.ours_s if self.ours_s > 0 else 0.0

    def loss_shares(self) -> dict[str, float]:
        """The parts as shares of our time; they add up to 1 - `value`."""
        return {part: seconds / self.ours_s for part, seconds in self.loss_s.items()} if self.ours_s > 0 else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """Per token: seconds in all, idle, coordination, verifications; per verification: forward seconds, tokens; and the
    share of verifications without a tree with the tokens of those and of the others."""

    seconds: float
    idle: float
    coordination: float
    forward: float
    tokens: float
    empty: float
    empty_tokens: float
    tree_tokens: float


def efficiency(ours: RunResult, ready: RunResult) -> Efficiency | None:
    """Ours against the ready replay of the same text; None where either committed nothing."""
    mine, full = _summary(ours, waits=True), _summary(ready, waits=False)
    if mine is None or full is None:
        return None
    per_token = 1.0 / mine.tokens
    from_empty = (mine.empty - full.empty) * (full.tree_tokens - full.empty_tokens)
    from_empty += mine.empty * (full.empty_tokens - mine.empty_tokens)
    from_shallow = (1.0 - mine.empty) * (full.tree_tokens - mine.tree_tokens)
    weight = full.forward / (mine.tokens * full.tokens)
    return Efficiency(
        ours_s=mine.seconds,
        ready_s=full.seconds,
        loss_s={
            "idle": mine.idle - full.idle,
            "empty_start": from_empty * weight,
            "shallow_tree": from_shallow * weight,
            "verify_inflation": (mine.forward - full.forward) * per_token,
            "coordination": mine.coordination - full.coordination,
        },
    )


def _summary(run: RunResult, *, waits: bool) -> _Run | None:
    tokens, rows = float(run.num_tokens), run.stats.get("session_rows", 0.0)
    if tokens <= 0 or rows <= 0:
        return None
    shares = time_shares(run)
    wall = run.wall_s if waits else run.wall_s - run.waited_s()
    empty_rows = run.stats.get("depth_0_rows", 0.0)
    tree_rows = rows - empty_rows
    # Tokens that a leader committed beyond a stop string are not the frontend's: the shares are the leader's own.
    scale = tokens / (run.stats.get("session_committed", 0.0) or tokens)
    empty_tokens = scale * run.stats.get("depth_0_tokens", 0.0)
    mean_empty = empty_tokens / empty_rows if empty_rows else scale
    return _Run(
        seconds=wall / tokens,
        idle=(wall - shares.forward_s - shares.coordination_s) / tokens,
        coordination=shares.coordination_s / tokens,
        forward=shares.forward_s / rows,
        tokens=tokens / rows,
        empty=empty_rows / rows,
        empty_tokens=mean_empty,
        tree_tokens=(tokens - empty_tokens) / tree_rows if tree_rows else mean_empty,
    )
