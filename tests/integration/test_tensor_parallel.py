"""A target over several processes of their own group, with a drafter outside of it: the text is that of plain decoding on
the same ranks, and of one process up to rounding."""

from __future__ import annotations

import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dist_spec.config import Config, parse_config
from dist_spec.core.types import Sampling
from dist_spec.core.verification.equality import compare
from dist_spec.models.loading import LoadedModel, load_model
from dist_spec.server.client import Stream
from tests.integration.local_cluster import PLAIN, LocalCluster, prompts_of
from tests.integration.parallel_ranks import Ranks, accepted
from tests.integration.test_parallel_runner import Case, compared

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TARGET = "random:llama?seed=5&hidden=48"
FOUR = "random:llama?seed=5&hidden=64&heads=8&kv_heads=4&head_dim=8"
NUM_TOKENS = 48
SAMPLINGS = [
    Sampling(seed=11, max_tokens=NUM_TOKENS, ignore_eos=True),
    Sampling(seed=12, max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.8),
    # Processors and log probabilities need whole rows of logits: these are gathered, in the same steps.
    Sampling(seed=13, max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.8, top_k=20, repetition_penalty=1.1),
    Sampling(seed=14, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2),
]


def config(*drafters: dict[str, Any], model: str = TARGET, tp_size: int = 2, **changes: Any) -> Config:
    data: dict[str, Any] = {
        "target": {"model": model, "dtype": "float32", "max_model_len": 256, "threads": 1},
        "parallel": {"tp_size": tp_size, "timeout_s": 60.0},
        "drafters": list(drafters),
        "speculation": {"budget": 8},
        "transport": {"heartbeat_s": 0.2, "dead_after_s": 2.0},
    }
    return parse_config(data | changes)


def decoded(settings: Config, folder: Path) -> list[Stream]:
    """All of SAMPLINGS together; then the last rank is asked to end, and all end in peace."""
    folder.mkdir()
    with Ranks(settings, folder) as ranks:
        ranks.wait_ready()
        streams = ranks.decode(SAMPLINGS)
        ranks.signal(settings.parallel.tp_size - 1, signal.SIGTERM)
        assert ranks.ends(within_s=30) == [0] * settings.parallel.tp_size, ranks.logs()
    return streams


def scripted(plain: list[Stream], file: Path) -> dict[str, Any]:
    """A drafter, in a process of its own, that is right nine times in ten."""
    lines = [[*prompt, *stream.tokens] for prompt, stream in zip(prompts_of(len(plain)), plain, strict=True)]
    file.write_text("\n".join(" ".join(map(str, line)) for line in lines))
    return {"kind": "scripted", "name": "script", "text_file": str(file), "a": 0.9, "b": 0.5, "step_s": 0.0005}


@cache
def loaded(model: str) -> LoadedModel:
    return load_model(model, dtype="float32", device="cpu")


def alone(model: str) -> list[Stream]:
    """Plain decoding in one process, with margins."""
    runs = (LocalCluster(loaded(model), PLAIN, batch_invariant=False) for _ in SAMPLINGS)
    prompts = prompts_of(len(SAMPLINGS))
    return [
        cluster.run([prompt], [sampling])[0] for cluster, prompt, sampling in zip(runs, prompts, SAMPLINGS, strict=True)
    ]


def check_text(folder: Path, *, model: str, tp_size: int) -> None:
    plain = decoded(config(model=model, tp_size=tp_size), folder / "plain")
    script = scripted(plain, folder / "texts")
    drafted = decoded(config(script, model=model, tp_size=tp_size), folder / "drafted")
    assert [stream.tokens for stream in drafted] == [stream.tokens for stream in plain]
    assert [stream.logprobs for stream in drafted] == [stream.logprobs for stream in plain]
    assert len(plain[3].logprobs) == NUM_TOKENS
    assert accepted(drafted) > 0
    assert all(stream.stats["batch_invariant"] == 1.0 for stream in plain)
    (folder / "compared").mkdir()
    [found] = compared(folder / "compared", tp_size, [Case(model=model)])
    for reference, stream, sampling in zip(alone(model), drafted, SAMPLINGS, strict=True):
        verdict = compare(
            reference.tokens,
            stream.tokens,
            strict=False,
            margins=reference.margins,
            max_logit_difference=4 * found["difference"],  # measured on 30 rows; these texts have 200
            temperature=sampling.temperature,
        )
        assert verdict.equal, verdict


def test_text_on_two_ranks(tmp_path: Path) -> None:
    check_text(tmp_path, model=TARGET, tp_size=2)


@pytest.mark.long
def test_text_on_four_ranks(tmp_path: Path) -> None:
    check_text(tmp_path, model=FOUR, tp_size=4)


@pytest.mark.long
def test_text_of_a_real_model_on_three_ranks(tmp_path: Path) -> None:
    lookup = {"kind": "ngram", "name": "lookup", "placement": "leader"}
    plain = decoded(config(model="smollm2", tp_size=3), tmp_path / "plain")
    drafted = decoded(config(lookup, model="smollm2", tp_size=3), tmp_path / "drafted")
    assert [stream.tokens for stream in drafted] == [stream.tokens for stream in plain]
    assert sum(int(stream.stats["verified"]) for stream in drafted) > 0


@pytest.mark.long
def test_text_with_deepspeed_on_two_ranks(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    lookup = {"kind": "ngram", "name": "lookup", "placement": "leader"}
    parallel = {"tp_size": 2, "backend": "deepspeed", "timeout_s": 60.0}
    plain = decoded(config(model="smollm2", parallel=parallel), tmp_path / "plain")
    drafted = decoded(config(lookup, model="smollm2", parallel=parallel), tmp_path / "drafted")
    assert [stream.tokens for stream in drafted] == [stream.tokens for stream in plain]
    assert sum(int(stream.stats["verified"]) for stream in drafted) > 0
