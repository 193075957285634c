"""The documented keys of `score --json`, from what was followed, timed and run. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dist_spec.bench.accounts import ready_depths
from dist_spec.bench.score.expected import Choice, Seconds
from dist_spec.bench.score.forced import Spot
from dist_spec.bench.score.gap import explain
from dist_spec.bench.score.live import LiveRun
from dist_spec.bench.score.overlap import Overlap
from dist_spec.bench.score.ranks import (
    AfterMiss,
    Trail,
    after_a_miss,
    chain_length,
    rank_shares,
    survival,
    walked_length,
)

Trails = Sequence[Sequence[Trail]]

RANKS = 8
"""Ranks of which shares are told."""


@dataclass(kw_only=True, slots=True)
class Scored:
    """All that was found at one temperature.

    Attributes:
        spots: per domain, per text, per position.
        overlaps: per domain, sampled texts only.
        live: per mode.
    """

    temperature: float
    spots: dict[str, list[list[Spot]]] = field(default_factory=dict)
    overlaps: dict[str, Overlap] = field(default_factory=dict)
    live: dict[str, LiveRun] = field(default_factory=dict)

    def trails(self, domain: str | None = None) -> list[list[Trail]]:
        """Per text, of one domain or of all."""
        domains = self.spots if domain is None else (domain,)
        return [[spot.trail for spot in text] for one in domains for text in self.spots[one]]


def report_of(scored: Scored, *, num_draft_tokens: int, depth: int, table: Sequence[Choice]) -> dict[str, Any]:
    """One temperature.

    Args:
        depth: how far ahead the drafter was followed.
    """
    texts = scored.trails()
    live = {mode: _live(run, texts, depth=num_draft_tokens) for mode, run in scored.live.items() if mode != "plain"}
    measured = live.get("synchronous")
    walked = walked_length(texts, num_draft_tokens)
    return {
        "temperature": scored.temperature,
        "num_texts": len(texts),
        "num_positions": sum(map(len, texts)),
        "acceptance_length": measured["acceptance_length"] if measured else walked,
        "acceptance_from": "live, synchronous chain" if measured else "teacher-forced chain, walked through the texts",
        "live": live,
        "chain": _chain(texts, num_draft_tokens=num_draft_tokens, depth=depth),
        "ranks": rank_shares([trail for text in texts for trail in text], depth=depth, width=RANKS),
        **_chances(texts, _merged(scored.overlaps.values())),
        "domains": {
            domain: _domain(scored, domain, num_draft_tokens=num_draft_tokens, depth=depth) for domain in scored.spots
        },
        "table": [asdict(one) for one in table],
    }


def _domain(scored: Scored, domain: str, *, num_draft_tokens: int, depth: int) -> dict[str, Any]:
    texts = scored.trails(domain)
    return {
        "num_texts": len(texts),
        "num_positions": sum(map(len, texts)),
        "chain": _chain(texts, num_draft_tokens=num_draft_tokens, depth=depth),
        **_chances(texts, scored.overlaps.get(domain)),
        "live": {
            mode: run.by_domain[domain].acceptance_length
            for mode, run in scored.live.items()
            if mode != "plain" and domain in run.by_domain
        },
    }


def _chain(texts: Trails, *, num_draft_tokens: int, depth: int) -> dict[str, Any]:
    """Teacher-forced."""
    trails = [trail for text in texts for trail in text]
    shares = survival(trails, depth)
    before = [1.0, *shares]
    return {
        "num_draft_tokens": num_draft_tokens,
        "acceptance_length": chain_length(trails, num_draft_tokens),
        "walked_length": walked_length(texts, num_draft_tokens),
        "by_depth": [
            {"depth": at + 1, "reached": share, "accepted": share / before[at] if before[at] else 0.0}
            for at, share in enumerate(shares)
        ],
    }


def _chances(texts: Trails, overlap: Overlap | None) -> dict[str, Any]:
    """First guesses, and guesses after a miss."""
    seen = after_a_miss([trail for text in texts for trail in text])
    found: dict[str, Any] = {"first": seen.first, "coupled_match": None, "sum_min": None}
    after = {"observed": _after(seen)}
    if overlap is not None and overlap.positions:
        found |= {"coupled_match": overlap.coupled_match, "sum_min": overlap.sum_min}
        after |= {"plain_ranking": _after(overlap.plain()), "rejection": _after(overlap.rejection())}
    return {**found, "after_a_miss": after}


def _after(one: AfterMiss) -> dict[str, Any]:
    return {"first": one.first, "next_guesses": list(one.next_guesses)}


def _merged(overlaps: Any) -> Overlap | None:
    whole: Overlap | None = None
    for one in overlaps:
        whole = one if whole is None else whole.merged(one)
    return whole


def _live(run: LiveRun, texts: Trails, *, depth: int) -> dict[str, Any]:
    """Figures of a live run; for chains also why they differ from the teacher-forced ones."""
    figures = run.figures()
    if run.mode != "configured":
        whole = run.whole
        gap = explain(texts, depth=depth, live=whole.acceptance_length, ready_depths=ready_depths(whole.stats))
        figures["gap"] = asdict(gap)
    return figures


def cost_report(seconds: Seconds) -> dict[str, Any]:
    """Measured costs."""
    return {
        "target_token_ms": 1e3 * seconds.target_token_s,
        "draft_token_ms": 1e3 * seconds.draft_token_s,
        "draft_first_ms": 1e3 * seconds.draft_first_s,
        "draft_wide_ms": 1e3 * seconds.draft_wide_s,
        "wide_leaves": seconds.width,
        "ratio": seconds.cost_ratio,
        "verify": seconds.verify.table(),
    }


def whole_report(head: Mapping[str, Any], seconds: Seconds, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Everything; what stands at the top is that of the first temperature."""
    first = runs[0]
    top = ("temperature", "acceptance_length", "acceptance_from", "live", "chain", "table")
    return {**head, "cost": cost_report(seconds), **{key: first[key] for key in top}, "runs": list(runs)}
