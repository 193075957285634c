"""The leader's worker: drafters of its own, and the measurement of costs at the start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dist_spec.core.messages import Forget, Hello, Open
from dist_spec.core.plan import Plan
from dist_spec.core.settings import Speculation
from dist_spec.core.types import Expansion, Sampling
from dist_spec.drafters.base import ExpandRow, RequestKey
from dist_spec.models.rows import plan_segments
from dist_spec.models.shared_attention import _must_walk
from dist_spec.sim.devices import ScriptedTarget
from dist_spec.transports.inproc import InprocHub
from dist_spec.workers.costs import Space, measure_costs
from dist_spec.workers.target import TargetWorker
from tests.unit.session_cases import ints, target_session, text_of

TEXT = text_of(1)


class OneGuess:
    """Guesses the text shifted by a constant; counts what it is asked to do."""

    kind = "ngram"

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.closed: list[RequestKey] = []
        self.num_forgotten = 0

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        for row in rows:
            assert row.tree.is_empty()  # nobody's guesses are in the tree yet
        return [[self._guess(TEXT[len(row.history)])] for row in rows]

    def _guess(self, token: int) -> Expansion:
        tokens = ints([(token + self.shift) % 500])
        return Expansion(tokens=tokens, parents=ints([-1]), scores=np.array([-0.7], np.float32))

    def close(self, key: RequestKey) -> None:
        self.closed.append(key)

    def forget(self) -> None:
        self.num_forgotten += 1


def test_all_drafters_inside_the_leader_are_asked_and_told() -> None:
    right, wrong = OneGuess(0), OneGuess(1)
    hub = InprocHub()
    worker = TargetWorker(
        target_session(),
        backend=ScriptedTarget(lambda key: TEXT),
        transport=hub.leader(),
        local={"right": right, "wrong": wrong},
    )
    frontend = hub.connect("f")
    frontend.send("leader", Hello(role="frontend", name="f"))
    frontend.send("leader", Forget())
    worker.receive(clock=lambda: 0.0)
    opening = Open(request="r", generation=0, prompt=ints(TEXT[:5]), sampling=Sampling(max_tokens=9, ignore_eos=True))
    worker.open(opening, now=0.0)
    plans: list[Plan] = []
    while isinstance(plan := worker.begin(now=0.0), Plan):
        plans.append(plan)
        worker.finish(plan, now=0.0)
    assert [plan.num_nodes for plan in plans] == [
        0,
        2,
        2,
        2,
        2,
    ]  # the first reads the prompt, the last has room for two
    assert len(plans[1].rows[0].sources) == len(set(plans[1].rows[0].sources)) == 2
    tables = worker.session.mirrors.reliability.tables
    assert {"right": tables["right"][:, 2].sum(), "wrong": tables["wrong"][:, 2].sum()} == {"right": 4, "wrong": 0}
    assert right.closed == wrong.closed == [("r", 0)]
    assert right.num_forgotten == wrong.num_forgotten == 1


class Timed:
    """A backend that only takes time: a base, and so much per token."""

    def __init__(self, *, base_s: float, token_s: float) -> None:
        self.now = 0.0
        self.steps: list[tuple[int, int]] = []
        self._base_s, self._token_s = base_s, token_s

    def launch(self, plan: Plan) -> None:
        self.steps.append((len(plan.rows), plan.num_nodes))
        slow = 5.0 if len(self.steps) % 13 == 0 else 1.0  # now and then something gets in the way
        self.now += (self._base_s + self._token_s * plan.num_tokens) * slow

    def collect(self, plan: Plan) -> list:
        blocks = [row.forward.block_table.tolist() for row in plan.rows]
        assert len({block for one in blocks for block in one}) == sum(map(len, blocks))
        for row in plan.rows:
            room = len(row.forward.block_table) * 16
            assert row.forward.cached + len(row.forward.tokens) <= room
        return []


def space(**fields: int) -> Space:
    return Space(
        **{"num_blocks": 200, "block_size": 16, "max_model_len": 512, "max_rows": 4, "max_nodes": 32, **fields}
    )


def test_costs_are_measured_by_real_steps() -> None:
    backend = Timed(base_s=10e-3, token_s=1e-3)
    costs = measure_costs(backend, space(), clock=lambda: backend.now)
    for rows, nodes in ((1, 0), (1, 5), (4, 32), (3, 8)):
        assert costs.seconds(rows, nodes) == pytest.approx(10e-3 + 1e-3 * (rows + nodes), rel=1e-6)
    assert backend.now < 4.0
    assert {rows for rows, _ in backend.steps} == {1, 2, 4}


class Watching(Timed):
    """Keeps the plans."""

    def __init__(self) -> None:
        super().__init__(base_s=1e-3, token_s=1e-4)
        self.plans: list[Plan] = []

    def launch(self, plan: Plan) -> None:
        super().launch(plan)
        self.plans.append(plan)


def test_costs_are_measured_away_from_where_attention_takes_another_path() -> None:
    """A tree across a multiple of 128 positions is asked node by node: such a step would pass for the usual one."""
    backend = Watching()
    measure_costs(backend, space(num_blocks=2000, max_nodes=64), clock=lambda: backend.now)
    assert max(plan.num_nodes for plan in backend.plans) == 64
    for plan in backend.plans:
        forwards = [row.forward for row in plan.rows]
        segments, *_ = plan_segments(forwards, block_size=16, attention="shared", max_positions=512)
        assert not any(_must_walk(segment) for segment in segments)


def test_a_slow_target_is_measured_at_fewer_points() -> None:
    backend = Timed(base_s=0.2, token_s=1e-3)
    costs = measure_costs(backend, space(), clock=lambda: backend.now)
    assert backend.now < 8.0
    assert costs.seconds(1, 16) == pytest.approx(0.217, rel=0.01)


def test_a_small_cache_is_measured_with_what_fits() -> None:
    backend = Timed(base_s=1e-3, token_s=1e-4)
    measure_costs(backend, space(num_blocks=11, max_rows=8), clock=lambda: backend.now)
    assert {rows for rows, _ in backend.steps} == {1}
    measure_costs(backend, space(max_model_len=40, max_nodes=16), clock=lambda: backend.now)


def test_a_drafter_may_leave_forgetting_out() -> None:
    class Forgetful(OneGuess):
        forget = None  # type: ignore[assignment]

    worker = TargetWorker(
        target_session(Speculation()),
        backend=ScriptedTarget(lambda key: TEXT),
        transport=InprocHub().leader(),
        local={"a": Forgetful(0)},
    )
    worker.session.conversation.forgotten = True
    worker.begin(now=0.0)
    assert not worker.session.take_forgotten()
