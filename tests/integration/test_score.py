"""`dist-spec score` as a user types it, through real processes: live figures against teacher-forced ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dist_spec.core.types import Sampling
from dist_spec.models.head_formats import save_head
from dist_spec.models.head_target import facts_of
from dist_spec.models.tokenizer import load_tokenizer
from tests.integration.local_cluster import PLAIN, LocalCluster
from tests.integration.test_commands import run
from tests.unit.head_cases import fitted_head, target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TARGET = "random:llama?seed=5&hidden=48"
SETTINGS = f"""
target: {{model: "{TARGET}", dtype: float32, max_model_len: 512, threads: 1}}
drafters:
  - {{kind: model, name: twin, model: "{TARGET}", dtype: float32}}
  - {{kind: model, name: other, model: "random:llama?seed=6&hidden=48&layers=1", dtype: float32}}
  - {{kind: ngram, name: lookup, placement: leader}}
sampling: {{ignore_eos: true, max_tokens: 25}}
"""
PROMPTS = [
    {"prompt": "one two three", "domain": "counting"},
    {"prompt": "aba aba aba aba", "domain": "copying"},
    {"prompt": "four five", "domain": "counting"},
]


def scored(tmp_path: Path, *words: str, text: str = SETTINGS) -> dict[str, Any]:
    settings, prompts, out = tmp_path / "settings.yaml", tmp_path / "prompts.jsonl", tmp_path / "out.json"
    settings.write_text(text)
    prompts.write_text("\n".join(map(json.dumps, PROMPTS)))
    done = run("score", "--config", settings, "--prompts", prompts, "--json", out, *words)
    assert done.returncode == 0, done.stderr
    assert "what to expect" in done.stderr
    report: dict[str, Any] = json.loads(out.read_text())
    return report


def test_the_target_as_its_own_drafter_scores_1_live_and_forced(tmp_path: Path) -> None:
    report = scored(tmp_path, "--drafter", "twin", "--num-draft-tokens", "3")
    # Every text: the prompt's step gives 1 token, then 6 times 4.
    assert report["acceptance_length"] == report["live"]["synchronous"]["acceptance_length"] == 25 / 7
    assert report["live"]["synchronous"]["verifications"] == 3 * 7
    assert report["acceptance_from"].startswith("live")
    assert 1.0 <= report["live"]["streamed"]["acceptance_length"] <= 4.0
    assert [one["temperature"] for one in report["runs"]] == [0.0, 0.8]
    greedy, sampled = report["runs"]
    for one in (greedy, sampled):
        assert one["num_positions"] == 75
        assert one["first"] == 1.0
        assert one["chain"]["acceptance_length"] == 4.0
        assert [row["reached"] for row in one["chain"]["by_depth"]] == [1.0] * 8
        assert list(one["domains"]) == ["counting", "copying"]
        assert one["domains"]["counting"]["live"]["synchronous"] == 25 / 7
        gap = one["live"]["synchronous"]["gap"]
        assert gap["teacher_forced"] - gap["live"] == pytest.approx(gap["no_tree"] + gap["shallow"], abs=1e-9)
        assert gap["no_tree"] == pytest.approx(3 / 7)  # the prompt's step, one of seven
        lengths = [row["length"] for row in one["table"] if row["shape"] == "chain"]
        assert lengths == [2.0, 3.0, 4.0, 5.0, 7.0, 9.0]
    assert greedy["coupled_match"] is None
    assert sampled["coupled_match"] == pytest.approx(1.0, abs=1e-3)
    assert sampled["sum_min"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("drafter", ["other", "lookup"])
def test_synchronous_live_chains_are_those_that_were_walked(tmp_path: Path, drafter: str) -> None:
    """With a chain ready at every start but the prompt's, nothing is left unexplained."""
    report = scored(tmp_path, "--drafter", drafter, "--live", "synchronous", "--num-draft-tokens", "2")
    for one in report["runs"]:
        live = one["live"]["synchronous"]
        assert live["num_tokens"] == one["num_positions"]
        assert live["acceptance_length"] <= one["chain"]["walked_length"] + 0.35
        assert abs(live["gap"]["rest"]) < 0.25
        table = one["table"]
        assert [row["length"] for row in table if row["shape"] == "chain"] == sorted(
            row["length"] for row in table if row["shape"] == "chain"
        )
        assert one["sum_min"] is None or 0.0 <= one["coupled_match"] <= one["sum_min"] + 1e-6


def test_without_live_runs_texts_are_plain_and_the_headline_is_walked(tmp_path: Path) -> None:
    report = scored(tmp_path, "--drafter", "twin", "--live", "none", "--temperature", "0")
    assert report["live"] == {}
    assert report["acceptance_length"] == report["chain"]["walked_length"] == 5.0  # 25 tokens in 5 steps of 5
    assert len(report["runs"]) == 1


HEADS_TARGET = "random:llama?seed=5&hidden=48&layers=4"


def test_a_draft_head_is_told_features_and_scores_alike_live_and_forced(tmp_path: Path) -> None:
    """A head that knows the texts by heart: nearly all of its guesses stand, both ways."""
    tokenizer = load_tokenizer(HEADS_TARGET)
    texts = []
    for entry in PROMPTS:
        prompt = tokenizer.encode(entry["prompt"])
        sampling = Sampling(max_tokens=25, ignore_eos=True)
        [stream] = LocalCluster(target(HEADS_TARGET), PLAIN).run([prompt], [sampling])
        texts.append([*prompt, *stream.tokens])
    head = fitted_head(texts, name=HEADS_TARGET, steps=80, vocabulary=facts_of(target(HEADS_TARGET)).vocabulary)
    save_head(head, tmp_path / "head", bits=16)
    text = f"""
target: {{model: "{HEADS_TARGET}", dtype: float32, max_model_len: 512, threads: 1}}
drafters: [{{kind: head, name: head, model: "{tmp_path / "head"}", dtype: float32}}]
sampling: {{ignore_eos: true, max_tokens: 25}}
"""
    words = ("--no-chat", "--temperature", "0", "--temperature", "0.8", "--live", "synchronous")
    report = scored(tmp_path, *words, "--num-draft-tokens", "2", text=text)
    greedy, sampled = report["runs"]
    assert greedy["first"] > 0.9
    assert greedy["chain"]["acceptance_length"] > 2.3
    assert report["acceptance_length"] > 2.0
    assert abs(greedy["live"]["synchronous"]["gap"]["rest"]) < 0.5  # a prompt's features may come a step late
    assert 0.0 < sampled["sum_min"] < 1.0
    assert sampled["sum_min"] / 2 < sampled["coupled_match"] <= sampled["sum_min"] + 1e-6
