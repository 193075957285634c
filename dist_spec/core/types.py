"""Values that cross module borders inside one process; plain data, no behaviour beyond checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dist_spec.core.law import DraftLaw
from dist_spec.errors import RequestError

IntArray: TypeAlias = npt.NDArray[np.int32]
FloatArray: TypeAlias = npt.NDArray[np.float32]
HalfArray: TypeAlias = npt.NDArray[np.float16]

_MAX_BIAS = 1e9
"""More is no stronger: it outweighs every logit, and what is added up stays finite at the lowest temperature."""

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
        top_k: sample among the k most likely tokens (0: all).
        top_p: sample among the smallest set of most likely tokens whose probability reaches it (1: all).
        min_p: drop tokens less likely than this share of the most likely one.
        repetition_penalty: divides the positive, multiplies the negative logits of tokens seen in prompt or output.
        presence_penalty, frequency_penalty: taken off the logits of tokens seen in the output, once and per occurrence.
        logit_bias: (token id, added to its logit).
        bad_words: token sequences that never appear in the output.
        min_tokens: generated tokens before an end-of-sequence or stop id may come, or a stop string counts.
        logprobs: how many most likely tokens to report per position beside the chosen one; -1: report nothing.
    """

    temperature: float = 0.0
    seed: int = 0
    sample_index: int = 0
    max_tokens: int = 128
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    logprobs: int = -1

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:
            raise RequestError(f"temperature must lie in [0, 100], got {self.temperature}")
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.seed < 2**64:
            raise RequestError(f"seed must be an unsigned 64-bit integer, got {self.seed}")
        if not 0 <= self.sample_index < 2**32:
            raise RequestError(f"sample_index must lie in [0, 2^32), got {self.sample_index}")
        if min(self.stop_token_ids, default=0) < 0:
            raise RequestError(f"stop_token_ids must not be negative, got {min(self.stop_token_ids)}")
        if any(not text for text in self.stop):
            raise RequestError("a stop string must not be empty")
        self._check_processors()

    def _check_processors(self) -> None:
        """Each comparison is written so that NaN fails it."""
        if self.top_k < 0:
            raise RequestError(f"top_k must be at least 0 (0: off), got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p must lie in (0, 1], got {self.top_p}")
        if not 0.0 <= self.min_p <= 1.0:
            raise RequestError(f"min_p must lie in [0, 1], got {self.min_p}")
        if not 0.01 <= self.repetition_penalty <= 100.0:
            raise RequestError(f"repetition_penalty must lie in [0.01, 100], got {self.repetition_penalty}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -100.0 <= getattr(self, name) <= 100.0:
                raise RequestError(f"{name} must lie in [-100, 100], got {getattr(self, name)}")
        for token, bias in self.logit_bias:
            if not (token >= 0 and abs(bias) <= _MAX_BIAS):
                raise RequestError(
                    f"logit_bias: token {token} and bias {bias}; ids are not negative, biases lie in [-1e9, 1e9]"
                )
        if any(not word or min(word) < 0 for word in self.bad_words):
            raise RequestError("bad_words: every entry needs at least one token id, none of them negative")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise RequestError(f"min_tokens must lie in [0, max_tokens = {self.max_tokens}], got {self.min_tokens}")
        if not -1 <= self.logprobs <= 64:
            raise RequestError(f"logprobs must lie in [-1, 64] (-1: none), got {self.logprobs}")

    @property
    def is_processed(self) -> bool:
        """Whether anything but the temperature changes the logits."""
        return self.restricts or self.needs_history or bool(self.logit_bias)

    @property
    def restricts(self) -> bool:
        """Whether only part of the vocabulary may be sampled (top-k, top-p, min-p)."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def needs_history(self) -> bool:
        """Whether the distribution depends on the text so far beyond what the model makes of it."""
        penalties = self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        return penalties or bool(self.bad_words) or self.min_tokens > 0


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
        logprobs: per token, log of its probability under the processed target distribution; empty when not asked for.
        top_logprobs: per token, (id, log probability) of the most likely tokens, best first; empty when not asked for.
    """

    path: tuple[int, ...]
    token: int
    tokens: tuple[int, ...]
    margin: float = float("nan")
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()


@dataclass(kw_only=True, slots=True)
class Expansion:
    """Guesses below one leaf: a small sub-tree as arrays, best sibling first.

    Attributes:
        tokens: (n,) int32.
        parents: (n,) int32; NO_PARENT = directly below the leaf, else an index < own index.
        scores: (n,) float32, log of the estimated probability that the target takes this token given its parent.
        features: (n, F) float32, what the probability of a match is learned from (log q, perturbed margin, rank, match
            length, ...; F is the same for all of a drafter's guesses); None: the score alone.
        laws: per node, the law its token was drawn from given its parent (rules that weigh with it); empty: every token
            is a function of the text before it (a point mass).
    """

    tokens: IntArray
    parents: IntArray
    scores: FloatArray
    features: FloatArray | None = None
    laws: tuple[DraftLaw | None, ...] = ()

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
