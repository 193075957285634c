"""What spreading a target over processes of a machine costs or gains: `python -m dist_spec.bench.tensor_parallel [MODEL]`.

One process with one thread, one with as many threads as there are ranks, and targets of N ranks, all loaded at once; they
take turns, round by round, so that a busy machine hits all of them alike. A step is a forward and the choice of every row's
token. `deepspeed_shm` uses DeepSpeed's shared-memory sums (all ranks on one host; compiled at first use, about a minute).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from dist_spec.bench.arguments import at_least_1
from dist_spec.core.types import ForwardRow
from dist_spec.errors import ConfigError, WorkerError
from dist_spec.exits import run
from dist_spec.models.parallel.order import Wish
from dist_spec.models.parallel.place import TpPlace
from dist_spec.topology import listen_address, split_address, thread_env

CASES = ("one", "one_threads", "transformers", "deepspeed", "deepspeed_shm")
BLOCK = 16
SHAPES: dict[str, list[int]] = {"1 token": [], "8 tokens, tree": [-1, -1, 0, 0, 1, 2, 5]}
_TICK_S = 0.5

Timed = dict[str, list[float]]
"""Per shape, milliseconds of one step per round."""


def measure(model: str, *, cases: Sequence[str], ranks: int, dtype: str, context: int, rounds: int) -> dict[str, Timed]:
    """Milliseconds per case and shape.

    Raises:
        WorkerError: a process ended before its time.
    """
    spawn = multiprocessing.get_context("spawn")
    ends: dict[str, Connection] = {}
    processes = []
    for case in cases:
        ours, theirs = spawn.Pipe()
        ends[case] = ours
        size = 1 if case.startswith("one") else ranks
        port = split_address(listen_address("tcp://127.0.0.1:0"))[1]
        threads = ranks if case == "one_threads" else 1
        for rank in range(size):
            place = TpPlace(rank=rank, size=size, store_host="127.0.0.1", store_port=port, hosts_store=rank == 0)
            told = theirs if rank == 0 else None
            arguments = (case, place, told, model, dtype, context, threads)
            processes.append(spawn.Process(target=_work, args=arguments, name=f"{case}-{rank}", daemon=True))
            os.environ.update(thread_env(threads))
            processes[-1].start()
        theirs.close()
    try:
        return _take_turns(ends, rounds)
    except EOFError:
        raise WorkerError("a process of the measurement ended; its output above says why") from None
    finally:
        for end in ends.values():
            end.close()
        for process in processes:
            process.join(30)
            process.kill()


def _take_turns(ends: dict[str, Connection], rounds: int) -> dict[str, Timed]:
    for end in ends.values():
        end.recv()  # loaded
    times: dict[str, Timed] = {case: {shape: [] for shape in SHAPES} for case in ends}
    for turn in range(rounds + 2):
        for case, end in ends.items():
            for shape, found in times[case].items():
                end.send(shape)
                spent: float = end.recv()
                if turn >= 2:
                    found.append(1e3 * spent)
    return times


def _work(
    case: str, place: TpPlace, end: Connection | None, model: str, dtype: str, context: int, threads: int
) -> None:
    sys.exit(run(lambda: _serve(case, place, end, model=model, dtype=dtype, context=context, threads=threads)))


def _serve(
    case: str, place: TpPlace, end: Connection | None, *, model: str, dtype: str, context: int, threads: int
) -> None:
    import torch

    torch.set_num_threads(threads)
    if place.size == 1:
        from dist_spec.models.loading import load_model
        from dist_spec.models.runner import ModelRunner

        assert end is not None
        loaded = load_model(model, dtype=dtype, device="cpu")
        alone = ModelRunner(loaded, num_blocks=_blocks(context), block_size=BLOCK, batch_invariant=True)
        _answer(end, alone, lambda row: alone.forward([row]).numpy().argmax(axis=1), context=context)
        return
    from dist_spec.models.parallel.follow import Follower
    from dist_spec.models.parallel.group import TpGroup
    from dist_spec.models.parallel.load import load_shard
    from dist_spec.models.parallel.runner import Orders, ParallelRunner

    if case == "deepspeed_shm":
        os.environ["LOCAL_SIZE"] = str(place.size)  # as DeepSpeed's own launcher says it
    backend: Any = case.removesuffix("_shm")
    with TpGroup.join(place) as group:
        shard = load_shard(model, dtype=dtype, place=place, backend=backend, ordered=True)
        group.await_others()
        if end is None:
            Follower(shard, group=group, stopping=lambda: False).run()
            return
        spread = ParallelRunner(
            shard, orders=Orders(group), num_blocks=_blocks(context), block_size=BLOCK, batch_invariant=True
        )
        _answer(end, spread, lambda row: spread.launch_choosing([row], [Wish()]).wait(), context=context)
        spread.close()


def _answer(end: Connection, runner: Any, step: Callable[[ForwardRow], object], *, context: int) -> None:
    """Time steps as they are asked for, until nobody asks any more."""
    table = np.arange(_blocks(context), dtype=np.int32)
    tokens = np.random.default_rng(1).integers(0, 250, context + 1).astype(np.int32)
    runner.forward([_row(table, 0, tokens[:context], [], wanted=0)])
    rows = {
        shape: _row(table, context, tokens[: 1 + len(parents)], parents, wanted=1 + len(parents))
        for shape, parents in SHAPES.items()
    }
    end.send("ready")
    while True:
        try:
            if not end.poll(_TICK_S):
                runner.tick()
                continue
            shape = end.recv()
        except (EOFError, OSError):
            return
        start = time.perf_counter()
        step(rows[shape])
        end.send(time.perf_counter() - start)


def _row(table: np.ndarray, cached: int, tokens: np.ndarray, parents: list[int], *, wanted: int) -> ForwardRow:
    return ForwardRow(
        block_table=table,
        cached=cached,
        tokens=tokens,
        num_pending=len(tokens) - len(parents),
        parents=np.array(parents, dtype=np.int32),
        num_logits=wanted,
    )


def _blocks(context: int) -> int:
    return -(-(context + 16) // BLOCK)


def main() -> None:
    """Print the table; `ratio` is against one process with one thread (or the first case)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "model",
        nargs="?",
        default="random:llama?layers=12&hidden=512&heads=8&kv_heads=4&head_dim=64&ffn=1536&vocab=32000",
    )
    parser.add_argument("--cases", default="one,one_threads,transformers,deepspeed", help=", ".join(CASES))
    parser.add_argument("--ranks", type=at_least_1, default=2)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--context", type=at_least_1, default=128)
    parser.add_argument("--rounds", type=at_least_1, default=30)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cases = args.cases.split(",")
    if unknown := set(cases) - set(CASES):
        raise ConfigError(f"--cases: {', '.join(sorted(unknown))} is none", fix=f"use some of {', '.join(CASES)}")
    if any(case.startswith("deepspeed") for case in cases):
        from dist_spec.models.parallel.deepspeed import check_deepspeed

        check_deepspeed()
    times = measure(
        args.model, cases=cases, ranks=args.ranks, dtype=args.dtype, context=args.context, rounds=args.rounds
    )
    if args.json:
        print(json.dumps(times, indent=2))
        return
    print(f"{args.model} {args.dtype}, context {args.context}, {args.ranks} ranks; ms min / median of {args.rounds}")
    for shape in SHAPES:
        base = statistics.median(times[cases[0]][shape])
        for case in cases:
            found = times[case][shape]
            middle = statistics.median(found)
            print(f"{shape:15s} {case:14s} {min(found):8.2f} / {middle:8.2f}   ratio {middle / base:5.2f}")


if __name__ == "__main__":
    sys.exit(run(main))
