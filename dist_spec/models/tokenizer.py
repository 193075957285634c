"""Text to ids and back, chat templates, and the comparison of two token maps. Imports no torch and runs no model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from dist_spec.core.vocabulary import HASH_BYTES, IDS_PER_HASH
from dist_spec.errors import ModelError
from dist_spec.models.random_models import BOS_ID, EOS_ID, byte_tokenizer
from dist_spec.models.source import Progress, resolve
from dist_spec.models.token_bytes import token_bytes

_RANDOM_CHAT = (
    "{% for message in messages %}<bos>{{ message['role'] }}\n{{ message['content'] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<bos>assistant\n{% endif %}"
)


class Tokenizer:
    """One model's token map.

    Attributes:
        size: number of ids it knows (the model's logits may be wider: padding).
        eos_ids: ids that end a text.
        chat_template: Jinja source, or None.
    """

    def __init__(self, inner: Any, *, eos_ids: Sequence[int], chat_template: str | None, specials: Mapping[str, str]):
        self._inner = inner
        self.size: int = inner.get_vocab_size(with_added_tokens=True)
        self.eos_ids = tuple(sorted(set(eos_ids)))
        self.chat_template = chat_template
        self._specials = dict(specials)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Ids of `text`, with whatever the tokenizer puts around a text (e.g. a leading <bos>) unless told not to."""
        return list(self._inner.encode(text, add_special_tokens=add_special).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; ids the tokenizer does not know give nothing, broken UTF-8 gives U+FFFD."""
        known = [int(i) for i in ids if 0 <= i < self.size]
        return str(self._inner.decode(known, skip_special_tokens=skip_special))

    def apply_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation (`role`, `content` each), up to where the assistant's answer begins.

        Raises:
            ModelError: the model has no chat template, or it fails on these messages.
        """
        return list(self._inner.encode(self.render_chat(messages), add_special_tokens=False).ids)

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text that `apply_chat` encodes."""
        from jinja2 import TemplateError

        if self.chat_template is None:
            raise ModelError("this model has no chat template", fix="give the prompt as plain text (--no-chat)")
        try:
            return self._template.render(messages=list(messages), add_generation_prompt=True, **self._specials)
        except TemplateError as error:
            raise ModelError(f"the model's chat template failed: {error}", fix="use plain text (--no-chat)") from error

    @cached_property
    def _template(self) -> Any:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def raise_exception(message: str) -> None:
            raise TemplateError(message)

        world = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        world.globals["raise_exception"] = raise_exception
        return world.from_string(self.chat_template or "")

    def token(self, token_id: int) -> str:
        """The raw token string of an id ("" where the id is unused)."""
        return self._inner.id_to_token(token_id) or ""

    @cached_property
    def token_map(self) -> list[str]:
        """Raw token strings by id, `size` long."""
        return [self.token(i) for i in range(self.size)]

    @cached_property
    def token_bytes(self) -> list[bytes] | None:
        """The bytes of each id, b"" for control tokens and unused ids; None: this kind of tokenizer does not tell."""
        return token_bytes(json.loads(self._inner.to_str()), self.token_map)

    @cached_property
    def adds_space(self) -> bool:
        """Whether it puts a space before a text that has none (SentencePiece's dummy prefix)."""
        ids = self.encode("a", add_special=False)
        return bool(ids) and (self.token_bytes or [b""] * self.size)[ids[0]].startswith(b" ")

    def encode_inside(self, text: str) -> list[int]:
        """Ids of `text` as it stands within a longer one, behind a line break: nothing is put before it."""
        if not self.adds_space:
            return self.encode(text, add_special=False)
        before = self.encode("\n", add_special=False)
        ids = self.encode("\n" + text, add_special=False)
        return ids[len(before) :] if ids[: len(before)] == before else self.encode(text, add_special=False)

    def pieces(self, text: str) -> tuple[list[int], list[int]]:
        """Ids of `text` with nothing put around it, and where each begins (in characters; a leading space may be left
        out)."""
        found = self._inner.encode(text, add_special_tokens=False)
        return list(found.ids), [start for start, _ in found.offsets]

    def vocabulary_hashes(self) -> bytes:
        """4 bytes per 64 consecutive ids of the id-to-token map, so that peers can find where two maps differ."""
        tokens, parts = self.token_map, []
        for first in range(0, self.size, IDS_PER_HASH):
            chunk = "\0".join(tokens[first : first + IDS_PER_HASH]).encode("utf-8", "surrogatepass")
            parts.append(hashlib.blake2b(chunk, digest_size=HASH_BYTES).digest())
        return b"".join(parts)


class IncrementalDetokenizer:
    """Turns a stream of ids into a stream of text; text is held back while its last character is incomplete."""

    # Byte-level tokens need no left context, but sentencepiece-like decoders drop a leading space: a few known tokens
    # before the new one make the difference of two decodes right for both.
    _CONTEXT = 4
    # A character has at most 4 bytes: whatever is still broken after so many tokens is broken for good.
    _LONGEST = 8

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._ids: list[int] = []
        self._shown = 0

    def push(self, token_id: int) -> str:
        """Text that `token_id` completes (often empty in the middle of a character)."""
        self._ids.append(token_id)
        before, after = self._texts()
        incomplete = after.endswith("�") and len(self._ids) - self._shown < self._LONGEST
        if incomplete or len(after) <= len(before):
            return ""
        self._settle()
        return after[len(before) :]

    def flush(self) -> str:
        """What is still held back, incomplete characters as U+FFFD. Call it once, at the end."""
        before, after = self._texts()
        self._settle()
        return after[len(before) :]

    def _texts(self) -> tuple[str, str]:
        decode = self._tokenizer.decode
        before = decode(self._ids[: self._shown], skip_special=self._skip_special)
        return before, decode(self._ids, skip_special=self._skip_special)

    def _settle(self) -> None:
        self._ids = self._ids[-self._CONTEXT :]
        self._shown = len(self._ids)


def load_tokenizer(model: str, *, cache_dir: str | Path | None = None, progress: Progress | None = None) -> Tokenizer:
    """The tokenizer of a model id (see `dist_spec.models.source`).

    Raises:
        ModelError: the model cannot be found, or its folder has no tokenizer.json.
    """
    source = resolve(model, cache_dir=cache_dir, progress=progress)
    if source.folder is None:
        specials = {"bos_token": "<bos>", "eos_token": "<eos>"}
        assert BOS_ID == EOS_ID - 1
        return Tokenizer(byte_tokenizer(), eos_ids=[EOS_ID], chat_template=_RANDOM_CHAT, specials=specials)
    return _from_folder(source.folder)


def _from_folder(folder: Path) -> Tokenizer:
    from tokenizers import Tokenizer as Inner

    file = folder / "tokenizer.json"
    if not file.exists():
        raise ModelError(f"{folder} has no tokenizer.json", fix="save the model's fast tokenizer into the folder")
    try:
        inner = Inner.from_file(str(file))
    except Exception as error:
        raise ModelError(f"cannot read {file}: {error}", fix="give an intact model folder") from error
    inner.no_padding()
    inner.no_truncation()
    settings = _json(folder / "tokenizer_config.json")
    specials = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = settings.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            specials[name] = value
    return Tokenizer(
        inner,
        eos_ids=_eos_ids(folder, inner, specials),
        chat_template=_chat_template(folder, settings),
        specials=specials,
    )


def _eos_ids(folder: Path, inner: Any, specials: Mapping[str, str]) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        value = _json(folder / name).get("eos_token_id")
        if value is not None:
            return [int(i) for i in value] if isinstance(value, list) else [int(value)]
    own = inner.token_to_id(specials.get("eos_token", ""))
    return [] if own is None else [int(own)]


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text()
    value = settings.get("chat_template")
    if isinstance(value, list):  # several named templates
        value = {entry["name"]: entry["template"] for entry in value}.get("default")
    return value if isinstance(value, str) else None


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelError(f"{file} is no valid JSON: {error}", fix="give an intact model folder") from error
    return value if isinstance(value, dict) else {}


def first_difference(a: Tokenizer, b: Tokenizer) -> tuple[int, str, str] | None:
    """(id, token of a, token of b) of the first id below both sizes that means different tokens; None if there is none."""
    for token_id, (left, right) in enumerate(zip(a.token_map, b.token_map, strict=False)):
        if left != right:
            return token_id, left, right
    return None
