"""Device times and the scripted target of a simulation. What they compute is a table, not a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dist_spec.core.plan import Plan, PlanRow
from dist_spec.core.target_session import Outcome
from dist_spec.core.types import Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceTimes:
    """Seconds of one forward: flat up to a number of rows, linear beyond.

    Attributes:
        verify_s, verify_flat, verify_per_token_s: target.
        draft_s, draft_flat, draft_per_leaf_s: drafter.
    """

    verify_s: float = 18.3e-3
    verify_flat: int = 33
    verify_per_token_s: float = 0.2e-3
    draft_s: float = 2.5e-3
    draft_flat: int = 24
    draft_per_leaf_s: float = 0.1e-3

    def verify(self, num_tokens: int) -> float:
        return self.verify_s + max(0, num_tokens - self.verify_flat) * self.verify_per_token_s

    def draft(self, num_leaves: int) -> float:
        return self.draft_s + max(0, num_leaves - self.draft_flat) * self.draft_per_leaf_s


class ScriptedTarget:
    """A target whose text is given: the token at every absolute position of every request."""

    def __init__(self, truth: Callable[[tuple[str, int]], Sequence[int]]) -> None:
        self._truth = truth

    def launch(self, plan: Plan) -> None:
        """Nothing to start: the clock decides when the step is over."""

    def collect(self, plan: Plan) -> list[Outcome]:
        return [self._verify(row) if row.final else None for row in plan.rows]

    def _verify(self, row: PlanRow) -> Verdict:
        truth = self._truth(row.key)
        tokens = row.forward.tokens[row.forward.num_pending :].tolist()
        below: dict[tuple[int, int], int] = {
            (parent, token): node
            for node, (parent, token) in enumerate(zip(row.forward.parents.tolist(), tokens, strict=True))
        }
        path: list[int] = []
        position, above = row.base_length, -1
        while (node := below.get((above, truth[position]))) is not None:
            path.append(node)
            above, position = node, position + 1
        emitted = tuple(truth[row.base_length : position + 1])
        return Verdict(path=tuple(path), token=emitted[-1], tokens=emitted)
