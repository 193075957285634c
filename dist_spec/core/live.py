"""One request at the leader: its sequence, the mirror of its draft tree, who waits for whom, and its counters."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import numpy as np

from dist_spec.core.messages import Commit, Open
from dist_spec.core.plan import PlanRow
from dist_spec.core.sequence import Sequence
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import NO_PARENT, ForwardRow, IntArray, Usage


@dataclass(kw_only=True, slots=True)
class Live:
    """State of one request.

    Attributes:
        owner: the frontend that opened it ("" when opened in process).
        running: it has cache blocks; otherwise it is queued.
        told: drafters that know of it and serve it.
        fed: drafters by which something was added since the last verification.
        asked: drafters that still owe an answer for the present head.
        told_length: base of the commit that drafters were told last.
        waited: the coming step was held up for an answer (to learn what waiting brings).
    """

    sequence: Sequence
    tree: DraftTree
    owner: str
    opened_s: float
    running: bool = False
    started_s: float = 0.0
    told_length: int = 0
    first_token_s: float | None = None
    last_token_s: float = 0.0
    told: set[str] = field(default_factory=set)
    fed: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    asked_s: float = 0.0
    wait_until_s: float = 0.0
    waited: bool = False

    @staticmethod
    def start(sequence: Sequence, *, owner: str, now: float) -> Live:
        tree = DraftTree(len(sequence.prefix), sequence.tokens[-1])
        return Live(sequence=sequence, tree=tree, owner=owner, opened_s=now)

    @property
    def usage(self) -> Usage:
        return self.sequence.usage

    def depth_cap(self) -> int:
        """Deepest node worth verifying: the target adds one token of its own, so the last room is never drafted."""
        return self.sequence.room - 1

    def opening(self, *, ask: bool = False) -> Open:
        """The request told from the start, for a peer that knows nothing of it."""
        sequence, split = self.sequence, self.sequence.prompt_length
        return Open(
            request=sequence.request,
            generation=sequence.generation,
            prompt=np.array(sequence.tokens[:split], np.int32),
            generated=np.array(sequence.tokens[split:], np.int32),
            generated_offset=sequence.generated_offset,
            sampling=sequence.sampling,
            ask=ask,
        )

    def will_finish_pending(self, limit: int) -> bool:
        """Whether a step that feeds `limit` tokens reaches the end of the committed text, so that guesses count."""
        return self.sequence.cached + limit >= len(self.sequence.prefix)

    def count(self, row: PlanRow, *, num_accepted: int, now: float) -> None:
        usage, nodes = self.usage, row.forward.num_nodes
        usage.steps += 1
        usage.ready_steps += row.tree_depth > 0
        usage.verified += nodes
        usage.accepted += num_accepted
        if self.first_token_s is None:
            self.first_token_s = now
        self.last_token_s = now

    def tell_twice(self, commit: Commit, *, floor: float) -> Commit:
        """The commit with the one before it in front: a drafter that lost that one needs no round trip to catch up.

        Costs 4 bytes per token; a lost commit else costs the guesses of a whole verification and a `Need`.
        """
        since, self.told_length = self.told_length or commit.base_length, commit.base_length
        prefix = self.sequence.prefix
        tokens = np.array(prefix.tokens[since:], np.int32)
        return replace(commit, base_length=since, base_digest=prefix.digests[since], tokens=tokens, floor=floor)

    def report(self) -> dict[str, float]:
        """Flat figures of this request for its frontend."""
        usage = self.usage
        first = self.first_token_s if self.first_token_s is not None else self.last_token_s
        return {
            "steps": usage.steps,
            "drafted": usage.drafted,
            "verified": usage.verified,
            "accepted": usage.accepted,
            "committed": usage.committed,
            "ready_steps": usage.ready_steps,
            "opened_at_s": self.opened_s,
            "queue_s": max(self.started_s - self.opened_s, 0.0),
            "ttft_s": max(first - self.opened_s, 0.0),
            "decode_s": max(self.last_token_s - first, 0.0),
        }


def plan_row(live: Live, nodes: Seq[int], *, block_table: IntArray, max_pending: int) -> PlanRow:
    """The forward row of one request: what of its text is not cached yet, and `nodes` of its tree below that."""
    sequence, tree = live.sequence, live.tree
    pending = sequence.tokens[sequence.cached : sequence.cached + max_pending]
    final = sequence.cached + len(pending) == len(sequence.prefix)
    nodes = nodes if final else ()
    number = {node: i for i, node in enumerate(nodes)}
    parent, token, path, length, source = tree.parent, tree.token, tree.path, tree.length, tree.source
    top, base = path[tree.root], length[tree.root]
    depths = tuple([length[node] - base for node in nodes])
    forward = ForwardRow(
        block_table=block_table,
        cached=sequence.cached,
        tokens=np.array([*pending, *[token[node] for node in nodes]], np.int32),
        num_pending=len(pending),
        parents=np.array([number.get(parent[node], NO_PARENT) for node in nodes], np.int32),
        num_logits=1 + len(nodes) if final else 0,
    )
    return PlanRow(
        key=sequence.key,
        forward=forward,
        sampling=sequence.sampling,
        noise_index=sequence.noise_index,
        final=final,
        ready_depth=max(depths, default=0),
        tree_depth=len(tree.best_chain(max(live.depth_cap(), 0))) if final else 0,
        base_length=sequence.cached + len(pending),
        history=sequence.tokens,
        prompt_length=sequence.prompt_length,
        scores=np.array([path[node] - top for node in nodes], np.float32),
        depths=depths,
        sources=tuple([source[node] for node in nodes]),
        laws=tuple(tree.laws.get(node) for node in nodes) if tree.laws else (),
    )
