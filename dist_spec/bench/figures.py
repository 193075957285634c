"""The documented keys of `--json`, from the runs. Pure arithmetic over what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from dist_spec.bench.compare import Comparison
from dist_spec.bench.run import RunResult


def figures(
    comparison: Comparison, *, texts: Sequence[str], hf: Mapping[str, Sequence[float]] | None = None
) -> dict[str, Any]:
    """All figures of one comparison (docs/operating.md lists the keys); what was not measured is null."""
    ours = comparison.runs["speculative"]
    first = ours[0]
    equalities = comparison.equalities
    report: dict[str, Any] = {
        "texts": list(texts),
        "token_ids": [stream.tokens for stream in first.streams],
        "finish_reasons": [stream.reason for stream in first.streams],
        "num_tokens": first.num_tokens,
        "equal": comparison.equal,
        "num_identical": sum(one.identical for one in equalities),
        "num_numeric": sum(one.numeric for one in equalities),
        "num_compared": len(equalities),
        "batch_invariant": bool(first.stats.get("batch_invariant", 0.0)),
        "max_logit_difference": first.stats.get("max_logit_difference"),
        "tokens_per_s": statistics.median(run.tokens_per_s for run in ours),
        "speedup_vs_plain": comparison.ratio("plain"),
        "speedup_vs_plain_all_devices": comparison.ratio("plain_all_devices"),
        "pipeline_efficiency": comparison.pipeline_efficiency(),
        "acceptance_length": first.acceptance_length,
        "target_idle_fraction": statistics.median(run.idle_fraction() for run in ours),
        "coordination_ms_median": first.stats.get("coordination_ms_median"),
        "rounds": len(ours),
    }
    report |= counts(first)
    for variant, runs in comparison.runs.items():
        report[f"tokens_per_s_{variant}"] = statistics.median(run.tokens_per_s for run in runs)
    for name, rates in (hf or {}).items():
        report[f"tokens_per_s_{name}"] = statistics.median(rates)
    if hf and "hf_plain" in hf:
        pairs = zip(hf["hf_prompt_lookup"], hf["hf_plain"], strict=True)
        report["hf_prompt_lookup_speedup"] = statistics.median(lookup / plain for lookup, plain in pairs)
    return report


def counts(run: RunResult) -> dict[str, Any]:
    """Counts and times of one run: steps, nodes drafted, verified and accepted, seconds per phase of the target."""
    stats = run.stats
    names = ("steps", "rows", "ready_rows", "drafted", "verified", "accepted", "waits", "stale", "garbage")
    result: dict[str, Any] = {f"num_{name}": int(stats.get(f"session_{name}", 0)) for name in names}
    result["ready_share"] = stats.get("session_ready_rows", 0.0) / max(stats.get("session_rows", 0.0), 1.0)
    result["target_phases_s"] = run.phases()
    return result
