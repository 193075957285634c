"""A leader and a drafter in one thread for tests: sessions, scripted text, and a mailbox that a test may tamper with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dist_spec.core.admission import TargetFacts
from dist_spec.core.block_manager import BlockManager
from dist_spec.core.draft_session import DraftSession
from dist_spec.core.membership import Membership
from dist_spec.core.messages import Hello, Message, Open, Propose
from dist_spec.core.plan import Plan, Wait
from dist_spec.core.prefix import Prefix
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.settings import Speculation
from dist_spec.core.target_session import Outgoing, TargetSession
from dist_spec.core.types import Sampling
from dist_spec.drafters.scripted import RankLaw, ScriptedDrafter
from dist_spec.sim.devices import ScriptedTarget
from dist_spec.workers.draft import expand_rows

VOCAB = 500
PROMPT = 5


def ints(values: Sequence[int]) -> np.ndarray:
    return np.array(list(values), np.int32)


def text_of(seed: int, length: int = 400) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


def chain(text: Sequence[int], base: int, tokens: Sequence[int], *, request: str = "r", generation: int = 0) -> Propose:
    """A proposal of one chain below the first `base` tokens of `text`."""
    return tree_below(text, base, tokens, range(-1, len(tokens) - 1), request=request, generation=generation)


def tree_below(
    text: Sequence[int],
    base: int,
    tokens: Sequence[int],
    parents: Sequence[int],
    *,
    request: str = "r",
    generation: int = 0,
) -> Propose:
    prefix = Prefix(text[:base])
    return Propose(
        request=request,
        generation=generation,
        base_length=base,
        base_digest=prefix.digest,
        tokens=ints(tokens),
        parents=ints(parents),
        scores=np.full(len(tokens), -0.1, np.float32),
    )


def target_session(
    settings: Speculation | None = None,
    *,
    max_model_len: int = 1000,
    num_blocks: int = 400,
    max_sequences: int = 8,
    max_pending: int = 256,
    **facts: object,
) -> TargetSession:
    settings = settings or Speculation()
    return TargetSession(
        settings,
        facts=TargetFacts(max_model_len=max_model_len, vocab_size=VOCAB, **facts),  # type: ignore[arg-type]
        scheduler=Scheduler(
            BlockManager(num_blocks, block_size=16),
            max_sequences=max_sequences,
            lookahead=settings.budget + 1,
            max_pending=max_pending,
        ),
        membership=Membership(heartbeat_s=1.0, dead_after_s=5.0),
    )


class Leader:
    """A target session with a scripted target and one request per text; `step` is one verification."""

    def __init__(self, texts: dict[str, list[int]], settings: Speculation | None = None, **options: object) -> None:
        self.texts = texts
        self.session = target_session(settings, **options)  # type: ignore[arg-type]
        self.backend = ScriptedTarget(lambda key: self.texts[key[0]])
        self.now = 0.0
        self.closed: dict[str, str] = {}
        self.generated: dict[str, list[int]] = {}

    def hello(self, peer: str = "d", role: str = "drafter", **fields: object) -> list[Outgoing]:
        return self.session.receive(peer, Hello(role=role, name=peer, **fields), now=self.now)  # type: ignore[arg-type]

    def open(self, request: str = "r", *, peer: str = "", generation: int = 0, **sampling: object) -> list[Outgoing]:
        prompt = ints(self.texts[request][:PROMPT])
        fields = {"max_tokens": 40, "ignore_eos": True, **sampling}
        message = Open(request=request, generation=generation, prompt=prompt, sampling=Sampling(**fields))  # type: ignore[arg-type]
        if peer:
            return self.session.receive(peer, message, now=self.now)
        return self.session.open(message, now=self.now)

    def send(self, peer: str, message: Message) -> list[Outgoing]:
        return self.session.receive(peer, message, now=self.now)

    def begin(self) -> tuple[Plan | Wait | None, list[Outgoing]]:
        out = self.session.admit(now=self.now)
        return self.session.select(now=self.now), out

    def finish(self, plan: Plan) -> list[Outgoing]:
        sequences = {row.key: self.session.live[row.key].sequence for row in plan.rows if row.key in self.session.live}
        self.now += 0.02
        out = self.session.apply(plan, self.backend.collect(plan), now=self.now)
        for (request, _), sequence in sequences.items():
            self.generated[request] = sequence.tokens[sequence.prompt_length :]
            if sequence.finish_reason:
                self.closed[request] = sequence.finish_reason
        return out

    def step(self) -> tuple[Plan, list[Outgoing]]:
        plan, out = self.begin()
        assert isinstance(plan, Plan), plan
        return plan, out + self.finish(plan)

    def run(self, limit: int = 500) -> None:
        for _ in range(limit):
            if self.session.idle:
                return
            plan, _ = self.begin()
            if isinstance(plan, Plan):
                self.finish(plan)
            elif isinstance(plan, Wait):
                self.now = plan.until_s
        raise AssertionError("the requests do not end")


class DraftEnd:
    """A draft session with a scripted drafter; `step` is one draft step."""

    def __init__(self, texts: dict[str, list[int]], settings: Speculation | None = None, *, a: float = 0.9) -> None:
        self.session = DraftSession(settings or Speculation())
        self.drafter = ScriptedDrafter(lambda key, history: texts[key[0]], law=RankLaw(a=a, b=0.6), vocab_size=VOCAB)

    def step(self) -> list[Message]:
        batch = self.session.next_batch()
        return [] if batch is None else self.session.expanded(batch, self.drafter.expand(expand_rows(batch)))


def run_pair(
    leader: Leader,
    draft: DraftEnd,
    *,
    steps: int = 3,
    to_drafter: Callable[[list[Message]], list[Message]] = lambda messages: messages,
    to_leader: Callable[[list[Message]], list[Message]] = lambda messages: messages,
    limit: int = 2000,
) -> None:
    """Both ends to the end of all requests, `steps` draft steps per verification; traffic passes the given functions."""
    outbox = [message for _, message in leader.hello("d")]
    for _ in range(limit):
        if leader.session.idle:
            return
        plan, out = leader.begin()
        outbox += [message for peer, message in out if peer == "d"]
        answers: list[Message] = []
        for message in to_drafter(outbox):
            answers += draft.session.receive(message, now=leader.now)
        outbox = []
        for _ in range(steps):
            answers += draft.step()
        if isinstance(plan, Plan):
            outbox += [message for peer, message in leader.finish(plan) if peer == "d"]
        elif isinstance(plan, Wait):
            leader.now += 0.004
        for message in to_leader(answers):
            outbox += [sent for peer, sent in leader.send("d", message) if peer == "d"]
    raise AssertionError("the requests do not end")


def kinds(out: Sequence[Outgoing], kind: type[Message], peer: str | None = None) -> list[Message]:
    return [message for to, message in out if isinstance(message, kind) and peer in (None, to)]
