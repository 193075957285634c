"""Both ends of the protocol with the rejection rule on a tiny vocabulary, in one thread: real sessions, messages through
the in-process transport, the real backend over a table instead of a model. A schedule says what arrives when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from dist_spec.core.admission import TargetFacts
from dist_spec.core.block_manager import BlockManager
from dist_spec.core.draft_session import DraftSession
from dist_spec.core.membership import Membership
from dist_spec.core.messages import Hello, Message, Open, Propose
from dist_spec.core.plan import Plan, PlanRow
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.settings import Speculation
from dist_spec.core.target_session import TargetSession
from dist_spec.core.types import Expansion, ForwardRow, Sampling
from dist_spec.drafters.base import ExpandRow
from dist_spec.drafters.chooser import Chooser
from dist_spec.drafters.draw import LawSettings, drawn
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.base import LEADER
from dist_spec.transports.inproc import InprocHub
from dist_spec.workers.draft import expand_rows
from dist_spec.workers.model_backend import ModelBackend
from tests.laws.chain_cases import Decisions, Drafter
from tests.laws.enumeration import Chance, Table

BLIND = Speculation(
    growth="optimistic", delivery="push", verify_shape="chain", budget=4, num_draft_tokens=4, blind=True
)
PROMPT = (0,)


class TableRunner:
    """What the backend needs of a model runner, from a table; its cache holds the tokens themselves."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._cached: dict[int, list[int]] = {}

    def launch(self, rows: Sequence[ForwardRow]) -> TableRunner:
        self._logits: list[np.ndarray] = []
        for row in rows:
            tokens = row.tokens.tolist()
            text = [*self._cached.get(int(row.block_table[0]), [])[: row.cached], *tokens[: row.num_pending]]
            self._cached[int(row.block_table[0])] = text
            paths = [text]
            for token, parent in zip(tokens[row.num_pending :], row.parents.tolist(), strict=True):
                paths.append([*paths[parent + 1], token])
            self._logits += [self.table.logits(path) for path in paths[-row.num_logits :]] if row.num_logits else []
        return self

    def wait(self) -> torch.Tensor:
        return torch.from_numpy(np.stack(self._logits))

    def compact(self, rows: Sequence[ForwardRow], paths: Sequence[Sequence[int]]) -> None:
        for row, path in zip(rows, paths, strict=True):
            nodes = row.tokens[row.num_pending :]
            self._cached[int(row.block_table[0])] += [int(nodes[node]) for node in path]


class ChanceBackend(ModelBackend):
    """The real backend with enumerated numbers instead of generated ones."""

    def __init__(self, table: Table, decisions: Decisions, chance: Chance) -> None:
        super().__init__(**backend_options(table))
        self._decisions = decisions
        self._chance = chance

    def _make_noise(self, rows: Sequence[PlanRow]) -> None:
        pass

    def _text(self, row: PlanRow, depth: int) -> tuple[int, ...]:
        nodes = row.forward.tokens[row.forward.num_pending :][:depth].tolist()
        return (row.key, *row.history[: row.base_length], *nodes)

    def _uniforms(self, row: PlanRow) -> Callable[[int, int], float]:
        def number(domain: int, depth: int) -> float:
            name, *text = self._text(row, depth)
            return self._decisions.weigh(
                self._chance,
                domain,
                prefix=tuple(text),
                token=int(row.forward.tokens[row.forward.num_pending + depth]),
                law=row.laws[depth] if row.laws else None,
                epoch=(name, row.noise_index),
            )

        return number

    def _noise(self, row: PlanRow) -> Callable[[int], np.ndarray]:
        def noise(depth: int) -> np.ndarray:
            name, *text = self._text(row, depth)
            return self._decisions.noise_row(self._chance, tuple(text), whose=name)

        return noise


def backend_options(table: Table) -> dict:
    return {
        "runner": TableRunner(table),
        "vocab_size": table.vocab_size,
        "rule": "rejection",
        "noise_rows": 8,
        "with_margin": False,
        "timeline": Timeline(lambda: 0.0),
    }


class TableDrafter:
    """Draws from a table's laws; `life` names its source of randomness."""

    kind = "table"

    def __init__(self, drafter: Drafter, chance: Chance, *, told: Callable | None = None) -> None:
        self.drafter = drafter
        self.chance = chance
        self.life = 0
        self._told = told or (lambda law: law)

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        return [[self._guess(row, leaf) for leaf in row.leaves] for row in rows]

    def _guess(self, row: ExpandRow, leaf: int) -> Expansion:
        prefix = (*row.history, *row.tree.path_tokens(leaf))
        law = self.drafter.law(prefix)
        epoch = (row.key, row.digest_before(leaf), self.life)
        token = self.drafter.decisions.draw(self.chance, law, index=row.noise_index(leaf), epoch=epoch)
        guess = drawn(law, 0)
        guess.tokens[0] = token
        guess.scores[0] = np.log(law.probability(token))  # what a drafter that ranks would say
        guess.laws = (self._told(law),)
        return guess


class Drafts(Protocol):
    """A drafter whose randomness can be renewed."""

    life: int

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]: ...


