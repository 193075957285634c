"""What one verification step is to do, decided once on the leader (law 9), and the wait that may come before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dist_spec.core.law import DraftLaw
from dist_spec.core.types import FloatArray, ForwardRow, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRow:
    """One sequence's part of a step.

    Attributes:
        key: the request.
        forward: tokens to run and the draft tree among them.
        sampling, noise_index: how the next token is chosen; noise_index is that of the token after the last pending one.
        final: False for a prefill chunk after which more of the prompt is to come (no verdict then).
        ready_depth: depth of the verified part of the tree.
        tree_depth: depth of the best chain at hand when the step starts, as far as it could be committed.
        base_length: committed tokens, pending ones included.
        history: the request's committed tokens, prompt first (the live list: its first `base_length` are meant).
        prompt_length: how many of them are prompt.
        scores: (num_nodes,) float32, log of the estimated probability that the node is accepted.
        laws: per node the law its token was drawn from, or empty (point masses).
        depths: per node its depth, from 1.
        sources: per node the number of the drafter that it comes from (-1: not known).
    """

    key: tuple[str, int]
    forward: ForwardRow
    sampling: Sampling
    noise_index: int
    final: bool
    ready_depth: int
    base_length: int
    tree_depth: int = 0
    history: Sequence[int] = ()
    prompt_length: int = 0
    scores: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))
    laws: tuple[DraftLaw | None, ...] = ()
    depths: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One verification step: its number, its rows, and what was decided.

    Attributes:
        budget: nodes that it was to verify at most.
        price: tokens per second that were being earned.
        predicted_s: seconds it should take (0: not known).
    """

    step: int
    rows: tuple[PlanRow, ...]
    budget: int
    price: float
    predicted_s: float = 0.0

    @property
    def num_nodes(self) -> int:
        return sum(row.forward.num_nodes for row in self.rows)

    @property
    def num_tokens(self) -> int:
        return sum(len(row.forward.tokens) for row in self.rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """Nothing is to be verified before `until_s`, unless a message arrives; `cause` is "pull" or "miss"."""

    until_s: float
    cause: str
