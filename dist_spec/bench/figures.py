"""The documented keys of `--json`, from the runs. Pure arithmetic over what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from dist_spec.bench.accounts import run_figures
from dist_spec.bench.compare import Comparison
from dist_spec.bench.loops import loop_figures
from dist_spec.bench.run import RunResult


def figures(
    comparison: Comparison,
    *,
    texts: Sequence[str],
    hf: Mapping[str, Sequence[float]] | None = None,
    detokenise_s: float = 0.0,
) -> dict[str, Any]:
    """All figures of one comparison (docs/operating.md lists the keys); what was not measured is null."""
    ours = comparison.runs["speculative"]
    first = ours[0]
    equalities = comparison.equalities
    efficiency = comparison.efficiency()
    plain = comparison.runs.get("plain")
    report: dict[str, Any] = {
        "texts": list(texts),
        "token_ids": [stream.tokens for stream in first.streams],
        "logprobs": [stream.logprobs for stream in first.streams] if any(s.logprobs for s in first.streams) else None,
        "top_logprobs": [stream.top_logprobs for stream in first.streams]
        if any(stream.top_logprobs for stream in first.streams)
        else None,
        "finish_reasons": [stream.reason for stream in first.streams],
        "equal": comparison.equal,
        "num_identical": sum(one.identical for one in equalities),
        "num_numeric": sum(one.numeric for one in equalities),
        "num_compared": len(equalities),
        "batch_invariant": bool(first.stats.get("batch_invariant", 0.0)),
        "max_logit_difference": first.stats.get("max_logit_difference"),
        "pipeline_efficiency": efficiency.value if efficiency else None,
        "pipeline_loss": efficiency.loss_shares() if efficiency else None,
        "pipeline_loss_s_per_token": efficiency.loss_s if efficiency else None,
        "target_idle_fraction": statistics.median(run.idle_fraction() for run in ours),
        "coordination_ms_median": first.stats.get("coordination_ms_median"),
        "overhead_ms_median": first.stats.get("overhead_ms_median"),
        "handling_ms_median": first.stats.get("handling_ms_median"),
        "rounds": len(ours),
        "looping_tails": loop_figures(first, plain[0] if plain else None),
    }
    report |= speeds(comparison)
    report |= counts(first)
    report |= run_figures(first, detokenise_s=detokenise_s)
    for name, rates in (hf or {}).items():
        report[f"tokens_per_s_{name}"] = statistics.median(rates)
    if hf and "hf_plain" in hf:
        pairs = zip(hf["hf_prompt_lookup"], hf["hf_plain"], strict=True)
        report["hf_prompt_lookup_speedup"] = statistics.median(lookup / plain for lookup, plain in pairs)
    return report


def speeds(comparison: Comparison) -> dict[str, Any]:
    """Tokens per second of every variant and the ratios of ours to them: the part that is also made per domain.

    A `ready` run with its waiting on the clock is synchronous speculation, and is reported as `none_pull`.
    """
    ours = comparison.runs["speculative"]
    report: dict[str, Any] = {
        "num_tokens": ours[0].num_tokens,
        "tokens_per_s": statistics.median(run.tokens_per_s for run in ours),
        "decode_tokens_per_s": statistics.median(run.decode_tokens_per_s for run in ours),
        "acceptance_length": ours[0].acceptance_length,
        "tokens_per_s_none_pull": None,
        "speedup_vs_none_pull": None,
    }
    for variant in ("plain", "plain_all_devices", "off", "random_drafter"):
        report[f"speedup_vs_{variant}"] = comparison.ratio(variant)
        report[f"decode_speedup_vs_{variant}"] = comparison.decode_ratio(variant)
    for variant, runs in comparison.runs.items():
        name = "none_pull" if variant == "ready" else variant
        report[f"tokens_per_s_{name}"] = statistics.median(run.tokens_per_s for run in runs)
        report[f"decode_tokens_per_s_{name}"] = statistics.median(run.decode_tokens_per_s for run in runs)
        if name == "none_pull":
            report["speedup_vs_none_pull"] = comparison.ratio(variant)
            report["tokens_per_s_ready"] = statistics.median(
                run.num_tokens / max(run.wall_s - run.waited_s(), 1e-9) for run in runs
            )
    return report


def counts(run: RunResult) -> dict[str, Any]:
    """Counts and times of one run: steps, nodes drafted, verified and accepted, seconds per phase of the target."""
    stats = run.stats
    names = ("steps", "rows", "ready_rows", "drafted", "verified", "accepted", "waits", "stale", "garbage")
    result: dict[str, Any] = {f"num_{name}": int(stats.get(f"session_{name}", 0)) for name in names}
    result["ready_share"] = stats.get("session_ready_rows", 0.0) / max(stats.get("session_rows", 0.0), 1.0)
    result["target_phases_s"] = run.phases()
    return result