class NoisyDrafter:
    """The real drafter's drawing, by the real noise, over a table instead of a model."""

    def __init__(self, table: Table, *, laws: LawSettings) -> None:
        self._table, self._chooser = table, Chooser(vocab_size=table.vocab_size, laws=laws)
        self.life = 0

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        answers = []
        for row in rows:
            texts = [[*row.history, *row.tree.path_tokens(leaf)] for leaf in row.leaves]
            logits = torch.from_numpy(np.stack([self._table.logits(text) for text in texts]))
            answers.append(self._chooser.guess(row, row.leaves, logits))
        return answers


@dataclass(kw_only=True)
class Schedule:
    """What happens between one verification and the next, over and over.

    Attributes:
        draft_steps: draft steps, per verification.
        restarts: verifications before which the drafter loses everything and draws with other noise.
        lost: whether a proposal is lost (must not look at tokens).
        late: verifications that a proposal takes to arrive.
    """

    draft_steps: Sequence[int] = (2,)
    restarts: Sequence[int] = ()
    lost: Callable[[Propose], bool] = lambda proposal: False
    late: int = 0


@dataclass
class Pair:
    """A leader and a drafter on one hub; `run` takes all requests to their end and returns their texts."""

    session: TargetSession
    backend: ModelBackend
    drafter: Drafts
    schedule: Schedule
    settings: Speculation
    accepted: int = 0
    budgets: list[int] = field(default_factory=list)
    _hub: InprocHub = field(default_factory=lambda: InprocHub(vocab_size=64))
    _under_way: list[tuple[int, str, Message]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._leader = self._hub.leader()
        self._restart()

    def _restart(self) -> None:
        self.drafting = DraftSession(self.settings)
        self.drafter.life += 1
        self._peer = self._hub.connect("d")
        self._peer.send(LEADER, Hello(role="drafter", name="d"))

    def run(self, requests: dict[str, Sampling], *, prompt: Sequence[int] = PROMPT) -> dict[str, tuple[int, ...]]:
        for name, sampling in requests.items():
            opening = Open(request=name, generation=0, prompt=np.array(prompt, np.int32), sampling=sampling)
            assert not self.session.open(opening, now=0.0)
        sequences = {name: self.session.live[name, 0].sequence for name in requests}
        for step in self._steps():
            self._exchange(step)
            plan = self.session.select(now=float(step))
            assert isinstance(plan, Plan)
            self.budgets.append(plan.budget)
            self.backend.launch(plan)
            self._send(self.session.apply(plan, self.backend.collect(plan), now=step + 0.5))
        self.accepted = self.session.counts.accepted
        return {name: tuple(sequence.tokens[len(prompt) :]) for name, sequence in sequences.items()}

    def _steps(self) -> Iterator[int]:
        for step in range(100):
            if self.session.idle:
                return
            yield step
        raise AssertionError("the requests do not end")

    def _exchange(self, step: int) -> None:
        if step in self.schedule.restarts:
            self._restart()
        self._receive(step)  # greetings
        self._send(self.session.admit(now=float(step)))
        self._draft()
        for _ in range(self.schedule.draft_steps[step % len(self.schedule.draft_steps)]):
            batch = self.drafting.next_batch()
            if batch is not None:
                for message in self.drafting.expanded(batch, self.drafter.expand(expand_rows(batch))):
                    self._peer.send(LEADER, message)
            self._draft()
        self._receive(step)

    def _draft(self) -> None:
        for _, message in self._peer.receive(0.0):
            for answer in self.drafting.receive(message, now=0.0):
                self._peer.send(LEADER, answer)

    def _receive(self, step: int) -> None:
        for peer, message in self._leader.receive(0.0):
            assert not isinstance(message, Exception), message
            proposal = isinstance(message, Propose)
            if not (proposal and self.schedule.lost(message)):
                self._under_way.append((step + self.schedule.late * proposal, peer, message))
        due = [one for one in self._under_way if one[0] <= step]
        self._under_way = [one for one in self._under_way if one[0] > step]
        for _, peer, message in due:
            self._send(self.session.receive(peer, message, now=float(step)))

    def _send(self, outgoing: Sequence[tuple[str, Message]]) -> None:
        for peer, message in outgoing:
            self._leader.send(peer, message)


def target_session(settings: Speculation, *, vocab_size: int) -> TargetSession:
    return TargetSession(
        settings,
        facts=TargetFacts(max_model_len=64, vocab_size=vocab_size),
        scheduler=Scheduler(BlockManager(64, block_size=16), max_sequences=32, lookahead=settings.budget + 1),
        membership=Membership(heartbeat_s=1e6, dead_after_s=1e9),
    )


def sampling(length: int, *, seed: int = 0) -> Sampling:
    return Sampling(temperature=1.0, max_tokens=length, ignore_eos=True, seed=seed)


def enumerated_pair(
    chance: Chance,
    *,
    target: Table,
    drafter: Drafter,
    decisions: Decisions,
    schedule: Schedule,
    settings: Speculation = BLIND,
    told: Callable | None = None,
) -> Pair:
    return Pair(
        target_session(settings, vocab_size=target.vocab_size),
        ChanceBackend(target, decisions, chance),
        TableDrafter(drafter, chance, told=told),
        schedule,
        settings,
    )
