"""One drafter for two targets in one thread: equal names are kept apart, steps are shared, one may be gone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import pytest

from dist_spec.config import parse_config
from dist_spec.core.attachment import Attachment
from dist_spec.core.draft_session import DraftSession
from dist_spec.core.messages import Bye, Hello
from dist_spec.core.settings import Speculation
from dist_spec.core.types import Expansion
from dist_spec.drafters.base import ExpandRow, RequestKey
from dist_spec.drafters.partition import Partition
from dist_spec.drafters.scripted import RankLaw, ScriptedDrafter
from dist_spec.errors import ProtocolError
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.inproc import InprocHub
from dist_spec.transports.zmq import ZmqLeader, ZmqPeer, wait_any
from dist_spec.workers import draft_app
from dist_spec.workers.draft import DraftWorker
from dist_spec.workers.shared_draft import Served, SharedDraft
from tests.unit.session_cases import PROMPT, VOCAB, Leader, text_of

TEXTS = {"A": text_of(1), "B": text_of(2)}


class Counting:
    """The scripted drafter, and what it was asked for."""

    kind = "model"

    def __init__(self) -> None:
        self.steps: list[list[RequestKey]] = []
        self.closed: list[RequestKey] = []
        self._drafter = ScriptedDrafter(self._text, law=RankLaw(a=0.9, b=0.6), vocab_size=VOCAB)

    def _text(self, key: RequestKey, history: Sequence[int]) -> list[int]:
        return next(text for text in TEXTS.values() if text[:PROMPT] == list(history[:PROMPT]))

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        self.steps.append([row.key for row in rows])
        return self._drafter.expand(rows)

    def close(self, key: RequestKey) -> None:
        self.closed.append(key)


class Pair:
    """Two leaders with a request "r" each, and the drafter between them; every turn of its loop both verify once."""

    def __init__(self) -> None:
        self.drafter = Counting()
        self.leaders: dict[str, Leader] = {}
        self.ends = {}
        targets = []
        for number, address in enumerate(TEXTS):
            hub = InprocHub()
            self.ends[address] = hub.leader()
            self.leaders[address] = Leader({"r": TEXTS[address]})
            part = Partition(self.drafter, number=number)
            worker = DraftWorker(
                DraftSession(Speculation()),
                drafter=part,
                transport=hub.connect("d"),
                attachment=Attachment(Hello(role="drafter", name="d", kind="model"), heartbeat_s=5.0),
            )
            targets.append(Served(address=address, worker=worker, part=part))
        self.log: list[str] = []
        log = logging.getLogger("shared")
        log.warning = lambda *words: self.log.append(words[0] % words[1:])  # type: ignore[method-assign,assignment]
        self.shared = SharedDraft(
            targets, drafter=self.drafter, timeline=Timeline(monotonic), wait=lambda seconds: None, log=log
        )

    def turn(self) -> bool:
        """Each leader takes in what came, verifies and answers; whether all is over."""
        for address, leader in self.leaders.items():
            end, out = self.ends[address], []
            for peer, message in end.receive(0.0):
                assert not isinstance(message, ProtocolError)
                out += leader.send(peer, message)
            if not leader.session.idle:
                out += leader.step()[1]
            for peer, message in out:
                end.send(peer, message)
        return all(leader.session.idle for leader in self.leaders.values())


def test_two_targets_with_equal_names_share_every_step() -> None:
    pair = Pair()
    for leader in pair.leaders.values():
        leader.open("r", max_tokens=60)
    pair.shared.run(stopping=pair.turn)
    for address, leader in pair.leaders.items():
        assert leader.generated["r"] == TEXTS[address][PROMPT : PROMPT + 60]
        assert leader.session.counts.accepted > 20
    both = [step for step in pair.drafter.steps if len(step) == 2]
    assert len(both) > 0.5 * len(pair.drafter.steps)
    assert {key for step in both for key in step} == {("0/r", 0), ("1/r", 0)}


def test_one_target_without_work_costs_the_other_nothing() -> None:
    pair = Pair()
    pair.leaders["A"].open("r", max_tokens=60)
    pair.shared.run(stopping=pair.turn)
    assert pair.leaders["A"].session.counts.accepted > 20
    assert {tuple(step) for step in pair.drafter.steps} == {(("0/r", 0),)}


@pytest.mark.parametrize("refusing", [("A",), ("A", "B")])
def test_a_target_that_refuses_is_left_to_itself(refusing: tuple[str, ...]) -> None:
    pair = Pair()
    for address in refusing:
        pair.ends[address].send("d", Bye(reason="no room", fatal=True))
        pair.leaders[address].send = lambda peer, message: []  # type: ignore[method-assign]
    pair.leaders["B"].open("r", max_tokens=30)
    pair.shared.run(stopping=pair.turn)
    assert pair.log == [f"the target at {address} refused this drafter: no room" for address in refusing]
    assert len(pair.shared.targets) == 2 - len(refusing)
    assert (pair.leaders["B"].session.counts.accepted > 0) == ("B" not in refusing)


def test_one_that_refused_does_not_wake_the_drafter_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greetings that waited for a slow target are each answered: what nobody reads must not keep the loop busy."""
    (tmp_path / "text").write_text("1 2 3")
    script = {"kind": "scripted", "name": "script", "text_file": str(tmp_path / "text")}
    config = parse_config({"target": {"model": "random:llama?hidden=32&layers=1&ffn=32"}, "drafters": [script]})
    waited: list[int] = []

    def wait(ends: Sequence[ZmqPeer], timeout_s: float) -> None:
        waited.append(len(ends))
        wait_any(ends, 0.01)

    monkeypatch.setattr(draft_app, "wait_any", wait)
    refusing, other = ZmqLeader(), ZmqLeader()
    start = monotonic()

    def stopping() -> bool:
        for peer, _ in refusing.receive(0.0):
            refusing.send(peer, Bye(reason="no room", fatal=True))
        assert monotonic() - start < 20
        return bool(waited) and waited[-1] == 1

    try:
        draft_app.run_draft(config, name="script", connect=[refusing.address, other.address], stopping=stopping)
    finally:
        refusing.close()
        other.close()
    assert waited[0] == 2


def test_each_target_hears_of_the_time_that_was_spent_for_it() -> None:
    pair = Pair()
    for one in pair.shared.targets:
        one.worker.attachment.heartbeat_s = 0.0
    pair.leaders["A"].open("r", max_tokens=60)
    pair.shared.run(stopping=pair.turn)
    busy = {one.address: one.worker.attachment.busy_s for one in pair.shared.targets}
    assert busy["A"] > 0.0
    assert busy["B"] == 0.0
