"""Fills a cache with teacher data, shard by shard; several processes may share the work. It knows prompts and the teacher,
nothing of training.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_spec.distill.cache import Cache, Recipe, joined
from dist_spec.distill.generate import Opening, write_text
from dist_spec.distill.prompts import grammars, held_out_prompts, training_prompts
from dist_spec.distill.teacher import Teacher
from dist_spec.errors import ConfigError, ModelError
from dist_spec.models.head_target import vocabulary_digest
from dist_spec.models.loading import LoadedModel
from dist_spec.models.tokenizer import Tokenizer

TEMPERATURES = (0.0, 0.8, 0.0, 1.0)
HELD_OUT_SHARE = 0.05
_PAGE = 1 << 17
"""Places of one batch: what it holds of each (K/V of all layers, features) adds up to gigabytes."""

Tick = Callable[[int], None] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """A prompt as chat messages, and its domain."""

    domain: str
    messages: tuple[dict[str, str], ...]


def default_feature_layers(num_layers: int) -> tuple[int, ...]:
    """A low, a middle and a high layer, as EAGLE-3 takes them."""
    if num_layers >= 8:
        return (2, num_layers // 2, num_layers - 3)
    return tuple(sorted({0, num_layers // 2, num_layers - 1}))


def read_prompts(file: Path) -> list[Conversation]:
    """Prompts of a JSONL file: `{"prompt": ...}` or `{"messages": [{"role": ..., "content": ...}, ...]}` per line, each with
    an optional "domain". Empty lines, and prompts that came before, are skipped.

    Raises:
        ConfigError: the file cannot be read, or a line (named by its number) is something else.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # a text may hold what else counts as a line's end
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}", fix="give a JSONL file in UTF-8") from error
    every = [_conversation(line, file, number) for number, line in enumerate(lines, 1) if line.strip()]
    found: dict[str, Conversation] = {}
    for one in every:  # what is said twice could be trained on and held out
        found.setdefault(json.dumps(one.messages), one)
    if len(found) < 2:
        raise ConfigError(
            f"{file} holds {len(found)} prompts", fix="give at least two: some are held out for evaluation"
        )
    return list(found.values())


def _conversation(line: str, file: Path, number: int) -> Conversation:
    def refuse(reason: str) -> ConfigError:
        return ConfigError(
            f"{file}, line {number}: {reason}", fix='write {"prompt": "..."} or {"messages": [...]} on every line'
        )

    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # a lone surrogate, written as \\ud800: no tokenizer understands it
        raise refuse("not text in UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise refuse(f"no JSON ({error})") from error
    if not isinstance(value, dict) or ("prompt" in value) == ("messages" in value):
        raise refuse('neither an object with "prompt" nor one with "messages"')
    messages = value["messages"] if "messages" in value else [{"role": "user", "content": value["prompt"]}]
    if not isinstance(messages, list) or not messages or not all(_is_message(m) for m in messages):
        raise refuse('"prompt" must be text that is not empty, "messages" a list of {"role": text, "content": text}')
    kept = tuple({"role": m["role"], "content": m["content"]} for m in messages)
    return Conversation(domain=str(value.get("domain", "own")), messages=kept)


def _is_message(value: object) -> bool:
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in ("role", "content")):
        return False
    return value["role"] != "user" or bool(value["content"].strip())


class Prompts:
    """The prompts of both splits, in order. Held-out ones are of other templates (built-in), or every 20th line (a file)."""

    def __init__(self, file: Path | None, *, seed: int) -> None:
        self._seed = seed
        self._own = None if file is None else read_prompts(file)
        content = json.dumps(grammars("training")).encode() if file is None else b""
        self.digest = hashlib.blake2b(content if file is None else file.read_bytes(), digest_size=16).hexdigest()
        self._made: dict[str, list[Conversation]] = {}

    def take(self, split: str, first: int, last: int) -> list[Conversation]:
        """Prompts first .. last - 1 of a split. A user's file begins anew at its end (at other temperatures and seeds)."""
        if self._own is not None:
            every = min(int(1 / HELD_OUT_SHARE), len(self._own))
            mine = [c for i, c in enumerate(self._own) if (i % every == 0) == (split == "held_out")]
            return [mine[i % len(mine)] for i in range(first, last)]
        if len(self._made.get(split, ())) < last:
            make = held_out_prompts if split == "held_out" else training_prompts
            self._made[split] = [
                Conversation(domain=p.domain, messages=_messages(p.system, p.text)) for p in make(last, seed=self._seed)
            ]
        return self._made[split][first:last]


