"""The trace: parts of several processes become one valid file, bounded, with arrows between links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dist_spec.config import parse_config
from dist_spec.core.messages import Commit, Ping, Propose
from dist_spec.telemetry.timeline import Timeline
from dist_spec.telemetry.trace import Trace, collect, merge_parts, parts_of, remove_parts
from dist_spec.transports.inproc import InprocHub
from dist_spec.transports.traced import TracedTransport
from dist_spec.workers.up_app import traced


def load(path: Path) -> list[dict[str, Any]]:
    document = json.loads(path.read_text())
    assert set(document) == {"displayTimeUnit", "traceEvents"}
    events: list[dict[str, Any]] = document["traceEvents"]
    for event in events:
        assert event["ph"] in "XMsf"
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["dur"] > 0
            assert event["ts"] >= 0
    return events


def names(events: list[dict[str, Any]], kind: str) -> set[str]:
    return {event["args"]["name"] for event in events if event["name"] == kind}


def test_parts_become_one_file_that_begins_at_zero(tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    for name, start in (("leader", 1000.0), ("drafter", 1000.5)):
        trace = Trace(name)
        trace.span("phases", "forward", start, start + 0.25, arguments={"nodes": 3})
        trace.save_part(out)
    assert len(parts_of(out)) == 2
    assert collect(out) == 2
    assert parts_of(out) == []
    events = load(out)
    assert names(events, "process_name") == {"leader", "drafter"}
    spans = [(event["ts"], event["dur"], event["args"]["nodes"]) for event in events if event["ph"] == "X"]
    assert spans == [(0.0, 250_000.0, 3), (500_000.0, 250_000.0, 3)]
    assert len({event["pid"] for event in events}) == 2


def test_memory_is_bounded_and_what_was_dropped_is_said(tmp_path: Path) -> None:
    trace = Trace("p", max_events=10)
    for number in range(25):
        trace.span("t", f"s{number}", number, number + 1)
    assert trace.num_dropped == 15
    events = load(trace.save_part(tmp_path / "t.json"))
    assert [event["name"] for event in events if event["ph"] == "X"] == [f"s{number}" for number in range(15, 25)]
    assert names(events, "process_name") == {"p (15 oldest events dropped)"}


def test_a_part_that_was_cut_off_and_one_of_an_earlier_run_do_no_harm(tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    (tmp_path / "trace.json.old.1.part").write_text("{}")
    (tmp_path / "trace.jsonx.other.1.part").write_text("{}")
    remove_parts(out)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonx.other.1.part"]
    whole = Trace("whole")
    whole.span("t", "s", 0.0, 1.0)
    whole.save_part(out)
    cut = tmp_path / "trace.json.cut.2.part"
    cut.write_text('{"displayTimeUnit":"ms","traceEvents":[\n{"name":')
    assert merge_parts(out, parts_of(out)) == 1
    assert collect(tmp_path / "nothing.json") == 0


def test_a_timeline_tells_its_phases() -> None:
    trace, now = Trace("p"), iter([0.0, 1.0, 3.0, 3.5])
    timeline = Timeline(lambda: next(now), on_phase=trace.phase)
    for phase in ("forward", "commit", "idle"):
        timeline.enter(phase)
    spans = [(event["name"], event["ts"], event["dur"]) for event in trace.events(pid=1) if event["ph"] == "X"]
    assert spans == [("idle", 0.0, 1e6), ("forward", 1e6, 2e6), ("commit", 3e6, 5e5)]
    assert timeline.born_s == 0.0


def test_arrows_join_both_ends_of_a_link() -> None:
    hub = InprocHub()
    ends = {"leader": Trace("leader"), "d": Trace("d")}
    leader = TracedTransport(hub.leader(), trace=ends["leader"])
    drafter = TracedTransport(hub.connect("d"), trace=ends["d"], name="d")
    tokens, none = np.array([1, 2], np.int32), np.array([-1, 0], np.int32)
    proposal = Propose(
        request="r", generation=0, base_length=5, base_digest=7, tokens=tokens, parents=none,
        scores=np.zeros(2, np.float32), serial=3,
    )  # fmt: skip
    drafter.send("leader", proposal)
    drafter.send("leader", Ping())
    assert [type(message) for _, message in leader.receive(0.0)] == [Propose, Ping]
    leader.send("d", Commit(request="r", generation=0, base_length=5, base_digest=7, tokens=tokens))
    assert len(drafter.receive(0.0)) == 1
    assert leader.ledger.total("propose", direction="in").messages == 1
    arrows: dict[str, list[str]] = {}
    for trace in ends.values():
        for event in trace.events(pid=1):
            if event["ph"] in "sf":
                arrows.setdefault(event["id"], []).append(event["ph"])
    assert {name: sorted(both) for name, both in arrows.items()} == {
        "d>leader r#0 p3": ["f", "s"],
        "leader>d r#0 c5-7": ["f", "s"],
    }
    sent = next(event for event in ends["d"].events(pid=1) if event["name"] == "Propose")
    assert sent["args"] == {"request": "r", "base": 5, "nodes": 2}


def test_what_local_processes_leave_is_collected_at_their_end(tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    target = {"model": "random:llama?seed=1", "dtype": "float32"}
    config = parse_config({"target": target, "telemetry": {"trace": str(out)}})
    (tmp_path / "trace.json.leader.1.part").write_text("of an earlier run")
    with traced(config):
        assert parts_of(out) == []
        trace = Trace("leader")
        trace.span("t", "s", 0.0, 1.0)
        trace.save_part(out)
    assert [event["name"] for event in load(out) if event["ph"] == "X"] == ["s"]
    assert parts_of(out) == []
    with traced(parse_config({"target": target})):
        pass
