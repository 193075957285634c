"""The supervisor with real processes: restarts, pinning, logs, and above all that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dist_spec.errors import BadInputError, WorkerError
from dist_spec.topology import ProcessSpec
from dist_spec.workers.supervisor import ProcessEvent, Supervisor
from dist_spec.workers.up_app import watch
from tests.integration.process_cases import alive, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs the leash of Linux")]

UP = "import os; os.write(1, b'up\\n')"
"""Says in one write that it is up: `print` may be interrupted by a signal between the word and the end of its line."""
SLEEP = f"{UP}; import time; time.sleep(600)"
POLITE = f"""
import os, signal, sys, time
def leave(*_):
    os.write(1, b"bye\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
{UP}
time.sleep(600)
"""
STUBBORN = f"""
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"asked\\n"))
{UP}
time.sleep(600)
"""
PATIENCE_S = 120.0
"""A grace period that is over only if nothing else ends it."""
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
os.write(1, b"child %d\\n" % child.pid)
time.sleep(600)
"""


def spec(name: str, code: str, **changes: Any) -> ProcessSpec:
    return ProcessSpec(name=name, argv=(sys.executable, "-S", "-c", code), **changes)


def events_until(supervisor: Supervisor, kind: str) -> list[ProcessEvent]:
    events: list[ProcessEvent] = []

    def seen() -> bool:
        events.extend(supervisor.poll())
        return any(event.kind == kind for event in events)

    wait_for(seen)
    return events


def wait_up(supervisor: Supervisor, *names: str, word: str = "up") -> None:
    wait_for(lambda: all(word in supervisor.tail(name) for name in names))


def test_a_killed_process_comes_back_and_its_neighbour_stays(tmp_path: Path) -> None:
    specs = [spec("target", SLEEP), spec("d0", SLEEP, restart=True)]
    with Supervisor(specs, log_dir=tmp_path) as supervisor:
        wait_up(supervisor, "target", "d0")
        assert supervisor.poll() == []
        before = supervisor.running()
        os.kill(before["d0"], signal.SIGKILL)
        events = events_until(supervisor, "restarted")
        assert [(event.kind, event.name, event.code) for event in events] == [
            ("exited", "d0", -signal.SIGKILL),
            ("restarted", "d0", None),
        ]
        assert events[0].restart_in_s == pytest.approx(0.2)
        wait_for(lambda: supervisor.tail("d0").count("up") == 2)
        after = supervisor.running()
        assert after["target"] == before["target"]
        assert after["d0"] != before["d0"]
        assert alive(after["d0"])
    assert not any(map(alive, {*before.values(), *after.values()}))


def test_back_off_doubles_up_to_a_limit_and_is_forgotten(tmp_path: Path) -> None:
    supervisor = Supervisor([spec("d0", "raise SystemExit(7)", restart=True)], log_dir=tmp_path)
    now = 100.0
    supervisor.start(now)
    waits = []
    for healthy_s in (0, 0, 0, 0, 0, 0, 0, 31, 0):
        events: list[ProcessEvent] = []

        def ended(at: float = now + healthy_s, events: list[ProcessEvent] = events) -> bool:
            events.extend(supervisor.poll(at))
            return bool(events)

        wait_for(ended)
        [event] = events
        assert (event.kind, event.code) == ("exited", 7)
        assert event.restart_in_s is not None
        waits.append(round(event.restart_in_s, 3))
        now += healthy_s + event.restart_in_s
        assert supervisor.poll(now - 0.01) == []
        assert [event.kind for event in supervisor.poll(now)] == ["restarted"]
    supervisor.stop()
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 0.2, 0.4]


def test_the_end_of_a_process_that_is_not_restarted_is_told_once(tmp_path: Path) -> None:
    with Supervisor([spec("target", "print('no model'); raise SystemExit(3)")], log_dir=tmp_path) as supervisor:
        assert events_until(supervisor, "exited") == [ProcessEvent(kind="exited", name="target", code=3)]
        assert supervisor.poll(time.monotonic() + 100) == []
        assert supervisor.running() == {}
        assert supervisor.tail("target") == "no model"


def test_tail_keeps_the_last_lines_of_both_streams(tmp_path: Path) -> None:
    code = "import sys\nfor i in range(9000): print('line', i)\nsys.stdout.flush(); sys.stderr.write('broken\\xff\\n')"
    with Supervisor([spec("d0", code)], log_dir=tmp_path) as supervisor:
        events_until(supervisor, "exited")
        assert supervisor.tail("d0", lines=2).splitlines()[0] == "line 8999"
        assert supervisor.tail("d0", lines=2).splitlines()[1].startswith("broken")
        assert len(supervisor.tail("d0").splitlines()) == 20


