"""The typed messages of the protocol (docs/protocol.md). Plain data: how they become bytes is the codec's business.

Every message about a request names it by (request, generation) and the prefix it speaks of by length and digest, so
that loss, repetition, delay and reordering cost speed and never output (law 3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from dist_spec.core.law import DraftLaw
from dist_spec.core.types import FloatArray, HalfArray, IntArray, Sampling

PROTOCOL_VERSION = 4

LastKind: TypeAlias = Literal["plain", "recovered", "bonus"]
LinkState: TypeAlias = Literal["wanted", "offered", "broken"]
LinkCargo: TypeAlias = Literal["tensors", "messages"]

NO_FLOOR = -65504.0
"""No price is known: every node is worth sending."""

READ = "read"
"""Reason of a `Close` from a frontend: it answers one from the leader, all of which it has read. It asks for nothing."""

DRAINING = "draining"
"""Reason of a `Close` to a frontend: this target is ending. Its request may be told again, there or to the next one."""

MAX_REQUEST_ID = 128
MAX_NODES = 4096
MAX_TOKENS = 1 << 20
MAX_FEATURES = 1 << 17
"""Numbers in one row of features."""


def no_rows() -> HalfArray:
    """No features."""
    return np.empty((0, 0), np.float16)


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureWish:
    """Which hidden features of the target a draft head wants, and what target it was made for.

    Attributes:
        layers: decoder layers (from 0) whose outputs make up a row of features, side by side in this order.
        hidden_size, num_layers: of the target it was made for.
        window: positions of the past that it can use.
    """

    layers: tuple[int, ...]
    hidden_size: int
    num_layers: int
    window: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """Sent once by whoever connects. `role` is "drafter" or "frontend".

    `vocabulary` holds a 4-byte hash per 64 consecutive ids of the sender's token-to-id map (empty: the sender has no
    tokenizer, e.g. an n-gram drafter), so that the leader can refuse a drafter with another map and say where it differs.
    `features`: the sender is a draft head and wants the target's hidden features.
    """

    role: str
    name: str
    protocol: int = PROTOCOL_VERSION
    vocabulary: bytes = b""
    vocab_size: int = 0
    kind: str = ""
    step_s: float = 0.0
    features: FeatureWish | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Open:
    """A request begins (or is re-told to a late joiner): prompt, then `generated` tokens committed so far.

    frontend -> leader opens a request; leader -> drafter tells of it. The noise index of a token is
    `generated_offset` plus its index among the tokens generated here, so resume and late drafters agree.
    """

    request: str
    generation: int
    prompt: IntArray
    sampling: Sampling
    generated: IntArray = field(default_factory=lambda: np.empty(0, np.int32))
    generated_offset: int = 0
    ask: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """`tokens` follow the prefix (base_length, base_digest). `num_accepted` of them were drafted. With `ask`, the
    receiver must answer with a `Propose` whose base is the new head, even an empty one. `margins` (frontends only, and
    only when the target reports them): per token, the gap between best and second-best (perturbed) score in nats.

    For frontends: `last_kind` says what the last token is: "plain" (no draft was verified), "recovered" (another token
    than drafted) or "bonus" (all of a branch was accepted); `logprobs` (n,), `top_ids` and `top_logprobs` (n, k) where
    the request asked for them. For drafters: `floor` is the log probability of acceptance below which a node would not
    be verified at the present price (as rounded by `score_grid`). For draft heads: `features` (n, size), the target's at
    the n positions that end with the last token but one (that of the last token comes with the next step); with `apart`
    they come over another link."""

    request: str
    generation: int
    base_length: int
    base_digest: int
    tokens: IntArray
    num_accepted: int = 0
    ask: bool = False
    margins: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))
    last_kind: LastKind = "plain"
    logprobs: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))
    top_ids: IntArray = field(default_factory=lambda: np.empty((0, 0), np.int32))
    top_logprobs: FloatArray = field(default_factory=lambda: np.empty((0, 0), np.float32))
    floor: float = NO_FLOOR
    # Or a tensor of that type, where a lane takes such (`Features`).
    features: HalfArray = field(default_factory=no_rows)
    apart: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Propose:
    """Draft-tree nodes below the prefix (base_length, base_digest), as arrays closed under ancestors.

    tokens (n,) int32; parents (n,) int32, -1 = the base, else an index smaller than the node's own; scores (n,)
    float32, log of the edge's estimated probability (as rounded by `score_grid`). `serial` numbers a drafter's proposals
    (for records only). `laws`: per node, the law its token was drawn from (rules that weigh with it); empty, or None: a
    point mass.
    """

    request: str
    generation: int
    base_length: int
    base_digest: int
    tokens: IntArray
    parents: IntArray
    scores: FloatArray
    serial: int = 0
    laws: tuple[DraftLaw | None, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """The sender lost track: it has `have_length` tokens of this request (0: knows nothing of it) and wants the rest."""

    request: str
    generation: int
    have_length: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Close:
    """The request is over. `reason`: "stop", "length", "abort", DRAINING or "error: ...".

    For frontends: `stats` is a flat report; `length` is that of the whole text, prompt included, where it came to its
    own end (else 0), so that whoever has less knows that something was lost. They answer with one whose reason is READ.
    """

    request: str
    generation: int
    reason: str
    stats: dict[str, float] = field(default_factory=dict)
    length: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ping:
    """Alive. `progress` grows with the work done (draft steps, verifications); `busy_s` is the time a drafter spent
    drafting; `num_drafters` is how many are attached (from the leader).

    `sent_s` is the sender's clock; `echo_s` is the `sent_s` it heard last plus the time since then, so that the receiver
    learns the round trip (0: none heard). To a drafter: it is number `share_index` of `share_count` drafters of its kind,
    which take disjoint leaves of one tree."""

    progress: int = 0
    busy_s: float = 0.0
    num_drafters: int = 0
    sent_s: float = 0.0
    echo_s: float = 0.0
    share_index: int = 0
    share_count: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Bye:
    """The sender leaves, or refuses the receiver (`reason` says why; then `fatal` is true).

    A refusal for another tokenizer carries the leader's `tokens` of the first 64 ids that differ, from `first_id` on.
    """

    reason: str = ""
    fatal: bool = False
    first_id: int = 0
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Forget:
    """Forget what ended requests left behind (stores of earlier texts). frontend -> leader -> drafters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """The target's hidden features, `rows` (n, size), at the last n positions of the prefix (base_length, base_digest):
    those of a prompt, which come apart from commits and after them. leader -> draft heads. Where both ends have GPUs and a
    link between these, `rows` is a tensor that stays on its device."""

    request: str
    generation: int
    base_length: int
    base_digest: int
    rows: HalfArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """About a second link beside the one that this travels on. The transports of both ends settle it among themselves;
    sessions never see it.

    `state`: "wanted" (drafter -> leader, after each `Hello`; `carries` says for what: "tensors" or "messages" too),
    "offered" (the answer: the two meet at `address`) or "broken" (either way; what went over it goes over this one again;
    `reason` says why).
    """

    state: LinkState
    carries: LinkCargo = "tensors"
    address: str = ""
    reason: str = ""


Message: TypeAlias = Hello | Open | Commit | Propose | Need | Close | Ping | Bye | Forget | Features | Link
MESSAGE_TYPES: tuple[type[Message], ...] = (
    Hello, Open, Commit, Propose, Need, Close, Ping, Bye, Forget, Features, Link,
)  # fmt: skip