def _messages(system: str | None, text: str) -> tuple[dict[str, str], ...]:
    user = {"role": "user", "content": text}
    return (user,) if system is None else ({"role": "system", "content": system}, user)


def make_recipe(
    loaded: LoadedModel,
    *,
    prompts: Prompts,
    feature_layers: Sequence[int] | None = None,
    top_k: int = 32,
    per_shard: int = 128,
    temperatures: Sequence[float] = TEMPERATURES,
    max_new_tokens: int = 192,
    seed: int = 0,
) -> Recipe:
    """The recipe of a target's teacher data. ConfigError: no room is left for a prompt."""
    if max_new_tokens >= loaded.max_positions:
        raise ConfigError(
            f"--max-new-tokens {max_new_tokens} leaves no room for a prompt: {loaded.name} reads {loaded.max_positions}",
            fix="give fewer",
        )
    layers = tuple(feature_layers or default_feature_layers(int(loaded.config.num_hidden_layers)))
    return Recipe(
        target=loaded.name,
        vocabulary=vocabulary_digest(loaded.tokenizer),
        feature_layers=layers,
        feature_size=len(layers) * int(loaded.config.hidden_size),
        top_k=min(top_k, loaded.vocab_size),
        prompts=prompts.digest,
        per_shard=per_shard,
        temperatures=tuple(temperatures),
        max_new_tokens=max_new_tokens,
        dtype=str(loaded.dtype).removeprefix("torch."),
        seed=seed,
    )


def make_shard(teacher: Teacher, cache: Cache, prompts: Prompts, split: str, number: int, *, tick: Tick = None) -> int:
    """Write one shard, if it is not there; returns the tokens generated (0: it was there)."""
    if cache.has(split, number):
        return 0
    recipe, tokenizer = cache.recipe, teacher.loaded.tokenizer
    first = number * recipe.per_shard
    taken = prompts.take(split, first, first + recipe.per_shard)
    names = tuple(sorted({c.domain for c in taken}))
    room = teacher.loaded.max_positions - recipe.max_new_tokens
    openings = []
    for index, conversation in enumerate(taken):
        tokens = prompt_tokens(tokenizer, conversation.messages)[-room:]
        temperature = recipe.temperature(first + index)
        openings.append(Opening(tokens=tokens, temperature=temperature, domain=names.index(conversation.domain)))
    parts = [
        write_text(
            teacher,
            page,
            max_new_tokens=recipe.max_new_tokens,
            top_k=recipe.top_k,
            seed=shard_seed(recipe.seed, split, number) + index,
            domain_names=names,
            tick=tick,
        )
        for index, page in enumerate(pages(openings, room=recipe.max_new_tokens))
    ]
    shard = joined(parts)
    cache.write(split, number, shard)
    return shard.num_generated


def pages(openings: Sequence[Opening], *, room: int, most: int = _PAGE) -> Iterator[list[Opening]]:
    """The openings in order, as many at a time as fill `most` places, each padded to the longest of its page and with `room`
    for what is written."""
    page: list[Opening] = []
    longest = 0
    for opening in openings:
        longest = max(longest, len(opening.tokens))
        if page and (len(page) + 1) * (longest + room) > most:
            yield page
            page, longest = [], len(opening.tokens)
        page.append(opening)
    if page:
        yield page


def prompt_tokens(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Ids of a conversation: by the chat template, or as plain text where the model has none. Some templates know no system
    prompt: it then stands before what the user says.

    Raises:
        ModelError: the template fails on these messages.
    """
    if tokenizer.chat_template is None:
        return tokenizer.encode("\n\n".join(message["content"] for message in messages))
    try:
        return tokenizer.apply_chat(messages)
    except ModelError:
        if len(messages) < 2 or messages[0]["role"] != "system":
            raise
        system, user, *rest = messages
        text = f"{system['content']}\n\n{user['content']}"
        return tokenizer.apply_chat([{**user, "content": text}, *rest])


def shard_seed(seed: int, split: str, number: int) -> int:
    """Another stream of chance for every shard."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {split} {number}".encode(), digest_size=7).digest(), "little")
