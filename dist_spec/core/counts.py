"""What happened, in integers; every one a function of the decisions taken, so that a replay can be compared exactly."""

from __future__ import annotations

from dataclasses import dataclass, field

from dist_spec.core.plan import PlanRow


@dataclass(kw_only=True, slots=True)
class SessionCounts:
    """Totals of one leader.

    Attributes:
        rows: verdicts (one per request and step); ready_rows: those that found a draft tree, verified or not.
        drafted: nodes that entered a mirror; verified, accepted: nodes; committed: tokens.
        stale: proposals whose prefix is not, or no longer, ours; waits: times a step was held up.
        depths: ready depth (of the best chain at hand) -> [rows, tokens committed].
        tree_depths: depth in a verified tree -> [rows whose tree reached it, nodes verified there, accepted there].
    """

    steps: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    committed: int = 0
    rows: int = 0
    ready_rows: int = 0
    proposals: int = 0
    stale: int = 0
    waits: int = 0
    garbage: int = 0
    depths: dict[int, list[int]] = field(default_factory=dict)
    tree_depths: dict[int, list[int]] = field(default_factory=dict)

    def row(self, row: PlanRow, *, num_accepted: int, num_kept: int) -> None:
        """One verdict, and how many tokens it committed."""
        nodes = row.forward.num_nodes
        self.rows += 1
        self.ready_rows += row.tree_depth > 0
        self.verified += nodes
        self.accepted += num_accepted
        self.committed += num_kept
        seen = self.depths.setdefault(row.tree_depth, [0, 0])
        seen[0] += 1
        seen[1] += num_kept
        tree_depths = self.tree_depths
        for depth in range(1, row.ready_depth + 1):
            at = tree_depths.setdefault(depth, [0, 0, 0])
            at[0] += 1
            at[2] += depth <= num_accepted
        for depth in row.depths:
            tree_depths[depth][1] += 1
