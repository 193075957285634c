"""What holds for all tests: nothing is judged by the clock, so that a busy machine is no fault, and no time is lost on
looking for garbage among what stays loaded."""

from __future__ import annotations

import gc

from hypothesis import HealthCheck, settings

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


def pytest_collection_finish() -> None:
    """By now all modules are loaded: a million objects that every full collection would walk over."""
    gc.collect()
    gc.freeze()
