"""What becomes of prompts before the target reads them: files by line, templates that are missing or refuse, long ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dist_spec.distill.cache import joined
from dist_spec.distill.collect import Prompts as Source
from dist_spec.distill.collect import make_recipe, pages, prompt_tokens, read_prompts
from dist_spec.distill.generate import Opening
from dist_spec.errors import ConfigError, ModelError
from dist_spec.models.loading import load_model
from tests.unit.distill_cases import tiny_shard

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hello?"}
ANSWER = {"role": "assistant", "content": "Hello."}


def written(path: Path, *lines: str) -> Path:
    file = path / "own.jsonl"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_a_line_ends_where_json_lines_do(tmp_path: Path) -> None:
    texts = ["one\u2028line", "two\x0b\x85", "three"]
    file = written(tmp_path, *(json.dumps({"prompt": text}, ensure_ascii=False) for text in texts))
    assert [one.messages[0]["content"] for one in read_prompts(file)] == texts


def test_a_prompt_that_is_there_twice_is_not_trained_on_and_held_out(tmp_path: Path) -> None:
    file = written(tmp_path, *(json.dumps({"prompt": f"prompt {i % 21}"}) for i in range(60)))
    prompts = Source(file, seed=0)
    held_out, train = (
        {one.messages[0]["content"] for one in prompts.take(split, 0, 200)} for split in ("held_out", "train")
    )
    assert not held_out & train
    assert len(held_out | train) == 21
    with pytest.raises(ConfigError, match="holds 1 prompts"):
        read_prompts(written(tmp_path, '{"prompt": "alone"}', '{"prompt": "alone"}'))


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "\\ud800"}',
        '{"prompt": " "}',
        '{"messages": [{"role": "user", "content": ""}]}',
        '{"prompt": ' + "[" * 100_000,
    ],
)
def test_what_no_tokenizer_can_read_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match="line 2"):
        read_prompts(written(tmp_path, '{"prompt": "good"}', line))


class Words:
    """A tokenizer whose ids are characters, with a chat template that takes some roles."""

    def __init__(self, *roles: str) -> None:
        self.chat_template = "there is one" if roles else None
        self._roles = roles

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def apply_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if any(one["role"] not in self._roles for one in messages):
            raise ModelError("the template failed")
        return self.encode("|".join(f"{one['role']}:{one['content']}" for one in messages))


def said(tokenizer: Any, *messages: Mapping[str, str]) -> str:
    return "".join(map(chr, prompt_tokens(tokenizer, messages)))


def test_prompts_suit_the_template_of_the_target() -> None:
    assert said(Words("system", "user"), SYSTEM, USER) == "system:Be brief.|user:Hello?"
    assert said(Words(), SYSTEM, USER) == "Be brief.\n\nHello?"
    plain = Words("user", "assistant")
    assert said(plain, SYSTEM, USER, ANSWER, USER) == "user:Be brief.\n\nHello?|assistant:Hello.|user:Hello?"
    for messages in ([USER, {"role": "tool", "content": "x"}], [SYSTEM]):
        with pytest.raises(ModelError):
            prompt_tokens(plain, messages)  # type: ignore[arg-type]


def test_long_prompts_are_written_on_in_smaller_batches() -> None:
    openings = [Opening(tokens=[1] * n, temperature=0.0) for n in (5, 3, 90, 4, 4, 4, 200, 2)]
    found = list(pages(openings, room=10, most=60))
    assert [one for page in found for one in page] == openings
    assert [len(page) for page in found] == [2, 1, 3, 1, 1]
    assert list(pages(openings, room=10, most=10**9)) == [openings]


def test_parts_of_a_shard_make_one() -> None:
    parts = [tiny_shard(seed=1, lengths=(6, 9)), tiny_shard(seed=2, lengths=(7,)), tiny_shard(seed=3)]
    whole = joined(parts)
    assert whole.offsets.tolist() == torch.tensor([0, 6, 9, 7, 14, 9, 11, 16]).cumsum(0).tolist()
    assert whole.num_generated == sum(part.num_generated for part in parts)
    first = 2
    for part in parts[1:]:
        for i in range(part.num_sequences):
            mine = slice(*whole.offsets[first : first + 2].tolist())
            theirs = slice(*part.offsets[i : i + 2].tolist())
            assert torch.equal(whole.tokens[mine], part.tokens[theirs])
            assert torch.equal(whole.top_ids[mine], part.top_ids[theirs])
            first += 1
    assert torch.equal(joined([parts[0]]).offsets, parts[0].offsets)


def test_a_target_too_short_for_what_it_shall_write_is_refused() -> None:
    loaded = load_model("random:llama?layers=2&hidden=32&max_len=64", dtype="float32", device="cpu")
    prompts = Source(None, seed=0)
    assert make_recipe(loaded, prompts=prompts, max_new_tokens=63).max_new_tokens == 63
    with pytest.raises(ConfigError, match="leaves no room"):
        make_recipe(loaded, prompts=prompts, max_new_tokens=64)
