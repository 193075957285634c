"""The target over two GPUs, sums over NCCL: logits against one CPU process, choices, compaction, and text with a drafter.

Never run yet: no two GPUs were at hand when this was written. `tests/gpu/parallel_smoke.sh` runs it (under 4 minutes).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.parallel_ranks import Ranks, accepted
from tests.integration.test_parallel_runner import Case, check, compared
from tests.integration.test_tensor_parallel import SAMPLINGS, TARGET, config, scripted

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]


def test_two_gpus_give_the_logits_of_one_process(tmp_path: Path) -> None:
    cases = [
        Case(model="random:llama?vocab=261", batch_invariant=False),
        Case(model="random:gemma3_text?window=6", batch_invariant=False),
        Case(model="random:llama?hidden=48&heads=3&kv_heads=3", attention="replicated", batch_invariant=False),
    ]
    check(cases, compared(tmp_path, 2, cases, device="cuda"), rough=2e-3)


def test_text_on_two_gpus_with_a_drafter(tmp_path: Path) -> None:
    """Not bit-equal over batch shapes there; this float32 model's margins are wide, so its text does not change."""
    target = {"model": TARGET, "dtype": "float32", "device": "cuda:0", "max_model_len": 256}
    texts = []
    drafters: list[dict[str, object]] = []
    for name in ("plain", "drafted"):
        (tmp_path / name).mkdir()
        with Ranks(config(*drafters, target=target), tmp_path / name, device="cuda") as ranks:
            ranks.wait_ready()
            streams = ranks.decode(SAMPLINGS)
        texts.append([stream.tokens for stream in streams])
        drafters = [scripted(streams, tmp_path / "texts")]
    assert texts[0] == texts[1]
    assert accepted(streams) > 10
