"""The runner of a model over several ranks against the runner of one process: logits, choices, compaction, features, and the
checks at start. One process group per test runs many models; the leader writes what it found into a file."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dist_spec.core.noise import gumbel_row, request_key
from dist_spec.core.verification.build import build_rule
from dist_spec.core.verification.chosen import verdict_of
from dist_spec.free_port import free_port
from dist_spec.models import invariance
from dist_spec.models.loading import LoadedModel, load_model
from dist_spec.models.parallel.follow import Follower
from dist_spec.models.parallel.group import TpGroup
from dist_spec.models.parallel.load import load_shard
from dist_spec.models.parallel.order import Wish
from dist_spec.models.parallel.place import TpPlace
from dist_spec.models.parallel.runner import Orders, ParallelRunner
from dist_spec.models.runner import ModelRunner
from tests.integration.parallel_ranks import hide_gpus, on_device, spawn
from tests.unit.model_cases import ids, row

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TABLE = [3, 7, 1, 6, 0, 5, 2, 4]
RIDER = list(range(8, 16))
KEY = request_key(3, 0)


@dataclass(frozen=True, kw_only=True)
class Case:
    model: str
    dtype: str = "float32"
    attention: str = "sharded"
    backend: str = "transformers"
    batch_invariant: bool = True


def played(runner: ModelRunner | ParallelRunner) -> dict[str, Any]:
    """Prefill with a rider, a tree, its compaction, and a step beyond; with the logits of all of them."""
    tokens = ids(20)
    runner.capture([0])
    parts = [runner.forward([row(TABLE, 0, tokens[:9]), row(RIDER, 0, ids(5, seed=1))])]
    drafted = row(TABLE, 9, [tokens[9], 249, tokens[10], 248, tokens[11]], [-1, -1, 1, 1])
    pending = runner.launch([row(RIDER, 5, ids(2, seed=2)), drafted])
    parts.append(pending.wait())
    features = pending.features([2, 3])
    runner.compact([drafted], [[1, 3]])
    parts.append(runner.forward([row(TABLE, 12, tokens[12:])]))
    return {"logits": torch.cat(parts).cpu().numpy(), "features": features}


def decided(runner: ParallelRunner) -> list[bool]:
    """Whether the verdict by choices is that of the rule on the gathered rows, to the last bit of the margin."""
    tree = row(TABLE, 20, [5, 249, 7, 248, 9], [-1, -1, 1, 1])
    rider = row(RIDER, 7, [4])
    same = []
    for temperature in (0.0, 0.8):
        wish = Wish(temperature=temperature, key=KEY, index=4)
        mixed = runner.launch_choosing([tree, rider], [wish, None], with_margin=True)
        rest, chosen = mixed.wait(), mixed.chosen(0)
        whole = runner.forward([tree, rider])
        rule = build_rule("auto", temperature=temperature, with_margin=True)
        nodes = {"tokens": tree.tokens[1:], "parents": tree.parents}
        width = runner.vocab_size
        expected = rule.verify(
            **nodes, logits=whole[:5], noise_row=lambda depth, n=width: gumbel_row(KEY, 4 + depth, n)
        )
        same += [verdict_of(chosen, **nodes, with_margin=True) == expected, torch.equal(rest, whole[5:])]
    return same


def rank_main(place: TpPlace, cases: list[Case], result: str) -> int:
    torch.set_num_threads(1)
    hide_gpus(place)
    found = []
    with TpGroup.join(place) as group:
        for case in cases:
            loaded = load_shard(
                case.model,
                dtype=case.dtype,
                place=place,
                backend=case.backend,  # type: ignore[arg-type]
                attention=case.attention,  # type: ignore[arg-type]
                ordered=case.batch_invariant,
            )
            group.await_others()
            if place.is_leader:
                found.append(lead(case, loaded, group))
            else:
                Follower(loaded, group=group, stopping=lambda: False).run()
    if place.is_leader:
        Path(result).write_bytes(pickle.dumps(found))
    return 0


def lead(case: Case, loaded: LoadedModel, group: TpGroup) -> dict[str, Any]:
    runner = ParallelRunner(
        loaded, orders=Orders(group), num_blocks=16, block_size=4, batch_invariant=case.batch_invariant, noise_rows=8
    )
    invariance.check_against_stock(loaded, runner)
    found = {"probe": invariance.probe(runner), **played(runner), "same": decided(runner), "shard": loaded.shard}
    runner.close()
    return found


def compared(folder: Path, size: int, cases: list[Case], *, device: str = "cpu") -> list[dict[str, Any]]:
    """What the ranks found, each with the largest logit difference to one process (on the CPU)."""
    port, result = free_port(), folder / "found"
    places = [
        TpPlace(
            rank=rank,
            size=size,
            store_host="127.0.0.1",
            store_port=port,
            hosts_store=rank == 0,
            **on_device(device, rank),
        )
        for rank in range(size)
    ]
    processes = [spawn(rank_main, place, cases, str(result), log=folder / f"rank{place.rank}") for place in places]
    for process in processes:
        process.join(240)
        assert process.exitcode == 0, "\n".join(file.read_text() for file in sorted(folder.glob("rank*")))
    found: list[dict[str, Any]] = pickle.loads(result.read_bytes())
    for case, one in zip(cases, found, strict=True):
        loaded = load_model(case.model, dtype=case.dtype, device="cpu")
        runner = ModelRunner(loaded, num_blocks=16, block_size=4, batch_invariant=case.batch_invariant)
        alone = played(runner)
        one["scale"] = float(np.abs(alone["logits"]).max())
        one["difference"] = float(np.abs(one["logits"] - alone["logits"]).max())
        one["features_difference"] = float(np.abs(one["features"] - alone["features"]).max())
    return found


def check(cases: list[Case], found: list[dict[str, Any]], *, rough: float = 2e-5) -> None:
    """Args: rough: logit difference that rounding explains in float32, relative to the largest logit."""
    for case, one in zip(cases, found, strict=True):
        limit = 0.08 if case.dtype == "bfloat16" else rough
        assert 0.0 < one["difference"] < limit * one["scale"], (case, one["difference"])
        assert one["features_difference"] < max(limit, 2e-3) * 10, case
        assert all(one["same"]), (case, one["same"])
        if case.batch_invariant:
            assert one["probe"].bit_equal, (case, one["probe"])


def test_two_ranks_give_the_logits_of_one_process(tmp_path: Path) -> None:
    """Odd vocabularies, sliding windows, tied heads, heads that two ranks do not divide, bfloat16."""
    cases = [
        Case(model="random:llama?vocab=261"),
        Case(model="random:qwen3?window=6", batch_invariant=False),
        Case(model="random:gemma3_text?window=6"),
        Case(model="random:mistral?window=6", dtype="bfloat16"),
        Case(model="random:llama?hidden=48&heads=3&kv_heads=3", attention="replicated"),
    ]
    found = compared(tmp_path, 2, cases)
    check(cases, found)
    assert (found[-1]["shard"].heads, found[0]["shard"].heads) == (3, 2)


def test_four_ranks_are_bit_equal_over_batch_shapes(tmp_path: Path) -> None:
    cases = [Case(model="random:llama?heads=8&kv_heads=4&head_dim=8")]
    check(cases, compared(tmp_path, 4, cases))


@pytest.mark.long
def test_three_ranks_of_a_real_model(tmp_path: Path) -> None:
    cases = [Case(model="smollm2")]
    check(cases, compared(tmp_path, 3, cases))


@pytest.mark.parametrize(
    ("model", "heads"),
    [("random:llama?hidden=48&heads=3&kv_heads=3&vocab=261", 2), pytest.param("smollm2", 6, marks=pytest.mark.long)],
)
def test_deepspeed_shares_out_what_two_ranks_do_not_divide(tmp_path: Path, model: str, heads: int) -> None:
    pytest.importorskip("deepspeed")
    cases = [Case(model=model, backend="deepspeed")]
    found = compared(tmp_path, 2, cases)
    check(cases, found)
    assert found[0]["shard"].heads == heads
