"""A recorded run of real processes replays integer for integer, with the models computed again."""

from __future__ import annotations

import logging
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from dist_spec.bench.deployment import Deployment
from dist_spec.telemetry.timeline import Timeline
from dist_spec.workers.draft_app import build_draft
from dist_spec.workers.record import load_events
from dist_spec.workers.replay import ReplayError, replay
from dist_spec.workers.target_build import build_target, load_target
from tests.integration.test_processes import TWIN, accepted, config, plain_texts, run, scripted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

COUNTS = ("steps", "rows", "ready_rows", "drafted", "verified", "accepted", "committed", "proposals", "stale", "waits")
SYNCHRONOUS = {"growth": "none", "delivery": "pull", "on_miss": "draft"}


@pytest.mark.parametrize(
    ("drafter", "speculation"), [(scripted, {}), (lambda: TWIN, SYNCHRONOUS)], ids=["streamed", "model, pulled"]
)
def test_a_recorded_run_replays(drafter: Any, speculation: dict[str, Any], tmp_path: Path) -> None:
    telemetry = {"record": str(tmp_path / "run")}
    settings = config(drafters=[drafter()], speculation=speculation, telemetry=telemetry)
    with Deployment("record", settings) as deployment:
        deployment.wait_ready()
        streams = run(deployment, count=4, name="r")
        told = deployment.client.last_stats
    assert [stream.tokens for stream in streams] == plain_texts(4)
    assert accepted(streams) > 0
    name = settings.drafters[0].name
    records = {machine: load_events(tmp_path / f"run.{machine}.jsonl")[1] for machine in ("leader", name)}

    def again(events: dict[str, list[Any]]) -> dict[str, int]:
        loaded = load_target(settings, log=logging.getLogger("test"))
        timeline = Timeline(monotonic)
        replayed = replay(
            events,
            target=lambda transport, recorder: build_target(
                settings, loaded, transport=transport, timeline=timeline, recorder=recorder
            ),
            drafters={
                name: lambda transport, recorder: build_draft(
                    settings, name=name, transport=transport, recorder=recorder
                )[0]
            },
        )
        counts = replayed.target.session.counts
        return {count: getattr(counts, count) for count in COUNTS}

    assert again(records) == {count: int(told[f"session_{count}"]) for count in COUNTS}
    # Control: with one step of the drafter left out the record no longer fits.
    drafted = next(i for i, event in enumerate(records[name]) if i > 40 and event[0] in ("drafted", "expanded"))
    with pytest.raises(ReplayError):
        again({**records, name: [*records[name][:drafted], *records[name][drafted + 1 :]]})
