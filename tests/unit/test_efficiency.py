"""Pipeline efficiency: its loss is taken apart without a rest, and each cause alone shows up as that cause."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_spec.bench.efficiency import PARTS, efficiency
from tests.unit.run_cases import run

READY = {0: (10, 10), 4: (90, 390)}  # 400 tokens in 100 verifications of 10 ms


def ready(*, waits_s: float = 2.0) -> object:
    return run(depths=READY, forward_s=1.0, coordination_s=0.1, waits_s=waits_s)


def parts(ours: object, full: object) -> dict[str, float]:
    found = efficiency(ours, full)  # type: ignore[arg-type]
    assert found is not None
    assert sum(found.loss_s.values()) == pytest.approx(found.ours_s - found.ready_s, abs=1e-12)
    assert sum(found.loss_shares().values()) == pytest.approx(1 - found.value, abs=1e-12)
    return {part: found.loss_s[part] for part in PARTS}


def test_the_ready_replay_itself_loses_nothing_and_its_waits_do_not_count() -> None:
    ours = run(depths=READY, forward_s=1.0, coordination_s=0.1)
    assert parts(ours, ready()) == pytest.approx(dict.fromkeys(PARTS, 0.0), abs=1e-12)
    found = efficiency(ours, ready())  # type: ignore[arg-type]
    assert found is not None
    assert found.value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("cause", "changes", "lost_s"),
    [
        ("idle", {"waits_s": 0.2}, 0.2),
        ("idle", {"queue_empty_s": 0.2}, 0.2),
        ("idle", {"outside_s": 0.2}, 0.2),
        ("coordination", {"coordination_s": 0.3}, 0.2),
        ("verify_inflation", {"forward_s": 1.2}, 0.2),
        # 400 tokens as before, but 30.75 of 115.96 verifications began without a
        # tree (fractions, so that nothing but their share differs); each still takes 10 ms.
        ("empty_start", {"depths": {0: (30.75, 30.75), 4: (85.211538, 369.25)}, "forward_s": 1.15961538}, 0.15961538),
        # As many without a tree, but the trees bring less.
        ("shallow_tree", {"depths": {0: (20, 20), 4: (180, 380)}, "forward_s": 2.0}, 1.0),
    ],
)
def test_one_cause_alone(cause: str, changes: dict[str, object], lost_s: float) -> None:
    usual: dict[str, object] = {"depths": READY, "forward_s": 1.0, "coordination_s": 0.1}
    ours = run(**(usual | changes))  # type: ignore[arg-type]
    found = parts(ours, ready())
    assert found.pop(cause) == pytest.approx(lost_s / 400, rel=1e-4)
    assert found == pytest.approx(dict.fromkeys(found, 0.0), abs=1e-8)


counts = st.integers(min_value=0, max_value=50)
seconds = st.floats(min_value=0, max_value=10)
runs = st.builds(
    lambda empty, rows, extra, forward, coordination, waits, outside: run(
        depths={0: (empty + 1, empty + 1), 3: (rows, rows + extra if rows else 0)},
        forward_s=forward + 0.01,
        coordination_s=coordination,
        waits_s=waits,
        outside_s=outside,
    ),
    counts, counts, counts, seconds, seconds, seconds, seconds,
)  # fmt: skip


@given(runs, runs)
def test_the_parts_add_up_whatever_the_runs(ours: object, full: object) -> None:
    found = efficiency(ours, full)  # type: ignore[arg-type]
    assert found is not None
    assert sum(found.loss_s.values()) == pytest.approx(found.ours_s - found.ready_s, abs=1e-9)


def test_nothing_committed_has_no_efficiency() -> None:
    assert efficiency(run(depths={0: (0, 0)}, forward_s=1.0), ready()) is None  # type: ignore[arg-type]
