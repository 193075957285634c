"""What a person sees of a run's figures: tables on standard error. It computes no figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from dist_spec.bench.accounts import Calibration, acceptance_by_depth, calibrations, ready_depths, time_shares
from dist_spec.bench.compare import Comparison
from dist_spec.bench.efficiency import Efficiency
from dist_spec.bench.run import RunResult

VARIANT_NAMES: Mapping[str, str] = {
    "speculative": "with drafting",
    "plain": "plain, same device",
    "plain_all_devices": "plain, all devices used",
    "ready": "full tree ready at every start (waiting off the clock)",
    "none_pull": "control: synchronous (none/pull), waiting on the clock",
    "off": "control: drafters attached, drafting off",
    "random_drafter": "control: a drafter that guesses at random",
}


def table_of(title: str, *columns: str, left: int = 1) -> Table:
    """An empty table; the first `left` columns are texts, the others figures."""
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < left else "right")
    return table


def show_stats(console: Console, run: RunResult, report: Mapping[str, Any]) -> None:
    """Where the time went, what was drafted, and what the links carried.

    Args:
        report: `run_figures` of this run.
    """
    _show_time(console, run)
    _show_latency(console, report)
    stats = run.stats
    rows = max(stats.get("session_rows", 0.0), 1.0)
    console.print(
        f"{stats.get('session_steps', 0):.0f} steps; acceptance length {run.acceptance_length:.2f} tokens per "
        f"verification; {stats.get('session_ready_rows', 0) / rows:.0%} of verifications found a draft tree ready; "
        f"nodes drafted {stats.get('session_drafted', 0):.0f}, verified {stats.get('session_verified', 0):.0f}, "
        f"accepted {stats.get('session_accepted', 0):.0f}; "
        f"processors, noise, verdict and all that follows {stats.get('overhead_ms_median', 0):.2f} ms, of which tree, "
        f"messages and commit {stats.get('handling_ms_median', 0):.2f} ms (medians per step)"
    )
    _show_drafters(console, run, report["occupancy"])
    _show_ready_depths(console, run)
    _show_acceptance(console, run)
    for what, calibration in calibrations(stats).items():
        _show_calibration(console, what, calibration)
    _show_links(console, report["transfers"], tokens=run.num_tokens)


def _show_time(console: Console, run: RunResult) -> None:
    shares = time_shares(run)
    wall = shares.wall_s or 1.0
    table = table_of("target process, time by phase", "phase", "seconds", "share")
    for phase, spent in sorted(run.phases().items(), key=lambda item: -item[1]):
        table.add_row(phase, f"{spent:.3f}", f"{spent / wall:.1%}")
    table.add_row(
        "idle (queue empty)", f"{shares.idle_s['queue_empty']:.3f}", f"{shares.idle_s['queue_empty'] / wall:.1%}"
    )
    console.print(table)
    idle = sum(shares.idle_s.values())
    causes = ", ".join(f"{cause} {spent:.3f} s" for cause, spent in shares.idle_s.items() if spent > 0)
    console.print(
        f"forward {shares.forward_s:.3f} + coordination {shares.coordination_s:.3f} + idle {idle:.3f} s"
        f"{f' ({causes})' if causes else ''} = {shares.accounted_s / wall:.2%} of {shares.wall_s:.3f} s at the leader; "
        f"{shares.outside_s:.3f} s more at the frontend"
    )


def _show_latency(console: Console, report: Mapping[str, Any]) -> None:
    first, between = report["time_to_first_token_s"], report["time_between_tokens_s"]

    def ms(figures: Mapping[str, float | None]) -> str:
        return ", ".join(f"{name} {1e3 * one:.1f} ms" for name, one in figures.items() if one is not None) or "-"

    console.print(f"time to first token: {ms(first)}; time between tokens: {ms(between)}")
    shares = ", ".join(f"{name} {share:.1%}" for name, share in report["request_shares"].items())
    console.print(f"requests' time: {shares or '-'}")


def _show_drafters(console: Console, run: RunResult, occupancy: Mapping[str, float]) -> None:
    console.print(f"target: busy with forwards {occupancy['target']:.1%} of the time")
    for name, busy in occupancy.items():
        if name != "target":
            nodes = run.stats.get(f"drafter_{name}_nodes", 0)
            accepted = run.stats.get(f"drafter_{name}_accepted", 0)
            busy_s = run.stats.get(f"drafter_{name}_busy_s", 0.0)
            console.print(
                f"drafter {name}: drafting {busy:.1%} of the time ({busy_s:.2f} s, as of its last heartbeat), "
                f"{nodes:.0f} nodes streamed ahead, {accepted:.0f} accepted"
            )
    if run.waited_s() > 0:
        console.print(f"exposed (the target waited for drafters): {run.waited_s():.3f} s")


def _show_ready_depths(console: Console, run: RunResult) -> None:
    table = table_of(
        "depth of the tree at hand when a verification starts", "ready depth", "verifications", "tokens",
        "tokens per verification", left=0,
    )  # fmt: skip
    for depth, rows, tokens in ready_depths(run.stats):
        table.add_row(str(depth), f"{rows}", f"{tokens}", f"{tokens / rows:.2f}")
    console.print(table)


def _show_acceptance(console: Console, run: RunResult) -> None:
    rows = acceptance_by_depth(run.stats)
    if not rows:
        return
    table = table_of(
        "acceptance by depth in the verified tree", "depth", "trees that deep", "nodes verified", "accepted",
        "accepted / trees", left=0,
    )  # fmt: skip
    for row in rows:
        table.add_row(str(row.depth), f"{row.rows}", f"{row.verified}", f"{row.accepted}", f"{row.acceptance:.2f}")
    console.print(table)


def _show_calibration(console: Console, what: str, calibration: Calibration) -> None:
    if not calibration.bins:
        return
    table = table_of(f"calibration of {what}", "predicted", "observed", "samples", left=0)
    for count, predicted, observed in calibration.bins:
        table.add_row(f"{predicted:.2f}", f"{observed:.2f}", f"{count}")
    console.print(table)
    console.print(f"calibration error of {what}: {calibration.error:.3f} (mean over samples)")


def _show_links(console: Console, transfers: Sequence[Mapping[str, Any]], *, tokens: int) -> None:
    table = table_of(
        "transfer ledger", "link", "kind", "messages", "bytes", "bytes per token", "hidden ms", "exposed ms", left=2
    )
    for row in transfers:
        arrow = "to" if row["direction"] == "out" else "from"
        table.add_row(
            f"{arrow} {row['peer'].replace('@', ' by ')}" if row["peer"] != "*" else "all links",
            row["kind"],
            f"{row['messages']}",
            f"{row['bytes']}",
            f"{row['bytes'] / max(tokens, 1):.1f}",
            f"{1e3 * row['hidden_s']:.2f}",
            f"{1e3 * row['exposed_s']:.2f}",
        )
    console.print(table)


def show_comparison(console: Console, comparison: Comparison, report: Mapping[str, Any]) -> None:
    """Speed of every variant and whether the text is the same."""
    table = table_of(
        f"{report['rounds']} rounds, medians",
        "variant",
        "tokens/s",
        "ours / variant",
        "decoding: tokens/s",
        "ours / variant",
    )
    for variant in comparison.runs:
        name = "none_pull" if variant == "ready" else variant
        decode = comparison.decode_ratio(variant)
        table.add_row(
            VARIANT_NAMES[name],
            f"{report[f'tokens_per_s_{name}']:.1f}",
            f"{comparison.ratio(variant):.2f}x",
            f"{report[f'decode_tokens_per_s_{name}']:.1f}",
            "-" if decode is None else f"{decode:.2f}x",
        )
    console.print(table)
    show_efficiency(console, comparison.efficiency())
    if report["equal"] is None:
        return
    verdict = "[green]equal[/green]" if report["equal"] else "[red]NOT equal[/red]"
    kind = "bit for bit (batch-invariant)" if report["batch_invariant"] else "up to numeric ties"
    console.print(
        f"text with drafting and plain: {verdict} {kind}; {report['num_identical']} of {report['num_compared']} "
        f"identical, {report['num_numeric']} differ by rounding"
    )


def show_efficiency(console: Console, efficiency: Efficiency | None) -> None:
    """Pipeline efficiency, and what it lacks to 1 by cause."""
    if efficiency is None:
        return
    table = table_of("pipeline efficiency: lost against a full tree at every start", "cause", "ms per token", "share")
    for part, share in efficiency.loss_shares().items():
        table.add_row(part.replace("_", " "), f"{1e3 * efficiency.loss_s[part]:.3f}", f"{share:.1%}")
    console.print(table)
    console.print(
        f"pipeline efficiency {efficiency.value:.3f}: {1e3 * efficiency.ours_s:.2f} ms per token, "
        f"{1e3 * efficiency.ready_s:.2f} with a full tree at every start"
    )


def show_domains(console: Console, domains: Mapping[str, Mapping[str, Any]]) -> None:
    """One line per domain."""
    table = table_of("by domain", "domain", "tokens", "tokens/s", "acceptance length", "ours / plain", "all devices")
    for name, row in domains.items():
        ratios = (row.get("speedup_vs_plain"), row.get("speedup_vs_plain_all_devices"))
        shown = [f"{ratio:.2f}x" if ratio else "-" for ratio in ratios]
        table.add_row(
            name, f"{row['num_tokens']}", f"{row['tokens_per_s']:.1f}", f"{row['acceptance_length']:.2f}", *shown
        )
    console.print(table)


def show_loops(console: Console, loops: Mapping[str, Any], *, num_texts: int) -> None:
    """Texts that end in a loop, and the speed without their loops."""
    ratio = "".join(
        f", {loops[f'speedup_vs_plain_{how}']:.2f}x plain {how}"
        for how in ("with", "without")
        if loops.get(f"speedup_vs_plain_{how}")
    )
    console.print(
        f"looping tails: {loops['num_texts']} of {num_texts} texts, {loops['num_tokens']} tokens; tokens/s of a request "
        f"{loops['tokens_per_s_with'] or 0:.1f} with them, {loops['tokens_per_s_without'] or 0:.1f} without{ratio}"
    )


def show_peers(console: Console, report: Mapping[str, Any]) -> None:
    """Beside transformers' own generation."""
    console.print(
        f"transformers' generate on the same core: plain {report['tokens_per_s_hf_plain']:.1f} tokens/s, prompt lookup "
        f"{report['tokens_per_s_hf_prompt_lookup']:.1f} ({report['hf_prompt_lookup_speedup']:.2f}x its plain); ours "
        f"{report['tokens_per_s']:.1f}"
    )
