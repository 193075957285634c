"""The program beside a launched leader: its end and code are those of the whole; signals let it finish, or not."""

from __future__ import annotations

import signal
import time

from dist_spec.workers.prompt_run import PromptRun

# Waits for a target that is not there.
WAITING = ["--target", "random:llama?seed=0", "--connect", "tcp://127.0.0.1:9", "--wait-s", "60", "one two"]


def until_over(run: PromptRun, *, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not run():
        assert time.monotonic() < deadline, "it did not end"
        time.sleep(0.02)


def test_the_end_of_the_program_is_the_end_and_its_code_the_code() -> None:
    run = PromptRun(["--no-such-option"])
    assert run.code == 1, "not started: nothing was answered"
    assert not run(), "the first call starts it"
    until_over(run)
    assert run.code == 2


def test_sigterm_lets_it_go_on_and_a_second_one_ends_it() -> None:
    run = PromptRun(WAITING)
    assert not run()
    run._on_signal(signal.SIGTERM, None)
    before = time.monotonic()
    while time.monotonic() - before < 0.5:
        assert not run()
    run._on_signal(signal.SIGTERM, None)
    until_over(run, within_s=15.0)
    assert run.code not in (0, 1)


def test_a_signal_before_the_target_was_up_starts_nothing() -> None:
    run = PromptRun(WAITING)
    run._on_signal(signal.SIGTERM, None)
    until_over(run, within_s=1.0)
    assert run.code == 128 + signal.SIGTERM
