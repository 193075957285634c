"""What a forward costs beyond its matrix products: `python -m dist_spec.bench.forward_cost [MODEL]`.

Measured side by side in one process, round by round, so that a busy machine hits all of them alike: the bare products
(`F.linear` over every linear layer and the head), stock transformers, and our runner at 1 and 8 tokens in both modes.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from dist_spec.bench.arguments import at_least_1
from dist_spec.core.types import ForwardRow
from dist_spec.exits import run
from dist_spec.models.loading import LoadedModel, load_model
from dist_spec.models.runner import ModelRunner

BLOCK = 16


def measure(
    model: str, *, dtype: str = "bfloat16", device: str = "cpu", context: int = 128, rounds: int = 40
) -> dict[str, dict[str, float]]:
    """Milliseconds of each way of doing it: {"name": {"min": ..., "median": ...}}."""
    loaded = load_model(model, dtype=dtype, device=device)
    cases: dict[str, Callable[[], Any]] = {}
    for tokens in (1, 8):
        cases[f"bare products, {tokens} token(s)"] = _bare(loaded, tokens)
    cases["stock transformers, 1 token(s)"] = _stock(loaded, context)
    for invariant in (False, True):
        if invariant and loaded.device.type != "cpu":
            continue
        mode = "invariant" if invariant else "free"
        for shape, parents in _SHAPES.items():
            cases[f"runner {mode}, {shape}"] = _ours(loaded, context, parents, invariant=invariant)
    return _timed(cases, rounds, loaded.device.type == "cuda")


_SHAPES: dict[str, list[int]] = {
    "1 token(s)": [],
    "8 token(s) chain": [-1, 0, 1, 2, 3, 4, 5],
    "8 token(s) tree": [-1, -1, 0, 0, 1, 2, 5],
}


def _timed(cases: dict[str, Callable[[], Any]], rounds: int, synchronise: bool) -> dict[str, dict[str, float]]:
    times: dict[str, list[float]] = {name: [] for name in cases}
    with torch.inference_mode():
        for turn in range(rounds + 2):
            for name, run in cases.items():
                start = time.perf_counter()
                run()
                if synchronise:
                    torch.cuda.synchronize()
                if turn >= 2:
                    times[name].append(1e3 * (time.perf_counter() - start))
    return {name: {"min": min(t), "median": statistics.median(t)} for name, t in times.items()}


def _bare(loaded: LoadedModel, tokens: int) -> Callable[[], Any]:
    weights = [m.weight for m in loaded.model.modules() if isinstance(m, torch.nn.Linear)]
    widths = {w.shape[1] for w in weights}
    inputs = {n: torch.randn(tokens, n, dtype=loaded.dtype, device=loaded.device) for n in widths}
    return lambda: [F.linear(inputs[w.shape[1]], w) for w in weights]


def _stock(loaded: LoadedModel, context: int) -> Callable[[], Any]:
    """Transformers' own forward on its own cache. The runner loads its own copy, so this one stays untouched."""
    model = load_model(loaded.name, dtype=str(loaded.dtype).removeprefix("torch."), device=str(loaded.device)).model
    model.set_attn_implementation("sdpa")
    # The argument and the result's field were renamed from past_key_values to cache within the versions we allow.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with torch.inference_mode():
        cache = getattr(model(input_ids=_ids(context)[None].to(loaded.device), use_cache=True), name)
    last = _ids(1)[None].to(loaded.device)

    def run() -> None:
        model(input_ids=last, use_cache=True, **{name: cache})
        cache.crop(-1)

    return run


def _ours(loaded: LoadedModel, context: int, parents: list[int], *, invariant: bool) -> Callable[[], Any]:
    blocks = -(-(context + 16) // BLOCK)
    runner = ModelRunner(loaded, num_blocks=blocks, block_size=BLOCK, batch_invariant=invariant)
    table = np.arange(blocks, dtype=np.int32)
    ids = _ids(context + 8).numpy().astype(np.int32)

    def row(cached: int, tokens: np.ndarray, below: list[int], wanted: int) -> ForwardRow:
        return ForwardRow(
            block_table=table,
            cached=cached,
            tokens=tokens,
            num_pending=len(tokens) - len(below),
            parents=np.array(below, dtype=np.int32),
            num_logits=wanted,
        )

    runner.forward([row(0, ids[:context], [], 0)])
    step = row(context, ids[context : context + 1 + len(parents)], parents, 1 + len(parents))
    return lambda: runner.forward([step])


def _ids(count: int) -> torch.Tensor:
    return torch.randint(0, 250, (count,), generator=torch.Generator().manual_seed(1))


def main() -> None:
    """Print the table; `ratio` is against the bare products of one token."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--context", type=at_least_1, default=128)
    parser.add_argument("--rounds", type=at_least_1, default=40)
    parser.add_argument("--threads", type=at_least_1, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    table = measure(args.model, dtype=args.dtype, device=args.device, context=args.context, rounds=args.rounds)
    if args.json:
        print(json.dumps(table, indent=2))
        return
    base = table["bare products, 1 token(s)"]
    print(f"{args.model} {args.dtype} {args.device}, context {args.context}, {args.threads} thread(s); ms min / median")
    for name, t in table.items():
        ratio = t["median"] / base["median"]
        print(f"{name:36s} {t['min']:8.2f} / {t['median']:8.2f}   ratio {ratio:5.2f}")


if __name__ == "__main__":
    sys.exit(run(main))