def test_a_command_that_does_not_exist_says_so(tmp_path: Path) -> None:
    with Supervisor([ProcessSpec(name="d0", argv=("no-such-command", "x"))], log_dir=tmp_path) as supervisor:
        [event] = events_until(supervisor, "exited")
        assert event.code == 127
        assert "cannot start no-such-command" in supervisor.tail("d0")


def test_cores_threads_environment_and_session(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    code = (
        "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'], os.environ['COLOUR'],"
        " os.getsid(0) == os.getpid() == os.getpgid(0), flush=True)"
    )
    specs = [spec("d0", code, cores=(core,), env={"COLOUR": "blue"})]
    with Supervisor(specs, log_dir=tmp_path) as supervisor:
        events_until(supervisor, "exited")
        assert supervisor.tail("d0") == f"[{core}] 1 blue True"


def test_a_core_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with Supervisor([spec("d0", SLEEP, cores=(1000,))], log_dir=tmp_path) as supervisor:
        [event] = events_until(supervisor, "exited")
        assert event.code == 1
        assert "cannot pin to cores 1000" in supervisor.tail("d0")


def test_stop_is_orderly_first_and_idempotent(tmp_path: Path) -> None:
    supervisor = Supervisor([spec("d0", POLITE, restart=True)], log_dir=tmp_path)
    supervisor.start()
    wait_up(supervisor, "d0")
    supervisor.stop(grace_s=PATIENCE_S)
    assert supervisor.tail("d0").splitlines() == ["up", "bye"]
    supervisor.stop()
    assert supervisor.poll(time.monotonic() + 100) == [], "nothing comes back after stop"


def test_stop_kills_what_does_not_listen(tmp_path: Path) -> None:
    with Supervisor([spec("deaf", STUBBORN), spec("stopped", SLEEP)], log_dir=tmp_path) as supervisor:
        wait_up(supervisor, "deaf", "stopped")
        pids = supervisor.running()
        os.kill(pids["stopped"], signal.SIGSTOP)
        start = time.monotonic()
        supervisor.stop(grace_s=0.3)
        assert time.monotonic() - start > 0.25
        assert "asked" in supervisor.tail("deaf")
        assert supervisor.running() == {}
        assert not any(map(alive, pids.values()))


@pytest.mark.parametrize("how", ["dies", "stop"])
def test_what_a_process_started_goes_with_it(tmp_path: Path, how: str) -> None:
    with Supervisor([spec("d0", PARENT)], log_dir=tmp_path) as supervisor:
        wait_up(supervisor, "d0", word="child")
        grandchild = int(supervisor.tail("d0").split()[1])
        assert alive(grandchild)
        if how == "stop":
            supervisor.stop()
        else:
            os.kill(supervisor.running()["d0"], signal.SIGKILL)
            events_until(supervisor, "exited")
        wait_for(lambda: not alive(grandchild))


def test_an_error_inside_the_block_stops_all(tmp_path: Path) -> None:
    pids: dict[str, int] = {}

    def fail() -> None:
        with Supervisor([spec("d0", SLEEP)], log_dir=tmp_path) as supervisor:
            pids.update(supervisor.running())
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert not alive(pids["d0"])


@pytest.mark.parametrize("names", [("d0", "d0"), ("../d0",), ("",), (".d0",)])
def test_names_that_cannot_be_files(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(WorkerError) as caught:
        Supervisor([spec(name, SLEEP) for name in names], log_dir=tmp_path)
    assert caught.value.fix


def test_a_log_dir_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match="cannot write logs"):
        Supervisor([spec("d0", SLEEP)], log_dir=tmp_path / "file" / "logs")


# -------------------------------------------------------------------------------- the supervising process itself ends

SUPERVISING = """
import signal, sys, time
from dist_spec.topology import ProcessSpec
from dist_spec.workers.supervisor import Supervisor, install_signal_handlers

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may have it ignored (nohup, &)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
install_signal_handlers()
codes = {codes!r}
specs = [ProcessSpec(name=name, argv=(sys.executable, "-S", "-c", code)) for name, code in codes.items()]
try:
    with Supervisor(specs, log_dir={log_dir!r}) as supervisor:
        try:
            while not all("up" in supervisor.tail(name) for name in codes):
                time.sleep(0.01)
            print(*supervisor.running().values(), flush=True)
            while True:
                supervisor.poll()
                time.sleep(0.02)
        finally:
            supervisor.stop(grace_s={grace_s!r})
except KeyboardInterrupt:
    print("stopped", flush=True)
    sys.exit(130)
"""


@contextmanager
def supervising(log_dir: Path, **codes: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    code = textwrap.dedent(SUPERVISING).format(codes=codes, log_dir=str(log_dir), grace_s=PATIENCE_S)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        try:
            assert len(pids) == len(codes)
            assert all(map(alive, pids))
            yield process, pids
        finally:
            process.kill()
            for pid in filter(alive, pids):
                os.kill(pid, signal.SIGKILL)


def test_no_orphans_after_kill_9(tmp_path: Path) -> None:
    with supervising(tmp_path, target=STUBBORN, d0=SLEEP) as (process, pids):
        process.kill()
        process.wait()
        wait_for(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_stop_all_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with supervising(tmp_path, target=POLITE, d0=POLITE) as (process, pids):
        process.send_signal(number)
        assert process.stdout is not None
        assert process.stdout.read() == "stopped\n"
        assert process.wait(60) == 130
        assert not any(map(alive, pids))
        assert [(tmp_path / f"{name}.log").read_text() for name in ("target", "d0")] == ["up\nbye\n"] * 2


def test_an_impatient_second_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    with supervising(tmp_path, target=STUBBORN) as (process, pids):
        process.send_signal(signal.SIGINT)
        wait_for(lambda: "asked" in (tmp_path / "target.log").read_text())  # two signals at once would count as one
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S / 2)  # the second one ends the grace period
        assert not any(map(alive, pids))


def group_of(tmp_path: Path, *codes: str, **changes: Any) -> Supervisor:
    """A target of several ranks, and a drafter."""
    names = ["target", *(f"target-{i}" for i in range(1, len(codes)))]
    ranks = [spec(name, code, group="target", **changes) for name, code in zip(names, codes, strict=True)]
    return Supervisor([*ranks, spec("d0", SLEEP, restart=True)], log_dir=tmp_path)


@pytest.mark.parametrize("victim", ["target", "target-2"])
def test_a_dead_rank_ends_its_group_which_is_started_again_while_drafters_stay(tmp_path: Path, victim: str) -> None:
    with group_of(tmp_path, SLEEP, POLITE, STUBBORN, restart=True) as supervisor:
        wait_up(supervisor, "target", "target-1", "target-2", "d0")
        before = supervisor.running()
        started = time.monotonic()
        os.kill(before[victim], signal.SIGKILL)
        events = events_until(supervisor, "restarted")
        assert time.monotonic() - started < 10
        ended = {event.name: event for event in events if event.kind == "exited"}
        assert set(ended) == {"target", "target-1", "target-2"}
        assert (ended[victim].code, ended[victim].cause) == (-signal.SIGKILL, None)
        assert {event.cause for name, event in ended.items() if name != victim} == {victim}
        assert ended["target-2"].code == -signal.SIGKILL  # it did not listen
        assert {event.restart_in_s for event in ended.values()} == {0.2}
        assert [event.name for event in events if event.kind == "restarted"] == ["target", "target-1", "target-2"]
        after = supervisor.running()
        assert set(after) == set(before)
        assert [name for name in after if after[name] == before[name]] == ["d0"]
    assert not any(map(alive, {*before.values(), *after.values()}))


def test_a_group_without_restart_ends_as_a_whole(tmp_path: Path) -> None:
    with group_of(tmp_path, SLEEP, "raise SystemExit(3)") as supervisor:
        with pytest.raises(WorkerError, match=r"target-1 \(a rank of the target\) ended with code 3"):
            wait_for(lambda: watch(supervisor))
        wait_for(lambda: not supervisor.poll() and set(supervisor.running()) == {"d0"})


def test_a_target_that_fails_again_and_again_is_given_up(tmp_path: Path) -> None:
    said: list[str] = []
    supervisor = group_of(tmp_path, "raise SystemExit(7)", restart=True)
    with supervisor, pytest.raises(WorkerError, match="the target ended with code 7"):
        wait_for(lambda: watch(supervisor, say=said.append))
    assert said == [f"the target ended with code 7; it is started again in {wait} s" for wait in (0.2, 0.4)]


def test_a_target_that_is_killed_again_and_again_is_not(tmp_path: Path) -> None:
    said: list[str] = []
    with group_of(tmp_path, SLEEP, restart=True) as supervisor:
        for life in range(1, 5):
            wait_for(lambda life=life: supervisor.tail("target").count("up") == life)
            os.kill(supervisor.running()["target"], signal.SIGKILL)
            wait_for(lambda life=life: watch(supervisor, say=said.append) or len(said) == life)
            wait_for(lambda: watch(supervisor, say=said.append) or "target" in supervisor.running())
    assert len(said) == 4


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 1)])
def test_another_signal_may_end_all(tmp_path: Path, number: int, code: int) -> None:
    supervisor = Supervisor([spec("target", POLITE)], log_dir=tmp_path)
    supervisor.start()
    wait_up(supervisor, "target")
    supervisor.stop(number=number)
    assert ("bye" in supervisor.tail("target")) == (code == 0)
    assert supervisor.running() == {}
