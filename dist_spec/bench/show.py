"""What a person sees: streamed text on standard output, tables on standard error. It computes no figure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from dist_spec.bench.compare import Comparison
from dist_spec.bench.run import RunResult
from dist_spec.models.tokenizer import IncrementalDetokenizer, Tokenizer


class TextPrinter:
    """Prints text as it is committed: live for one request at a time, else each text when it is complete. What follows a
    stop string is not shown."""

    def __init__(
        self, tokenizer: Tokenizer, *, texts: Sequence[str], live: bool, quiet: bool, stops: Sequence[str] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._prompts = texts
        self._live = live
        self._quiet = quiet
        self._stops = stops
        self._detokenizers: dict[int, tuple[IncrementalDetokenizer, StopFilter]] = {}

    def show(self, index: int, tokens: list[int]) -> None:
        """Newly committed tokens of request `index`."""
        if self._quiet or not self._live:
            return
        if index not in self._detokenizers:
            self._end(index - 1)
            self._header(index)
            self._detokenizers[index] = (IncrementalDetokenizer(self._tokenizer), StopFilter(self._stops))
        detokenizer, until_stop = self._detokenizers[index]
        sys.stdout.write(until_stop.push("".join(detokenizer.push(token) for token in tokens)))
        sys.stdout.flush()

    def finish(self, result: RunResult) -> None:
        """The run is over: complete the last line, or print all texts."""
        if self._quiet:
            return
        if self._live:
            self._end(len(result.streams) - 1)
            return
        for index, stream in enumerate(result.streams):
            self._header(index)
            sys.stdout.write(cut_at_stop(self._tokenizer.decode(stream.tokens), self._stops) + "\n")
        sys.stdout.flush()

    def outputs(self, comparison: Comparison) -> list[str]:
        """The texts of the first run, cut before a stop string."""
        streams = comparison.runs["speculative"][0].streams
        return [cut_at_stop(self._tokenizer.decode(stream.tokens), self._stops) for stream in streams]

    def _header(self, index: int) -> None:
        if len(self._prompts) > 1:
            first_line = self._prompts[index].strip().splitlines()[0]
            print(f"\n\033[1m> {first_line[:100]}\033[0m" if sys.stdout.isatty() else f"\n> {first_line[:100]}")

    def _end(self, index: int) -> None:
        if index in self._detokenizers:
            detokenizer, until_stop = self._detokenizers[index]
            sys.stdout.write(until_stop.push(detokenizer.flush()) + until_stop.flush() + "\n")
            sys.stdout.flush()


class StopFilter:
    """Lets text through up to the first stop string; what may be the beginning of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> str:
        """What may be shown now."""
        if self._stopped:
            return ""
        self._held += text
        shown = cut_at_stop(self._held, self._stops)
        self._stopped = len(shown) < len(self._held)
        if not self._stopped:
            shown = shown[: max(0, len(shown) - max(map(len, self._stops), default=1) + 1)]
        self._held = "" if self._stopped else self._held[len(shown) :]
        return shown

    def flush(self) -> str:
        """What is still held back, once the text is over."""
        held, self._held = self._held, ""
        return held


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string in it."""
    places = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return text[: min(places)] if places else text


def show_stats(console: Console, run: RunResult) -> None:
    """Where the target's time went, what was drafted, and what the links carried."""
    table = Table(title="target process, time by phase", title_justify="left")
    for name in ("phase", "seconds", "share"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    phases = run.phases()
    total = sum(phases.values()) or 1.0
    for phase, spent in sorted(phases.items(), key=lambda item: -item[1]):
        table.add_row(phase, f"{spent:.3f}", f"{spent / total:.1%}")
    console.print(table)
    stats = run.stats
    rows = max(stats.get("session_rows", 0.0), 1.0)
    console.print(
        f"acceptance length {run.acceptance_length:.2f} tokens per verification; "
        f"{stats.get('session_ready_rows', 0) / rows:.0%} of verifications found a draft tree ready; "
        f"nodes drafted {stats.get('session_drafted', 0):.0f}, verified {stats.get('session_verified', 0):.0f}, "
        f"accepted {stats.get('session_accepted', 0):.0f}; "
        f"coordination {stats.get('coordination_ms_median', 0):.2f} ms (median per step)"
    )
    _show_drafters(console, run)
    _show_depths(console, stats)
    _show_links(console, stats, tokens=run.num_tokens)


def _show_drafters(console: Console, run: RunResult) -> None:
    for key, busy_s in run.stats.items():
        if key.startswith("drafter_") and key.endswith("_busy_s"):
            name = key.removeprefix("drafter_").removesuffix("_busy_s")
            nodes = run.stats.get(f"drafter_{name}_nodes", 0)
            console.print(
                f"drafter {name}: drafting {busy_s:.2f} s beside the target's {run.phases().get('forward', 0):.2f} s of "
                f"forwards, {nodes:.0f} nodes streamed ahead; exposed (the target waited) {run.waited_s():.3f} s"
            )


def _show_depths(console: Console, stats: Mapping[str, float]) -> None:
    depths = sorted(int(key[6:-5]) for key in stats if key.startswith("depth_") and key.endswith("_rows"))
    table = Table(title="depth of the tree at hand when a verification starts", title_justify="left")
    for name in ("ready depth", "verifications", "tokens per verification"):
        table.add_column(name, justify="right")
    for depth in depths:
        rows, tokens = stats[f"depth_{depth}_rows"], stats[f"depth_{depth}_tokens"]
        if rows:
            table.add_row(str(depth), f"{rows:.0f}", f"{tokens / rows:.2f}")
    console.print(table)


def _show_links(console: Console, stats: Mapping[str, float], *, tokens: int) -> None:
    table = Table(title="messages", title_justify="left")
    for name in ("link", "kind", "messages", "bytes", "bytes per token"):
        table.add_column(name, justify="left" if name in ("link", "kind") else "right")
    for key, messages in stats.items():
        if key.startswith("link_") and key.endswith("_messages") and messages:
            base = key.removesuffix("_messages")
            peer, direction, kind = base.removeprefix("link_").rsplit("_", 2)
            size = stats.get(f"{base}_bytes", 0.0)
            arrow = "to" if direction == "out" else "from"
            per_token = f"{size / max(tokens, 1):.1f}"
            table.add_row(f"{arrow} {peer}", kind, f"{messages:.0f}", f"{size:.0f}", per_token)
    console.print(table)


def show_comparison(console: Console, comparison: Comparison, report: Mapping[str, Any]) -> None:
    """Speed of every variant and whether the text is the same."""
    names = {
        "speculative": "with drafting",
        "plain": "plain, same device",
        "plain_all_devices": "plain, all devices used",
        "ready": "full tree ready at every start (waiting off the clock)",
    }
    table = Table(title=f"{report['rounds']} rounds, medians", title_justify="left")
    for name in ("variant", "tokens/s", "ours / variant"):
        table.add_column(name, justify="left" if name == "variant" else "right")
    for variant in comparison.runs:
        ratio = comparison.ratio(variant)
        rate = report[f"tokens_per_s_{variant}"]
        shown = report["pipeline_efficiency"] if variant == "ready" else ratio
        table.add_row(names[variant], "" if variant == "ready" else f"{rate:.1f}", f"{shown:.2f}x")
    console.print(table)
    verdict = "[green]equal[/green]" if report["equal"] else "[red]NOT equal[/red]"
    kind = "bit for bit (batch-invariant)" if report["batch_invariant"] else "up to numeric ties"
    console.print(
        f"text with drafting and plain: {verdict} {kind}; {report['num_identical']} of {report['num_compared']} "
        f"identical, {report['num_numeric']} differ by rounding"
    )


def show_peers(console: Console, report: Mapping[str, Any]) -> None:
    console.print(
        f"transformers' generate on the same core: plain {report['tokens_per_s_hf_plain']:.1f} tokens/s, prompt lookup "
        f"{report['tokens_per_s_hf_prompt_lookup']:.1f} ({report['hf_prompt_lookup_speedup']:.2f}x its plain); ours "
        f"{report['tokens_per_s']:.1f}"
    )
