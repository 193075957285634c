"""The cache of teacher data: whole shards or none, one recipe, prompts by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dist_spec.distill.cache import MANIFEST, Cache
from dist_spec.distill.collect import Prompts, read_prompts
from dist_spec.errors import ConfigError
from tests.unit.distill_cases import folder_of, tiny_recipe, tiny_shard


def test_a_shard_comes_back_as_it_was(tmp_path: Path) -> None:
    cache, shard = Cache(tmp_path, recipe=tiny_recipe()), tiny_shard(seed=1)
    cache.write("train", 3, shard)
    found = cache.read("train", 3)
    assert cache.numbers("train") == [3]
    assert found.domain_names == ("chat",)
    for name in ("tokens", "features", "top_ids", "top_probs", "offsets", "prompt_lengths"):
        assert torch.equal(getattr(found, name), getattr(shard, name))
    # Per text: tokens behind the prompt, and the law after the prompt's last token.
    assert found.num_generated == sum(n - 4 + 1 for n in (14, 9, 11, 16))
    assert folder_of(tmp_path) == {MANIFEST, "train-00003.safetensors"}


@pytest.mark.parametrize("left", [0, 4, 9, 200, -1])
def test_a_torn_shard_counts_as_missing(tmp_path: Path, left: int) -> None:
    cache = Cache(tmp_path, recipe=tiny_recipe())
    cache.write("train", 0, tiny_shard(seed=1))
    cache.write("train", 1, tiny_shard(seed=2))
    file = cache.path("train", 0)
    file.write_bytes(file.read_bytes()[:left])
    assert not cache.has("train", 0)
    assert cache.numbers("train") == [1]


def test_what_was_written_aside_is_no_shard(tmp_path: Path) -> None:
    cache = Cache(tmp_path, recipe=tiny_recipe())
    (tmp_path / ".train-00000.safetensors.77").write_bytes(b"half")
    assert cache.numbers("train") == []


def test_another_recipe_is_refused_by_field(tmp_path: Path) -> None:
    Cache(tmp_path, recipe=tiny_recipe())
    Cache(tmp_path, recipe=tiny_recipe())
    with pytest.raises(ConfigError, match="max_new_tokens = 16, asked for is 17"):
        Cache(tmp_path, recipe=tiny_recipe(max_new_tokens=17))
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(ConfigError, match="is broken"):
        Cache(tmp_path, recipe=tiny_recipe())


def test_temperatures_have_nothing_to_do_with_the_domains_turn() -> None:
    recipe = tiny_recipe(temperatures=(0.0, 0.8, 0.0, 1.0))
    for period in (2, 3, 4, 6):
        for phase in range(period):
            greedy = sum(recipe.temperature(i) == 0 for i in range(phase, 3000, period))
            assert 0.4 < greedy / (3000 / period) < 0.6


def lines(path: Path, *texts: str) -> Path:
    file = path / "prompts.jsonl"
    file.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return file


def test_prompts_and_messages_are_read(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
    file = lines(tmp_path, json.dumps({"prompt": "Hé"}), "", json.dumps({"messages": chat, "domain": "talk"}))
    first, second = read_prompts(file)
    assert first.messages == ({"role": "user", "content": "Hé"},)
    assert (second.domain, second.messages) == ("talk", tuple(chat))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "no JSON"),
        ("[1]", "neither an object"),
        ('{"text": "x"}', "neither an object"),
        ('{"prompt": "x", "messages": []}', "neither an object"),
        ('{"prompt": 7}', '"prompt" must be text'),
        ('{"messages": []}', '"prompt" must be text'),
        ('{"messages": [{"role": "user"}]}', '"prompt" must be text'),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    file = lines(tmp_path, '{"prompt": "good"}', line, '{"prompt": "good too"}')
    with pytest.raises(ConfigError, match=f"line 2: {reason}"):
        read_prompts(file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nothing"):
        read_prompts(tmp_path / "nothing.jsonl")
    with pytest.raises(ConfigError, match="holds 1 prompts"):
        read_prompts(lines(tmp_path, '{"prompt": "alone"}'))


def test_own_prompts_are_split(tmp_path: Path) -> None:
    file = lines(tmp_path, *(json.dumps({"prompt": f"prompt {i}"}) for i in range(50)))
    prompts = Prompts(file, seed=0)
    held_out = {c.messages[0]["content"] for c in prompts.take("held_out", 0, 100)}
    train = {c.messages[0]["content"] for c in prompts.take("train", 0, 100)}
    assert held_out == {"prompt 0", "prompt 20", "prompt 40"}
    assert not held_out & train
    assert len(train) == 47


def test_built_in_prompts_are_split() -> None:
    prompts = Prompts(None, seed=0)
    held_out = {c.messages[-1]["content"] for c in prompts.take("held_out", 0, 60)}
    train = {c.messages[-1]["content"] for c in prompts.take("train", 0, 600)}
    assert len(held_out) == 60
    assert not held_out & train
    assert prompts.take("train", 0, 600) == Prompts(None, seed=0).take("train", 0, 600)
