"""`dist-spec check`: what is wrong with models, tokenizers, devices and memory is found before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dist_spec.commands import check as check_module
from dist_spec.commands.check import check_all, run_check
from dist_spec.commands.footprint import model_footprint
from dist_spec.config import Config, ParallelConfig, parse_config
from dist_spec.errors import ConfigError, DistSpecError, ModelError, TokenizerMismatchError
from dist_spec.models.head_formats import save_head
from dist_spec.models.head_target import facts_of
from dist_spec.models.tokenizer import Tokenizer, load_tokenizer
from tests.unit.head_cases import target as head_target
from tests.unit.head_cases import tiny_head

TINY = "random:llama?seed=1&layers=2&hidden=64&heads=4&kv_heads=2&max_len=256"


def configured(*drafters: dict[str, Any], **target: Any) -> Config:
    data = {"target": {"model": TINY, "dtype": "float32", **target}, "drafters": list(drafters)}
    return parse_config(data)


def only_problem(config: Config) -> DistSpecError:
    with Path("/dev/null").open("w") as nowhere, pytest.raises(DistSpecError) as caught:
        run_check(config, source="c.yaml", console=Console(file=nowhere))
    return caught.value


def test_a_good_configuration_has_no_problems() -> None:
    drafters = ({"kind": "ngram"}, {"kind": "ngram", "placement": "leader"}, {"kind": "model", "model": TINY})
    report = check_all(configured(*drafters), source="c.yaml")
    assert report.problems == []
    assert [name for name, _, _ in report.needs] == ["target", "ngram0", "model2"]
    assert ("model2: tokenizer", "ok", "the target's") in report.lines


def test_memory_is_reckoned_from_shapes() -> None:
    footprint = model_footprint(TINY, dtype="bfloat16", max_model_len=100, max_sequences=3, kv_block_size=16)
    head_dim = 64 // 4
    assert footprint.kv_bytes == 3 * 112 * 2 * 2 * 2 * head_dim * 2
    full = model_footprint(TINY, dtype="float32", max_model_len=None, max_sequences=3, kv_block_size=16)
    assert full.max_model_len == 256
    # In bfloat16 on a CPU the linear layers are kept a second time, laid out; all that is not linear is small here.
    elsewhere = model_footprint(
        TINY, dtype="bfloat16", max_model_len=100, max_sequences=3, kv_block_size=16, device="cuda:0", num_tree_slots=9
    )
    assert full.weights_bytes == 2 * elsewhere.weights_bytes
    assert 1.5 * elsewhere.weights_bytes < footprint.weights_bytes < 2 * elsewhere.weights_bytes
    assert elsewhere.kv_bytes == footprint.kv_bytes  # 109 slots need 7 blocks of 16 too


def test_every_rank_has_its_share_of_the_target() -> None:
    alone = check_all(configured(), source="c.yaml").needs[0][2]
    spread = configured().model_copy(update={"parallel": ParallelConfig(tp_size=2)})
    report = check_all(spread, source="c.yaml")
    assert [name for name, _, _ in report.needs] == ["target", "target-1"]
    share = report.needs[1][2]
    assert alone is not None
    assert share is not None
    assert share.kv_bytes == alone.kv_bytes / 2
    assert 0.5 * alone.weights_bytes < share.weights_bytes < 0.52 * alone.weights_bytes  # norms are whole everywhere
    whole = spread.model_copy(update={"parallel": ParallelConfig(tp_size=2, attention="replicated")})
    report = check_all(whole, source="c.yaml")
    assert report.needs[0][2] is not None
    assert report.needs[0][2].kv_bytes == alone.kv_bytes
    assert report.needs[0][2].weights_bytes > share.weights_bytes
    assert (
        "4 attention heads" in only_problem(spread.model_copy(update={"parallel": ParallelConfig(tp_size=4)})).message
    )


def test_too_long_contexts_are_found() -> None:
    error = only_problem(configured(max_model_len=10_000))
    assert isinstance(error, ModelError)
    assert "256 positions" in error.message
    assert "256 or less" in (error.fix or "")


def test_too_little_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "_free_bytes", lambda device: 1 << 20)
    error = only_problem(configured())
    assert "0.00 GiB are free" in error.message
    assert "max_sequences" in (error.fix or "")


def test_models_that_cannot_be_read_are_found(tmp_path: Path) -> None:
    assert "no config.json" in only_problem(configured(model=str(tmp_path))).message
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    assert "no *.safetensors" in only_problem(configured(model=str(tmp_path))).message
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 40)
    assert "damaged" in only_problem(configured(model=str(tmp_path))).message
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    assert "config.json" in only_problem(configured(model=str(tmp_path))).message


def test_other_tokenizers_are_found_with_the_first_id(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "random:llama?seed=2"

    def load(model: str) -> Tokenizer:
        tokenizer = load_tokenizer(model)
        if model == other:
            tokenizer.token_map[77] = "another"
        return tokenizer

    monkeypatch.setattr("dist_spec.models.tokenizer.load_tokenizer", load)
    assert not check_all(configured({"kind": "model", "model": other}), source="test").problems
    error = only_problem(configured({"kind": "model", "model": other, "vocabulary": "same"}))
    assert isinstance(error, TokenizerMismatchError)
    assert "id 77 is 'M'" in error.message
    assert "'another'" in error.message


def test_files_and_modules_of_small_drafters_are_looked_for(tmp_path: Path) -> None:
    missing = {"kind": "scripted", "text_file": str(tmp_path / "no.txt")}
    assert "no.txt" in only_problem(configured(missing)).message
    (tmp_path / "no.txt").write_text("words", encoding="utf-8")
    assert "cannot read text_file" in only_problem(configured(missing)).message
    assert "no module nowhere_xyz" in only_problem(configured({"kind": "plugin", "target": "nowhere_xyz.a:B"})).message
    assert check_all(configured({"kind": "plugin", "target": "json.decoder:JSONDecoder"}), source="c").problems == []


def test_a_head_is_checked_against_its_target_and_its_memory_is_reckoned(tmp_path: Path) -> None:
    target = "random:llama?seed=5&hidden=48&layers=4"
    vocabulary = facts_of(head_target(target)).vocabulary
    save_head(tiny_head(target, vocabulary=vocabulary), tmp_path / "fits")
    save_head(tiny_head(target, vocabulary=vocabulary, target_layers=9), tmp_path / "other")
    config = configured({"kind": "head", "model": str(tmp_path / "fits"), "window": 64}, model=target)
    report = check_all(config, source="test")
    assert report.problems == []
    [footprint] = [found for name, _, found in report.needs if name == "head0"]
    assert footprint is not None
    slots = (2 * 64 + 512) * config.target.max_sequences
    assert footprint.kv_bytes == slots * (2 * 2 * 8 + 32) * 2
    assert footprint.weights_bytes > 2 * 259 * 48
    error = only_problem(configured({"kind": "head", "model": str(tmp_path / "other")}, model=target))
    assert "target_layers is 9" in error.message
    assert "does not exist" in only_problem(configured({"kind": "head", "model": "nowhere"}, model=target)).message


def test_devices_that_are_not_there_and_several_problems_at_once() -> None:
    error = only_problem(configured({"kind": "scripted", "text_file": "no.txt"}, device="cuda:99"))
    assert isinstance(error, ConfigError)
    assert "2 checks failed" in error.message
    assert "no device cuda:99" in error.message
    assert "no.txt" in error.message
