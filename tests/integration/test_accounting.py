"""One real run with everything written: the trace loads, the decisions parse, every second is accounted for."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dist_spec.bench.accounts import time_shares
from dist_spec.bench.deployment import Deployment
from dist_spec.bench.generate import Options, generate
from dist_spec.bench.rounds import timed_run
from dist_spec.bench.run import Job, RunResult
from dist_spec.config import Config, parse_config
from dist_spec.core.types import Sampling
from tests.integration.local_cluster import prompts_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TARGET = "random:llama?seed=5&hidden=192&layers=8&ffn=512"  # some milliseconds a step
TWIN = {"kind": "model", "name": "twin", "model": TARGET, "dtype": "float32", "num_draft_tokens": 4}
TOKENS = 120


def config(**changes: Any) -> Config:
    data: dict[str, Any] = {
        "target": {"model": TARGET, "dtype": "float32", "max_model_len": 512, "threads": 1},
        "drafters": [TWIN],
        "speculation": {"budget": 4, "growth": "none", "delivery": "pull", "on_miss": "draft", "verify_shape": "chain"},
        "sampling": {"max_tokens": TOKENS, "ignore_eos": True},
    }
    return parse_config(data | changes)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Report, decisions and trace of one run of three requests, two at a time."""
    folder = tmp_path_factory.mktemp("accounting")
    files = {"trace": str(folder / "trace.json"), "decisions": str(folder / "decisions.jsonl")}
    out = folder / "out.json"
    options = Options(chat=False, quiet=True, stats=True, json_file=out, concurrency=2, domain="poems")
    generate(config(telemetry=files), prompts=["one two", "three four", "five"], options=options)
    return {
        "report": json.loads(out.read_text()),
        "decisions": [json.loads(line) for line in Path(files["decisions"]).read_text().splitlines()],
        "events": json.loads(Path(files["trace"]).read_text())["traceEvents"],
        "folder": folder,
    }


def test_something_was_drafted_and_accepted(written: dict[str, Any]) -> None:
    report = written["report"]
    assert report["num_accepted"] > TOKENS
    assert report["num_tokens"] == 3 * TOKENS
    depths = report["by_depth"]
    assert sum(row["accepted"] for row in depths) == report["num_accepted"]
    assert sum(row["verified"] for row in depths) == report["num_verified"]
    assert sum(row["rows"] for row in report["ready_depth"]) == report["num_rows"]
    assert 0 < report["occupancy"]["twin"] <= 1
    assert report["time_s"]["idle"]["wait_pull"] > 0


def test_every_second_is_forward_coordination_or_idle(written: dict[str, Any]) -> None:
    times = written["report"]["time_s"]
    accounted = times["forward"] + times["coordination"] + sum(times["idle"].values())
    assert accounted == pytest.approx(times["leader_wall"], rel=0.01)
    assert accounted + times["outside"] == pytest.approx(times["wall"], rel=0.01)
    shares = written["report"]["request_shares"]
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["decode"] > 0.5


def test_the_trace_shows_target_drafter_and_links(written: dict[str, Any]) -> None:
    events = written["events"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(names.values()) == ["frontend", "leader", "twin"]
    tracks = {(names[event["pid"]], event["args"]["name"]) for event in events if event["name"] == "thread_name"}
    assert {("leader", "phases"), ("twin", "phases"), ("leader", "from twin"), ("twin", "from leader")} <= tracks
    spans = Counter((names[event["pid"]], event["name"]) for event in events if event["ph"] == "X")
    report = written["report"]
    assert spans["leader", "forward"] >= report["num_steps"]
    assert spans["twin", "draft"] > 0
    for event in events:
        assert event["ph"] == "M" or event["ts"] >= 0
    ends = Counter((event["id"], event["ph"]) for event in events if event["ph"] in "sf")
    whole = [name for name, kind in ends if kind == "s" and ends[name, "f"]]
    assert len(whole) > report["num_steps"]
    assert not list(written["folder"].glob("*.part"))


def test_a_decision_per_step_and_request(written: dict[str, Any]) -> None:
    decisions, report = written["decisions"], written["report"]
    assert len(decisions) == report["num_rows"]
    assert len({(one["step"], one["request"]) for one in decisions}) == len(decisions)
    assert {one["domain"] for one in decisions} == {"poems"}
    assert sum(len(one["path"]) for one in decisions) == report["num_accepted"]
    assert sum(len(one["scores"]) for one in decisions) == report["num_verified"]
    first_steps = {decisions[0]["step"]}
    for one in decisions:
        assert one["entropy"] >= 0
        assert len(one["scores"]) == len(one["drafters"]) == len(one["parents"])
        assert (one["actual_s"] is None) == (one["step"] in first_steps)
        for key in ("budget", "price", "predicted_s", "arrivals", "kv_free", "queue"):
            assert one[key] >= 0, key


@pytest.mark.parametrize("budget", [4, "auto"])  # with `auto` the leader measures what verifications cost at first
def test_runs_of_one_deployment_are_accounted_apart(budget: int | str) -> None:
    """What comes before the first run and a pause between two is no part of any, and neither is what the leader does in
    it."""
    jobs = [Job(prompt=tuple(prompts_of(1)[0]), sampling=Sampling(max_tokens=60, ignore_eos=True))]
    runs: list[RunResult] = []
    pull = {"growth": "none", "delivery": "pull", "on_miss": "draft", "verify_shape": "chain"}
    with Deployment("apart", config(speculation={"budget": budget, **pull})) as deployment:
        deployment.wait_ready()
        for number in range(3):
            for _ in range(4):
                deployment.client.poll(timeout_s=0.3)
            runs.append(timed_run(deployment, jobs, concurrency=1, name=f"run{number}"))
    for run in runs:
        shares = time_shares(run)
        assert shares.accounted_s == pytest.approx(shares.wall_s, rel=0.01)
        assert shares.idle_s["queue_empty"] < 0.01 * shares.wall_s
        assert run.stats["session_committed"] == 60
        assert shares.wall_s <= run.wall_s
