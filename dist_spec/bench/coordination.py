"""What the leader's own decisions cost, without a model: `python -m dist_spec.bench.coordination`.

Between the end of one verification and the start of the next the leader commits (`apply`), takes in what drafters sent
meanwhile (`receive`) and picks what to verify (`select`). A scripted drafter fills the tree; nothing else runs, so the
figures are the Python cost alone. The control is the same run with drafting off.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from dist_spec.bench.arguments import at_least_1
from dist_spec.core.admission import TargetFacts
from dist_spec.core.block_manager import BlockManager
from dist_spec.core.draft_session import DraftSession
from dist_spec.core.membership import Membership
from dist_spec.core.messages import Hello, Message, Open, Propose
from dist_spec.core.plan import Plan
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.settings import Speculation
from dist_spec.core.target_session import TargetSession
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Sampling
from dist_spec.drafters.scripted import RankLaw, ScriptedDrafter
from dist_spec.exits import run
from dist_spec.sim.devices import ScriptedTarget
from dist_spec.transports.codec import decode, encode
from dist_spec.workers.draft import expand_rows

_VOCAB = 50_000
_DRAFTER = "drafter"


@dataclass(kw_only=True, slots=True)
class Costs:
    """Milliseconds per verification, one entry each; nodes that arrived for it, and how many of them were new and still
    possible."""

    apply_ms: list[float] = field(default_factory=list)
    receive_ms: list[float] = field(default_factory=list)
    decode_ms: list[float] = field(default_factory=list)
    select_ms: list[float] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)

    @property
    def total_ms(self) -> list[float]:
        parts = zip(self.apply_ms, self.receive_ms, self.select_ms, strict=True)
        return [sum(part) for part in parts]


def measure(
    settings: Speculation,
    *,
    num_requests: int = 1,
    draft_steps: int = 7,
    verifications: int = 300,
    law: RankLaw | None = None,
) -> Costs:
    """Costs of `verifications` steps with `draft_steps` draft steps between them."""
    text = np.random.default_rng(0).integers(0, _VOCAB, 64 + 40 * verifications).tolist()
    target = TargetSession(
        settings,
        facts=TargetFacts(max_model_len=1 << 20, vocab_size=_VOCAB),
        scheduler=Scheduler(BlockManager(1 << 14, block_size=16), max_sequences=64, lookahead=settings.budget + 1),
        membership=Membership(),
    )
    backend = ScriptedTarget(lambda key: text)
    session = DraftSession(settings)
    drafter = ScriptedDrafter(lambda key, history: text, law=law or RankLaw(a=0.87, b=0.5), vocab_size=_VOCAB)
    target.receive(_DRAFTER, Hello(role="drafter", name=_DRAFTER), now=0.0)
    for request in range(num_requests):
        sampling = Sampling(max_tokens=len(text) - 64, ignore_eos=True)
        opening = Open(request=f"r{request}", generation=0, prompt=np.array(text[:8], np.int32), sampling=sampling)
        target.open(opening, now=0.0)
    to_drafter: list[Message] = [message for _, message in target.admit(now=0.0)]
    costs = Costs()
    plan = target.select(now=0.0)
    for _ in range(verifications):
        if not isinstance(plan, Plan):
            break
        proposals = [encode(message) for message in _draft(session, drafter, to_drafter, draft_steps)]
        outcomes = backend.collect(plan)
        before = target.counts.drafted
        with _into(costs.apply_ms):
            committed = target.apply(plan, outcomes, now=0.0)
        with _into(costs.decode_ms):
            messages = [decode(frames) for frames in proposals]
        with _into(costs.receive_ms):
            for message in messages:
                target.receive(_DRAFTER, message, now=0.0)
        with _into(costs.select_ms):
            plan = target.select(now=0.0)
        costs.nodes.append(sum(len(message.tokens) for message in messages if isinstance(message, Propose)))
        costs.fresh.append(target.counts.drafted - before)
        to_drafter = [message for _, message in committed]
    return costs


def message_ms(num_nodes: int = 128, *, repeats: int = 400) -> tuple[int, float]:
    """Bytes of one proposal of all new nodes (each parent has four children), and the median time to decode and graft it."""
    draw = np.random.default_rng(0)
    proposal = Propose(
        request="r0",
        generation=0,
        base_length=700,
        base_digest=1 << 63,
        tokens=draw.integers(0, _VOCAB, num_nodes, dtype=np.int32),
        parents=np.arange(num_nodes, dtype=np.int32) // 4 - 1,
        scores=-draw.exponential(1.0, num_nodes).astype(np.float32),
    )
    frames = encode(proposal)
    times_ms: list[float] = []
    for _ in range(repeats):
        tree = DraftTree(700)
        with _into(times_ms):
            message = decode(frames)
            if isinstance(message, Propose):
                tree.graft_late((), message.tokens, message.parents, message.scores)
    return sum(map(len, frames)), statistics.median(times_ms)


@contextmanager
def _into(times_ms: list[float]) -> Iterator[None]:
    start = perf_counter()
    yield
    times_ms.append(1e3 * (perf_counter() - start))


def _draft(
    session: DraftSession, drafter: ScriptedDrafter, received: Sequence[Message], num_steps: int
) -> list[Message]:
    """What a drafter publishes in `num_steps` steps after these messages."""
    out = [answer for message in received for answer in session.receive(message, now=0.0)]
    for _ in range(num_steps):
        batch = session.next_batch()
        if batch is None:
            break
        out += session.expanded(batch, drafter.expand(expand_rows(batch)))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verifications", type=at_least_1, default=300)
    arguments = parser.parse_args()
    wide = Speculation(budget=32, num_leaves=24, num_children=8, num_draft_tokens=99)
    rows = [
        ("24 leaves x 8, budget 32, batch 1", wide, 1),
        ("24 leaves x 8, budget 32, batch 4", wide, 4),
        ("8 leaves x 4, budget 8, batch 1", Speculation(), 1),
        ("control: drafting off, batch 1", Speculation(budget=0), 1),
    ]
    columns = "".join(f"{name:>8}" for name in ("nodes", "new", "apply", "receive", "select", "sum", "decode"))
    print(f"{'median ms per verification':36}{columns}")
    for name, settings, num_requests in rows:
        steps = 7 if settings.budget else 0
        costs = measure(settings, num_requests=num_requests, draft_steps=steps, verifications=arguments.verifications)
        values = (costs.apply_ms, costs.receive_ms, costs.select_ms, costs.total_ms, costs.decode_ms)
        counted = "".join(f"{statistics.median(value):8.0f}" for value in (costs.nodes, costs.fresh))
        print(f"{name:36}{counted}" + "".join(f"{statistics.median(value):8.3f}" for value in values))
    num_bytes, spent_ms = message_ms()
    print(f"one message of 128 new nodes: {num_bytes} bytes, {spent_ms:.3f} ms to decode and graft")


if __name__ == "__main__":
    sys.exit(run(main))
