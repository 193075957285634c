"""The tables of `dist-spec score`, from its report. Computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from dist_spec.bench.score.live import MEANINGS
from dist_spec.bench.show import table_of

Report = Mapping[str, Any]

_AFTER = {
    "observed": "as here: the rule coupled, guesses ranked with the target's noise",
    "plain_ranking": "the rule coupled, guesses ranked by probability alone",
    "rejection": "the rule rejection",
}


def show_all(console: Console, report: Report) -> None:
    """Costs first, then every temperature."""
    _show_costs(console, report)
    for run in report["runs"]:
        console.rule(f"temperature {run['temperature']:g}")
        _show_chain(console, run, num_draft_tokens=report["num_draft_tokens"])
        _show_domains(console, run)
        _show_misses(console, run)
        _show_live(console, run)
        _show_table(console, run)


def _show_costs(console: Console, report: Report) -> None:
    cost = report["cost"]
    table = table_of("costs, same core, in turns (medians)", "what", "ms", "of a target token")
    lines = {
        "target: forward of one token": cost["target_token_ms"],
        "drafter: one more token of a chain": cost["draft_token_ms"],
        "drafter: first token below the committed text": cost["draft_first_ms"],
    }
    if cost["wide_leaves"] > 1:
        lines[f"drafter: step with {cost['wide_leaves']} leaves"] = cost["draft_wide_ms"]
    for name, spent in lines.items():
        table.add_row(name, f"{spent:.3f}", f"{spent / cost['target_token_ms']:.1%}")
    console.print(table)


def _show_chain(console: Console, run: Report, *, num_draft_tokens: int) -> None:
    chain = run["chain"]
    table = table_of(
        f"teacher-forced, {run['num_positions']} positions of {run['num_texts']} texts", "depth",
        "right so far", "right, given those before", left=0,
    )  # fmt: skip
    for row in chain["by_depth"]:
        table.add_row(str(row["depth"]), f"{row['reached']:.3f}", f"{row['accepted']:.3f}")
    console.print(table)
    console.print(
        f"chain of {num_draft_tokens}: {chain['acceptance_length']:.3f} tokens per verification over all positions, "
        f"{chain['walked_length']:.3f} where verifications start one after the other"
    )


def _show_domains(console: Console, run: Report) -> None:
    sampled = run["coupled_match"] is not None
    modes = list(run["live"])
    extra = ("match", "sum min(p,q)") if sampled else ()
    table = table_of(
        "by domain",
        "domain",
        "positions",
        "first guess",
        *extra,
        "chain",
        "walked",
        *(f"live {mode}" for mode in modes),
    )
    rows = {name or "(all)": row for name, row in run["domains"].items()}
    if len(rows) > 1:
        rows["all"] = {**run, "live": {mode: one["acceptance_length"] for mode, one in run["live"].items()}}
    for name, row in rows.items():
        chances = [f"{row['coupled_match']:.3f}", f"{row['sum_min']:.3f}"] if sampled else []
        live = [f"{row['live'][mode]:.2f}" if mode in row["live"] else "-" for mode in modes]
        chain = row["chain"]
        lengths = [f"{chain['acceptance_length']:.2f}", f"{chain['walked_length']:.2f}"]
        table.add_row(name, f"{row['num_positions']}", f"{row['first']:.3f}", *chances, *lengths, *live)
    console.print(table)
    if sampled:
        console.print(
            "[dim]match: probability that the coupled rule accepts the first guess; sum min(p,q): that the rule rejection "
            "accepts a draft, same positions[/dim]"
        )


def _show_misses(console: Console, run: Report) -> None:
    after = run["after_a_miss"]
    table = table_of("after a miss: the target's token is among the next ...", "ranking", "first", "1", "2", "3")
    for name, row in after.items():
        label = _AFTER[name] if len(after) > 1 else "greedy, counted along the texts"
        table.add_row(label, f"{row['first']:.3f}", *(f"{share:.3f}" for share in row["next_guesses"]))
    console.print(table)
    if "plain_ranking" in after and after["observed"]["first"] < 1:
        gains = zip(after["observed"]["next_guesses"], after["plain_ranking"]["next_guesses"], strict=True)
        console.print("gain of the noise in the ranking: " + ", ".join(f"{a - b:+.3f}" for a, b in gains))


def _show_live(console: Console, run: Report) -> None:
    if not run["live"]:
        return
    table = table_of("live, two processes", "how", "tokens per verification", "tokens/s", "tree ready", "verifications")
    for mode, row in run["live"].items():
        table.add_row(
            mode, f"{row['acceptance_length']:.3f}", f"{row['tokens_per_s']:.1f}", f"{row['ready_share']:.1%}",
            f"{row['verifications']}",
        )  # fmt: skip
    console.print(table)
    for mode, row in run["live"].items():
        console.print(f"[dim]{mode}: {MEANINGS[mode]}[/dim]")
        if "gap" in row:
            _show_gap(console, mode, row["gap"])


def _show_gap(console: Console, mode: str, gap: Report) -> None:
    late = max(1 - gap["ready_share"] - gap["silent_share"], 0.0)
    silent = f" (at {gap['silent_share']:.0%} of them it has no guess)" if gap["silent_share"] > 0 else ""
    console.print(
        f"{mode}: teacher-forced {gap['teacher_forced']:.3f}; starts where verifications end{silent} "
        f"{gap['start_positions']:+.3f}; no guess at hand in time ({late:.0%} of verifications) {-gap['no_tree']:+.3f}; "
        f"fewer than {gap['depth']} at hand ({gap['ready_share'] - gap['full_share']:.0%}) {-gap['shallow']:+.3f}; rest "
        f"{gap['rest']:+.3f}; live {gap['live']:.3f}"
    )


def _show_table(console: Console, run: Report) -> None:
    table = table_of(
        "what to expect", "shape", "nodes", "depth", "tokens per verification", "verify ms", "draft ms",
        "tokens/s drafted ahead", "x plain", "tokens/s drafted on demand", "x plain",
    )  # fmt: skip
    for row in run["table"]:
        table.add_row(
            row["shape"], f"{row['nodes']}", f"{row['depth']}", f"{row['length']:.2f}", f"{1e3 * row['verify_s']:.1f}",
            f"{1e3 * row['draft_s']:.2f}", f"{row['ahead']:.1f}", f"{row['speedup_ahead']:.2f}", f"{row['asked']:.1f}",
            f"{row['speedup_asked']:.2f}",
        )  # fmt: skip
    console.print(table)
    best = max(run["table"], key=lambda row: row["speedup_ahead"])
    console.print(
        f"most tokens/s if drafted ahead: {best['shape']} of {best['nodes']} nodes, {best['speedup_ahead']:.2f}x plain "
        "(messages and the leader's own work left out; a tree is the best static one, chosen elsewhere in the texts)"
    )
