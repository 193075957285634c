"""`dist-spec chat` as a person or a pipe meets it, with real processes."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

# About 4 ms a step: an answer of 1500 tokens takes seconds, and can be interrupted.
TARGET = "random:llama?seed=5&hidden=192&layers=8&ffn=512&vocab=2048"
COMMAND = [
    sys.executable, "-m", "dist_spec.cli", "chat", "--target", TARGET, "--drafter", "ngram",
    "--set", "target.dtype=float32", "--set", "target.threads=1", "--set", "sampling.ignore_eos=true",
]  # fmt: skip


def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], input=stdin, capture_output=True, text=True, timeout=100, check=False)


def test_on_a_pipe() -> None:
    lines = "hello\n/set temperature 0.8\n/set nonsense 1\nand?\n/stats\n/quit\nnot read\n"
    done = run("--max-tokens", "6", "--system", "s", stdin=lines)
    assert done.returncode == 0, done.stderr
    assert "> " not in done.stdout
    assert "(temperature = 0.8)" in done.stderr
    assert "unknown parameter 'nonsense'" in done.stderr
    assert "so far: 12 tokens in 2 answers" in done.stderr
    assert done.stderr.count("cut after 6 tokens") == 2


def test_bad_input_is_told_in_one_line() -> None:
    done = run("--speculative-config", '{"method": "eagle"}')
    assert done.returncode == 2
    assert "--drafter and --speculative-config" in done.stderr
    assert "Traceback" not in done.stderr


@contextmanager
def on_a_terminal(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], Terminal]]:
    """A chat whose terminal is ours, and what it shows."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *words],
        stdin=its,
        stdout=its,
        stderr=its,
        env={**os.environ, "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(its)
    try:
        yield process, Terminal(ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


class Terminal:
    """The other end of the terminal: what was shown so far, and typing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def _read(self) -> str:
        try:
            return os.read(self._descriptor, 65536).decode(errors="replace")
        except OSError:
            raise AssertionError(f"the program ended; shown was {self.shown!r}") from None

    def wait_for(self, pattern: str, *, timeout_s: float = 60.0) -> None:
        """Until what was shown since the last call matches."""
        deadline = time.monotonic() + timeout_s
        while not (found := re.search(pattern, self.shown, flags=re.DOTALL)):
            assert time.monotonic() < deadline, f"{pattern!r} does not come; shown was {self.shown!r}"
            if select.select([self._descriptor], [], [], 0.1)[0]:
                self.shown += self._read()
        self.shown = self.shown[found.end() :]


def interrupt_until_shown(process: subprocess.Popen[bytes], terminal: Terminal, pattern: str) -> None:
    """A signal that arrives while readline draws the prompt is noticed with the next one only, and both count as one."""
    for _ in range(9):
        os.kill(process.pid, signal.SIGINT)
        with suppress(AssertionError):
            terminal.wait_for(pattern, timeout_s=5)
            return
    terminal.wait_for(pattern)


def ends_when_interrupted(process: subprocess.Popen[bytes]) -> int:
    """Its exit code; see `interrupt_until_shown`."""
    for _ in range(10):
        os.kill(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=5)
    raise AssertionError("it did not end")


def test_an_interrupt_stops_the_answer_and_the_second_at_the_prompt_ends() -> None:
    with on_a_terminal("--max-tokens", "1500") as (process, terminal):
        terminal.wait_for(r"/help lists.*> ")
        terminal.type("hello\n")
        terminal.wait_for("hello.*....")
        children = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGINT)
        terminal.wait_for(r"\(stopped\).*> ")  # a text of all 1500 tokens would end otherwise
        terminal.type("/set max_tokens 5\n")
        terminal.wait_for(r"max_tokens = 5.*> ")
        terminal.type("again\n")
        terminal.wait_for(r"cut after 5 tokens.*> ")
        interrupt_until_shown(process, terminal, "Ctrl-C again.*> ")
        assert ends_when_interrupted(process) == 0
        assert len(children) == 2
        assert not any(child.is_running() for child in children)


def test_ctrl_d_ends() -> None:
    with on_a_terminal() as (process, terminal):
        terminal.wait_for(r"/help lists.*> ")
        terminal.type("\x04")
        assert process.wait(timeout=60) == 0
