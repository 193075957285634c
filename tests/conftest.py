"""What holds for all tests: nothing is judged by the clock, so that a busy machine is no fault, and no time is lost on
looking for garbage among what stays loaded."""

from __future__ import annotations

import gc
import os
import signal

from hypothesis import HealthCheck, settings

settings.register_profile(
    "busy machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="EXPLORE" not in os.environ,  # the same examples each time; `make test-long` looks for new ones
)
settings.load_profile("busy machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; what tests start would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """By now all modules are loaded: a million objects that every full collection would walk over."""
    gc.collect()
    gc.freeze()
