"""What choosing tokens costs, without a model: `python -m dist_spec.bench.verdict_cost`.

Rows of made-up logits whose head looks like a language model's stand at the nodes of a chain that is right to its end, so
that every row is visited: processors, noise and verdict of one step, nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from time import perf_counter

import numpy as np
import torch

from dist_spec.bench.arguments import at_least_1
from dist_spec.core.noise import NoiseRing, request_key
from dist_spec.core.sampling.history import History
from dist_spec.core.sampling.pipeline import Pipeline
from dist_spec.core.types import Sampling
from dist_spec.core.verification.build import build_rule
from dist_spec.exits import run

CASES: dict[str, Sampling] = {
    "greedy": Sampling(temperature=0.0),
    "temperature .8": Sampling(temperature=0.8),
    "+ top-p .95": Sampling(temperature=0.8, top_p=0.95),
    "+ top-k 50": Sampling(temperature=0.8, top_k=50),
    "+ min-p .05": Sampling(temperature=0.8, min_p=0.05),
    "+ penalties": Sampling(temperature=0.8, repetition_penalty=1.1, frequency_penalty=0.1, presence_penalty=0.1),
    "+ bad words, min tokens, bias": Sampling(
        temperature=0.8, bad_words=((3,), (4, 5)), min_tokens=100, stop_token_ids=(2,), logit_bias=((9, 1.0),)
    ),
    "+ top-p, penalties, 5 logprobs": Sampling(
        temperature=0.8, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.1, logprobs=5
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Medians over the rounds, in milliseconds per step: making the noise rows, and the verdict with its processors.
    `support` is the number of tokens left at the first row."""

    noise_ms: float
    verdict_ms: float
    support: int


def measure(
    sampling: Sampling,
    *,
    num_rows: int = 8,
    vocab_size: int = 49_152,
    spread: float = 3.5,
    rounds: int = 50,
    with_margin: bool = False,
) -> Cost:
    """Cost of one step of `num_rows` visited rows.

    Args:
        spread: standard deviation of the made-up logits (less: flatter).
        with_margin: report margins too, as a target does whose forwards are not bit-equal.
    """
    draw = np.random.default_rng(1)
    logits = (spread * draw.standard_normal((num_rows, vocab_size))).astype(np.float32)
    logits[:, :20] += np.linspace(8.8, 4.8, 20, dtype=np.float32) * spread / 3.5
    rows = torch.from_numpy(logits)
    tokens = draw.integers(0, vocab_size, 600).tolist()
    pipeline = Pipeline(sampling, history=History(tokens, prompt_length=300), end_ids=(0,))
    rule = build_rule("auto", temperature=sampling.temperature, with_margin=with_margin)
    ring = NoiseRing(vocab_size, num_rows)
    key = request_key(1, 0)
    chain: tuple[int, ...] = ()

    def verdict() -> None:
        nonlocal chain
        found = rule.verify(
            tokens=np.array(chain, np.int32),
            parents=np.arange(-1, len(chain) - 1, dtype=np.int32),
            logits=rows[: len(chain) + 1],
            noise_row=lambda depth: ring.row(key, depth),
            pipeline=pipeline,
        )
        chain = found.tokens[: num_rows - 1]

    spare, seeds = NoiseRing(vocab_size, num_rows), count(2)

    def noise() -> None:
        fresh = request_key(next(seeds), 0)
        for depth in range(num_rows):
            spare.prepare(fresh, depth)

    for _ in range(num_rows):
        verdict()
    support = pipeline.support(logits[0])
    return Cost(
        noise_ms=_median_ms(noise, rounds=rounds) if rule.needs_noise else 0.0,
        verdict_ms=_median_ms(verdict, rounds=rounds),
        support=int(np.count_nonzero(support.scores > -np.inf)),
    )


def _median_ms(work: Callable[[], None], *, rounds: int) -> float:
    times: list[float] = []
    for _ in range(rounds + 2):
        start = perf_counter()
        work()
        times.append(1e3 * (perf_counter() - start))
    return statistics.median(times[2:])


def main() -> None:
    """Print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=at_least_1, default=8)
    parser.add_argument("--vocab", type=at_least_1, default=49_152)
    parser.add_argument("--spread", type=float, default=3.5, help="of the logits; less is flatter")
    parser.add_argument("--rounds", type=at_least_1, default=50)
    parser.add_argument("--margins", action="store_true", help="as a target does whose forwards are not bit-equal")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{args.rows} visited rows of {args.vocab}; milliseconds per step, medians")
    print(f"{'':32s} {'noise':>7s} {'verdict':>8s} {'sum':>7s} {'support':>8s}")
    for name, sampling in CASES.items():
        cost = measure(
            sampling,
            num_rows=args.rows,
            vocab_size=args.vocab,
            spread=args.spread,
            rounds=args.rounds,
            with_margin=args.margins,
        )
        total = cost.noise_ms + cost.verdict_ms
        print(f"{name:32s} {cost.noise_ms:7.2f} {cost.verdict_ms:8.2f} {total:7.2f} {cost.support:8d}")


if __name__ == "__main__":
    sys.exit(run(main))
