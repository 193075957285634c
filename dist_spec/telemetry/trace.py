"""Spans on tracks as a Chrome / Perfetto trace. Every process collects its own and writes a part; parts are merged into
one file. It knows nothing of what the spans mean, and where no trace is asked for none of it exists.

`python -m dist_spec.telemetry.trace OUT PART...` merges parts that were fetched from several places by hand.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from dist_spec.errors import ConfigError
from dist_spec.exits import run

MAX_EVENTS = 50_000
"""Events kept per process; the oldest go first."""

_Event: TypeAlias = tuple[str, str, float, float, str, Mapping[str, Any] | None]
"""(track, name, start, end, flow: "" or "s:ID" (an arrow starts here) or "f:ID" (it ends here), arguments)"""

_INSTANT_S = 1e-6
"""Shortest span that is drawn."""


class Trace:
    """The events of one process. Times are seconds of the monotonic clock, which the processes of a host share.

    Args:
        process: name of the process in the trace.
        max_events: the latest so many are kept.
    """

    def __init__(self, process: str, *, max_events: int = MAX_EVENTS) -> None:
        self.process = process
        self._events: deque[_Event] = deque(maxlen=max_events)
        self._seen = 0

    def span(
        self,
        track: str,
        name: str,
        start_s: float,
        end_s: float,
        *,
        flow: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Something that lasted. `flow`: "s:ID" where an arrow starts, "f:ID" where the one of that id ends."""
        self._seen += 1
        self._events.append((track, name, start_s, end_s, flow, arguments))

    def phase(self, name: str, start_s: float, end_s: float) -> None:
        """A phase of the process's own thread (for `Timeline`)."""
        self.span("phases", name, start_s, end_s)

    @property
    def num_dropped(self) -> int:
        return self._seen - len(self._events)

    def events(self, *, pid: int) -> Iterator[dict[str, Any]]:
        """In the format's own words: names of process and tracks first, times in microseconds."""
        tracks: dict[str, int] = {}
        for track, *_ in self._events:
            tracks.setdefault(track, len(tracks) + 1)
        dropped = f" ({self.num_dropped} oldest events dropped)" if self.num_dropped else ""
        yield _meta("process_name", pid, 0, self.process + dropped)
        for track, tid in tracks.items():
            yield _meta("thread_name", pid, tid, track)
        for track, name, start_s, end_s, flow, arguments in self._events:
            place = {"pid": pid, "tid": tracks[track], "ts": round(1e6 * start_s, 3)}
            duration = round(1e6 * max(end_s - start_s, _INSTANT_S), 3)
            yield {
                "name": name,
                "ph": "X",
                **place,
                "dur": duration,
                **({"args": dict(arguments)} if arguments else {}),
            }
            if flow:
                kind, _, flow_id = flow.partition(":")
                yield {"name": name, "cat": "message", "ph": kind, "id": flow_id, "bp": "e", **place}

    def save_part(self, trace: Path) -> Path:
        """Write this process's share of the trace file `trace` beside it, as a valid trace of its own."""
        pid = os.getpid()
        path = trace.with_name(f"{trace.name}.{self.process}.{pid}.part")
        path.write_text(_document(self.events(pid=pid)), encoding="utf-8")
        return path


def _meta(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _document(events: Iterable[Mapping[str, Any]]) -> str:
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{lines}\n]}}\n'


def parts_of(trace: Path) -> list[Path]:
    """The parts that processes have left beside `trace`."""
    names = (path for path in trace.parent.iterdir() if path.is_file()) if trace.parent.is_dir() else ()
    return sorted(path for path in names if path.name.startswith(f"{trace.name}.") and path.name.endswith(".part"))


def remove_parts(trace: Path) -> None:
    """Parts of an earlier run that was killed must not get into this one's file."""
    for path in parts_of(trace):
        path.unlink(missing_ok=True)


def merge_parts(trace: Path, parts: Iterable[Path]) -> int:
    """Write `trace` from the parts, the earliest moment as 0; returns the number of spans. A part that was cut off in
    writing (its process was killed) is left out."""
    events: list[dict[str, Any]] = []
    for number, part in enumerate(parts, 1):
        try:
            found = json.loads(part.read_text(encoding="utf-8"))["traceEvents"]
        except (json.JSONDecodeError, KeyError, OSError):
            continue
        events += [{**event, "pid": number} for event in found]  # process ids of several hosts may be the same
    first = min((event["ts"] for event in events if "ts" in event), default=0.0)
    for event in events:
        if "ts" in event:
            event["ts"] = round(event["ts"] - first, 3)
    events.sort(key=lambda event: event.get("ts", -1.0))
    trace.write_text(_document(events), encoding="utf-8")
    return sum(event["ph"] == "X" for event in events)


def collect(trace: Path) -> int:
    """Merge the parts beside `trace` into it and remove them; returns the number of spans."""
    parts = parts_of(trace)
    count = merge_parts(trace, parts)
    for part in parts:
        part.unlink(missing_ok=True)
    return count


def main() -> None:
    """Merge the parts that are named."""
    if len(sys.argv) < 3:
        raise ConfigError("what to merge is not said", fix="python -m dist_spec.telemetry.trace OUT PART...")
    trace, *parts = map(Path, sys.argv[1:])
    missing = [str(part) for part in parts if not part.is_file()]
    if missing or not trace.parent.is_dir():
        raise ConfigError(f"not there: {', '.join(missing) or trace.parent}", fix="name files and folders that are")
    print(f"{merge_parts(trace, parts)} spans")


if __name__ == "__main__":
    sys.exit(run(main))
