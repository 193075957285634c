"""Texts that end in a loop, reported apart: repetition is easy to draft and flatters every figure. It knows tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dist_spec.bench.run import RunResult
from dist_spec.server.client import Stream

MAX_PERIOD = 32
MIN_REPEATS = 4
MIN_TOKENS = 64


def looping_tail(tokens: Sequence[int]) -> int:
    """Length of the tail that repeats a period of at most 32 tokens at least 4 times over at least 64 tokens; 0: none."""
    longest = 0
    for period in range(1, min(MAX_PERIOD, len(tokens) // MIN_REPEATS) + 1):
        same = 0
        while same + period < len(tokens) and tokens[-1 - same] == tokens[-1 - same - period]:
            same += 1
        length = same + period if same else 0
        if length >= max(MIN_REPEATS * period, MIN_TOKENS):
            longest = max(longest, length)
    return longest


def speed_before(streams: Sequence[Stream], tails: Sequence[int]) -> tuple[int, float]:
    """(tokens before the tails, seconds that the requests took for them), as if every request had ended there."""
    tokens, seconds = 0, 0.0
    for stream, tail in zip(streams, tails, strict=True):
        wanted = len(stream.tokens) - tail
        tokens += wanted
        if not tail:
            seconds += stream.closed_s - stream.opened_s
            continue
        have, before_s = 0, stream.opened_s
        for now, count in stream.times:
            if have + count >= wanted:
                # The part of a commit that lies before the tail takes its share of the commit's time.
                before_s += (now - before_s) * (wanted - have) / count
                break
            have, before_s = have + count, now
        seconds += before_s - stream.opened_s
    return tokens, seconds


def loop_figures(ours: RunResult, plain: RunResult | None = None) -> dict[str, Any]:
    """Tokens and speed of the requests with and without looping tails, and the ratios to plain either way.

    Speeds are tokens over the requests' own seconds, so they do not change with how many run at once.
    """
    tails = [looping_tail(stream.tokens) for stream in ours.streams]
    report: dict[str, Any] = {"num_texts": sum(tail > 0 for tail in tails), "num_tokens": sum(tails)}
    runs = {"": ours} if plain is None else {"": ours, "_plain": plain}
    for name, run in runs.items():
        own = tails if name == "" else [min(tail, len(s.tokens)) for tail, s in zip(tails, run.streams, strict=True)]
        for suffix, cut in (("with", [0] * len(own)), ("without", own)):
            tokens, seconds = speed_before(run.streams, cut)
            report[f"tokens_per_s{name}_{suffix}"] = tokens / seconds if seconds > 0 else None
    if plain is not None:
        for suffix in ("with", "without"):
            mine, theirs = report[f"tokens_per_s_{suffix}"], report[f"tokens_per_s_plain_{suffix}"]
            report[f"speedup_vs_plain_{suffix}"] = mine / theirs if mine and theirs else None
    return report
