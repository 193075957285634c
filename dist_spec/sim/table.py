"""The published methods as settings of one system, side by side in simulation: `python -m dist_spec.sim.table`.

Times are those of a 70B-like target on its own devices and a drafter on another: verification 18.3 ms flat to 32 nodes, a
draft step 2.5 ms for 24 leaves with 8 children each. The drafter's first guess is right with probability a, the next with
b of the rest, and so on.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from dist_spec.bench.arguments import at_least_1
from dist_spec.core.settings import Growth, Speculation, VerifyShape
from dist_spec.drafters.scripted import RankLaw
from dist_spec.exits import run
from dist_spec.sim.cluster import simulate
from dist_spec.sim.network import Link
from dist_spec.sim.scenario import Result, Scenario

LEAVES, CHILDREN, NODES = 24, 8, 32
FAN_OUT = 3
_NEVER_S = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """One column.

    Attributes:
        depths: draft lengths to try; the best one counts.
        with_b: whether the second guess matters, so that there is a figure for b = .45 and one for .60.
    """

    name: str
    depths: Sequence[int]
    with_b: bool = True

    def settings(self, depth: int) -> Speculation:
        """The four switches, and the numbers that go with them, at one draft length."""
        match self.name:
            case "plain":
                return Speculation(budget=0)
            case "sync chain":
                return _pulled("none", "chain", depth)
            case "sync tree":
                return _pulled("none", "tree", depth)
            case "optimistic":
                return Speculation(growth="optimistic", verify_shape="chain", budget=NODES, num_draft_tokens=depth)
            case "fan_out/pull":
                return _pulled("fan_out", "chain", depth)
            case "best_first/push":
                return Speculation(
                    budget=NODES, num_draft_tokens=depth, num_leaves=LEAVES, num_children=CHILDREN, max_nodes=4096
                )
        raise ValueError(f"no method {self.name!r}")


METHODS = (
    Method(name="plain", depths=(1,), with_b=False),
    Method(name="sync chain", depths=range(3, 9), with_b=False),
    Method(name="sync tree", depths=(3, 4, 5, 6, 7)),
    Method(name="optimistic", depths=(99,), with_b=False),
    Method(name="fan_out/pull", depths=(4, 5, 6, 7)),
    Method(name="best_first/push", depths=(99,)),
)
ROWS: tuple[tuple[float, float], ...] = ((0.8, 0.0), (0.8, 5.0), (0.87, 0.0), (0.87, 0.5), (0.87, 5.0))
"""(a, one-way latency in ms)"""

B_VALUES = (0.45, 0.6)


def _pulled(growth: Growth, shape: VerifyShape, depth: int) -> Speculation:
    return Speculation(
        growth=growth,
        delivery="pull",
        verify_shape=shape,
        on_miss="draft",
        budget=NODES,
        num_draft_tokens=depth,
        num_leaves=LEAVES,
        num_children=CHILDREN,
        fan_out=FAN_OUT,
        pull_timeout_s=_NEVER_S,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """Tokens per second, and the draft length that gave them."""

    tokens_per_s: float
    depth: int


def run_once(method: Method, *, a: float, b: float, latency_ms: float, depth: int, tokens: int, seed: int) -> Result:
    """One simulated run at one draft length. Heartbeats are so rare that they play no part."""
    scenario = Scenario(
        speculation=method.settings(depth),
        law=RankLaw(a=a, b=b),
        link=Link(latency_s=latency_ms / 1e3),
        num_drafters=0 if method.name == "plain" else 1,
        num_tokens=tokens,
        seed=seed,
        heartbeat_s=1e3,
        dead_after_s=1e4,
        limit_s=_NEVER_S,
    )
    return simulate(scenario)


def cell(method: Method, *, a: float, b: float, latency_ms: float, tokens: int, seeds: Sequence[int]) -> Cell:
    """The best draft length's mean over seeds."""
    cells = []
    for depth in method.depths:
        results = [
            run_once(method, a=a, b=b, latency_ms=latency_ms, depth=depth, tokens=tokens, seed=seed) for seed in seeds
        ]
        seconds = sum(result.seconds for result in results)
        cells.append(Cell(tokens_per_s=tokens * len(results) / seconds, depth=depth))
    return max(cells, key=lambda one: one.tokens_per_s)


def row(a: float, latency_ms: float, *, tokens: int, seeds: Sequence[int]) -> Iterator[tuple[str, list[Cell]]]:
    """(method, one cell or one per b) for one line of the table."""
    for method in METHODS:
        values = B_VALUES if method.with_b else (0.5,)
        yield method.name, [cell(method, a=a, b=b, latency_ms=latency_ms, tokens=tokens, seeds=seeds) for b in values]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m dist_spec.sim.table", description="Simulated tokens/s by method.")
    parser.add_argument("--tokens", type=at_least_1, default=4000, help="tokens per run (default: 4000)")
    parser.add_argument("--seeds", type=at_least_1, default=1, help="runs per figure (default: 1)")
    lines = 'only these lines, as "a/latency_ms" with commas between: .8/0,.87/5'
    parser.add_argument("--rows", type=_rows, default=ROWS, help=lines)
    options = parser.parse_args(arguments)
    table = Table(title="tokens/s; best draft length K per chain method; b = .45 - .60 where it matters")
    for name in ("a", "link ms", *(method.name for method in METHODS)):
        table.add_column(name, justify="right")
    for a, latency_ms in options.rows:
        cells = row(a, latency_ms, tokens=options.tokens, seeds=range(1, options.seeds + 1))
        texts = [" - ".join(_text(one) for one in found) for _, found in cells]
        table.add_row(f"{a:g}", f"{latency_ms:g}", *texts)
    Console(width=None if Console().is_terminal else 140).print(table)


def _rows(text: str) -> tuple[tuple[float, float], ...]:
    """Acceptance and latency per line of the table (for `argparse`)."""
    try:
        rows = tuple((float(a), float(ms)) for a, _, ms in (one.partition("/") for one in text.split(",")))
    except ValueError:
        rows = ((math.nan, math.nan),)
    if not all(0.0 < a < 1.0 and ms >= 0.0 for a, ms in rows):
        raise argparse.ArgumentTypeError(f"must be as in .8/0,.87/5 (0 < a < 1, latency in ms), got {text!r}")
    return rows


def _text(found: Cell) -> str:
    return f"{found.tokens_per_s:.0f}" + (f" (K{found.depth})" if 1 < found.depth < 99 else "")


if __name__ == "__main__":
    sys.exit(run(main))
