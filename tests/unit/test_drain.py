"""How a leader ends: at once, when what runs has ended, or at its deadline; and how a process is told which."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from dist_spec.core.messages import DRAINING, READ, Bye, Close, Commit, Hello, Open
from dist_spec.core.plan import Plan
from dist_spec.core.types import Sampling
from dist_spec.server.client import Client
from dist_spec.sim.build import build_target
from dist_spec.sim.scenario import Scenario, truths_of
from dist_spec.transports.inproc import InprocHub
from dist_spec.workers.drain import Drain
from dist_spec.workers.loop import await_readers
from dist_spec.workers.record import Recorder
from dist_spec.workers.replay import replay
from dist_spec.workers.signals import StopFlag
from tests.unit.session_cases import ints

SCENARIO = Scenario(num_requests=2, num_tokens=6, vocab_size=500)


class Ending:
    """A leader with a running request of a frontend, and another that waits for a place."""

    def __init__(self, *, drain_s: float, hurried: Callable[[], bool] = lambda: False) -> None:
        self.hub = InprocHub()
        self.recorder = Recorder("leader")
        self.truths = truths_of(SCENARIO)
        end = self.hub.leader()
        self.worker = build_target(SCENARIO, self.truths, transport=end, recorder=self.recorder)
        self.worker.session.scheduler.max_sequences = 1
        self.front = self.hub.connect("f")
        self.asked = False
        self.drain = Drain(self.worker, stopping=lambda: self.asked, hurried=hurried, drain_s=drain_s)
        self.now = 0.0
        self.front.send("leader", Hello(role="frontend", name="f"))
        for request in ("r0", "r1"):
            self.open(request)
        self.step()

    def open(self, request: str, *, generation: int = 0) -> None:
        prompt = ints(self.truths["r0", 0][: SCENARIO.prompt_length])
        sampling = Sampling(max_tokens=6, ignore_eos=True)
        self.front.send("leader", Open(request=request, generation=generation, prompt=prompt, sampling=sampling))

    def step(self) -> None:
        self.now += 1.0
        self.worker.receive(clock=lambda: self.now)
        plan = self.worker.begin(now=self.now)
        if isinstance(plan, Plan):
            self.worker.finish(plan, now=self.now)

    def run(self) -> int:
        """The loop until it is over; how many steps that took."""
        steps = 0
        while not self.drain.over(now=self.now):
            self.step()
            steps += 1
            assert steps < 50
        self.worker.give_back(now=self.now)
        return steps

    def told(self) -> tuple[dict[str, str], int]:
        """Reasons by request, and committed tokens of the running one."""
        messages = [message for _, message in self.front.receive(0.0)]
        reasons = {message.request: message.reason for message in messages if isinstance(message, Close)}
        return reasons, sum(len(m.tokens) for m in messages if isinstance(m, Commit) and m.request == "r0")


def test_what_runs_ends_and_what_waits_or_comes_is_given_back() -> None:
    ending = Ending(drain_s=100.0)
    ending.asked = True
    ending.open("late")
    assert ending.run() == 5
    assert ending.told() == ({"r1": DRAINING, "late": DRAINING, "r0": "length"}, 6)


@pytest.mark.parametrize(("drain_s", "hurried", "steps"), [(0.0, False, 0), (2.0, False, 2), (100.0, True, 0)])
def test_patience_has_an_end(drain_s: float, hurried: bool, steps: int) -> None:
    ending = Ending(drain_s=drain_s, hurried=lambda: hurried)
    ending.asked = True
    assert ending.run() == steps
    assert ending.told() == ({"r1": DRAINING, "r0": DRAINING}, 1 + steps)


def test_an_ending_replays() -> None:
    ending = Ending(drain_s=2.0)
    ending.asked = True
    ending.run()
    records = {"leader": ending.recorder.events}
    assert {"drained", "gave_back"} <= {event[0] for event in records["leader"]}

    def target(transport, recorder):  # type: ignore[no-untyped-def]
        worker = build_target(SCENARIO, ending.truths, transport=transport, recorder=recorder)
        worker.session.scheduler.max_sequences = 1
        return worker

    replayed = replay(records, target=target, drafters={})
    assert replayed.target.session.counts == ending.worker.session.counts
    assert replayed.target.session.idle


@pytest.fixture
def handlers() -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("numbers", "hurried"),
    [((signal.SIGTERM,), False), ((signal.SIGINT,), True), ((signal.SIGTERM, signal.SIGTERM), True)],
)
def test_sigterm_asks_and_sigint_or_asking_twice_hurries(
    handlers: None, numbers: tuple[int, ...], hurried: bool
) -> None:
    stop = StopFlag().listen()
    assert (stop(), stop.hurried()) == (False, False)
    for number in numbers:
        os.kill(os.getpid(), number)
    assert (stop(), stop.hurried()) == (True, hurried)


def test_the_leader_stays_until_its_last_words_were_read() -> None:
    """By each frontend that has one to read: `f`'s first request ended, the other was given back."""
    ending = Ending(drain_s=100.0)
    ending.asked = True
    ending.run()
    requests = ending.worker.session.requests
    assert requests.unread.peers == {"f"}
    now = iter(range(1000))

    def stays(patience_s: float) -> bool:
        return not await_readers(ending.worker, patience_s=patience_s, clock=lambda: float(next(now)))

    assert stays(4.0)
    ending.front.send("leader", Close(request="r0", generation=0, reason=READ))
    ending.front.send("leader", Close(request="r1", generation=7, reason=READ))  # another one
    assert stays(4.0)
    ending.front.send("leader", Close(request="r1", generation=0, reason=READ))
    assert not stays(4.0)
    assert next(now) < 30


def test_a_hurry_ends_the_wait() -> None:
    ending = Ending(drain_s=100.0)
    ending.asked = True
    ending.run()
    asked = iter([False, False, True])
    assert not await_readers(ending.worker, patience_s=1e9, hurried=lambda: next(asked))
    assert next(asked, None) is None


def test_who_left_reads_nothing() -> None:
    ending = Ending(drain_s=100.0)
    ending.asked = True
    ending.run()
    ending.front.send("leader", Bye(reason="done"))
    assert await_readers(ending.worker, patience_s=5.0)


def test_a_client_says_what_it_has_read() -> None:
    """Also where it was told to go elsewhere."""
    ending = Ending(drain_s=100.0)
    ending.truths["x", 0] = ending.truths["r0", 0]
    ending.worker.session.scheduler.max_sequences = 3
    client = Client(ending.hub.connect("g"), name="g")
    client.transport.send("leader", Hello(role="frontend", name="g"))
    prompt = ending.truths["r0", 0][: SCENARIO.prompt_length]
    sampling = Sampling(max_tokens=6, ignore_eos=True)
    streams = [client.open(name, prompt=prompt, sampling=sampling) for name in ("x", "y")]
    ending.step()
    ending.asked = True
    ending.run()
    assert ending.worker.session.requests.unread.peers == {"f", "g"}
    for _ in range(10):
        client.poll(timeout_s=0.0)
        ending.worker.receive(clock=lambda: ending.now)
    assert ending.worker.session.requests.unread.peers == {"f"}
    assert (streams[0].reason, streams[1].reason) == ("length", "")
    assert list(client.streams) == [("y", 0)]
