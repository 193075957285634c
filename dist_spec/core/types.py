"""Values that cross module borders inside one process; plain data, no behaviour beyond checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dist_spec.errors import RequestError

IntArray: TypeAlias = npt.NDArray[np.int32]
FloatArray: TypeAlias = npt.NDArray[np.float32]

NO_PARENT = -1
"""Parent of a node that hangs directly below the base (or the row's last pending token)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How one request is decoded.

    Attributes:
        temperature: 0 decodes greedily; otherwise logits are divided by it.
        seed: 64-bit seed of the noise; the text is a function of (prompt, this record) alone.
        sample_index: which of several samples of one prompt (n > 1) this is.
        max_tokens: generated tokens at most (>= 1).
        stop_token_ids: ids that end the request; the id itself is committed and is the last one.
        stop: strings that end the request; text from the string on is not part of the output.
        ignore_eos: keep going past the model's end-of-sequence ids.
    """

    temperature: float = 0.0
    seed: int = 0
    sample_index: int = 0
    max_tokens: int = 128
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:
            raise RequestError(f"temperature must lie in [0, 100], got {self.temperature}")
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.seed < 2**64:
            raise RequestError(f"seed must be an unsigned 64-bit integer, got {self.seed}")
        if not 0 <= self.sample_index < 2**32:
            raise RequestError(f"sample_index must lie in [0, 2^32), got {self.sample_index}")
        if any(not text for text in self.stop):
            raise RequestError("a stop string must not be empty")


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardRow:
    """One sequence's share of a forward pass: its uncached committed tokens, then a draft tree below the last of them.

    The model runner writes K/V of `tokens` at logical slots `cached .. cached + len(tokens) - 1` of the sequence,
    pending tokens first. Rotary positions: pending token i has `cached + i`; a node has its parent's plus one
    (a node with parent NO_PARENT hangs below the last pending token).

    Attributes:
        block_table: (num_blocks,) int32, physical block of each logical block of this sequence.
        cached: number of committed tokens whose K/V is in the cache already.
        tokens: (num_pending + num_nodes,) int32.
        num_pending: how many of `tokens` are committed tokens not yet cached (>= 1).
        parents: (num_nodes,) int32, index of each node's parent among the nodes or NO_PARENT; parents come first.
        num_logits: logits wanted for the last `num_logits` of `tokens`; normally 1 + num_nodes (the last pending token
            and every node), 0 for a prefill chunk that is not the last.
    """

    block_table: IntArray
    cached: int
    tokens: IntArray
    num_pending: int
    parents: IntArray
    num_logits: int

    @property
    def num_nodes(self) -> int:
        return len(self.parents)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the target says of one row.

    Attributes:
        path: indices (into the row's nodes) of the accepted nodes, root side first.
        token: the recovered token (after a rejection) or bonus token (all of a branch accepted).
        tokens: accepted tokens followed by `token`.
        margin: smallest (perturbed) gap between best and second-best score over the visited rows (nats); for the
            numeric-equality rule, not for control. NaN when not computed.
    """

    path: tuple[int, ...]
    token: int
    tokens: tuple[int, ...]
    margin: float = float("nan")


@dataclass(kw_only=True, slots=True)
class Expansion:
    """Guesses below one leaf: a small sub-tree as arrays, best sibling first.

    Attributes:
        tokens: (n,) int32.
        parents: (n,) int32; NO_PARENT = directly below the leaf, else an index < own index.
        scores: (n,) float32, log of the estimated probability that the target takes this token given its parent.
    """

    tokens: IntArray
    parents: IntArray
    scores: FloatArray

    @staticmethod
    def empty() -> Expansion:
        none = np.empty(0, dtype=np.int32)
        return Expansion(tokens=none, parents=none, scores=np.empty(0, dtype=np.float32))


@dataclass(kw_only=True, slots=True)
class Usage:
    """Counters of one request or one run; all integers, all functions of the decisions taken (not of time)."""

    steps: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    committed: int = 0
    ready_steps: int = 0
    accepted_by_depth: list[int] = field(default_factory=list)
    verified_by_depth: list[int] = field(default_factory=list)
