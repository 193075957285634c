"""One decision and its outcome as a flat record, for whoever observes the leader. It decides nothing."""

from __future__ import annotations

from typing import Any

from dist_spec.core.counts import SessionCounts
from dist_spec.core.mirrors import Mirrors
from dist_spec.core.plan import Plan, PlanRow
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.types import Verdict


class Decisions:
    """Makes the records; `step` ends one step."""

    def __init__(self, counts: SessionCounts, *, mirrors: Mirrors, scheduler: Scheduler) -> None:
        self._counts = counts
        self._mirrors = mirrors
        self._scheduler = scheduler
        self._proposals = 0
        self._drafted = 0

    def row(self, plan: Plan, row: PlanRow, verdict: Verdict, *, now: float) -> dict[str, Any]:
        """One verified row.

        Keys: `step`, `now_s`, `request`, `generation`, `rows` (in the step), `base_length`; per node `scores` (log of the
        path's probability), `parents`, `drafters`; `depth` (of the tree verified), `tree_depth` (of the best chain at
        hand), `budget`, `price`, `predicted_s`; `path` (nodes accepted), `tokens`, `margin`; since the last step `arrivals`
        (proposals) and `arrived_nodes` (new ones); `kv_free` (blocks), `queue` (requests).
        """
        return {
            "step": plan.step,
            "now_s": now,
            "request": row.key[0],
            "generation": row.key[1],
            "rows": len(plan.rows),
            "base_length": row.base_length,
            "scores": row.scores.tolist(),
            "parents": row.forward.parents.tolist(),
            "drafters": [self._mirrors.name(source) for source in row.sources],
            "depth": row.ready_depth,
            "tree_depth": row.tree_depth,
            "budget": plan.budget,
            "price": plan.price,
            "predicted_s": plan.predicted_s,
            "path": list(verdict.path),
            "tokens": list(verdict.tokens),
            "margin": verdict.margin,
            "arrivals": self._counts.proposals - self._proposals,
            "arrived_nodes": self._counts.drafted - self._drafted,
            "kv_free": self._scheduler.blocks.num_free,
            "queue": len(self._scheduler.waiting),
        }

    def step(self) -> None:
        """What arrives from here on belongs to the next step."""
        self._proposals, self._drafted = self._counts.proposals, self._counts.drafted
