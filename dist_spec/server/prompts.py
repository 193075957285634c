"""What may be given as a prompt, and its token ids. It knows a tokenizer, not what becomes of the ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, TypeAlias

from dist_spec.errors import RequestError
from dist_spec.models.tokenizer import Tokenizer

Message: TypeAlias = Mapping[str, Any]
"""One turn of a conversation: `role` and `content`."""
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message] | Mapping[str, Any]
"""A text; token ids; a conversation; or {"prompt": text} / {"prompt_token_ids": ids}."""

_FORMS = "give a text, a list of token ids, a list of messages, or a list of these"


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """A prompt ready to be sent. `text` is None when ids were given, else what was encoded (a conversation rendered).
    `error`: why it cannot be."""

    text: str | None
    ids: tuple[int, ...]
    error: str | None = None


def split_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, or several, as a list of prompts. RequestError when it is neither."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    items = _items(prompts)
    if items is None:
        raise RequestError(f"{prompts!r} is no prompt", fix=_FORMS)
    if items and (all(_is_id(one) for one in items) or is_conversation(items)):
        return [items]
    return items


def encode_prompt(prompt: Prompt, tokenizer: Tokenizer) -> Encoded:
    """Token ids of one prompt; what is wrong with it is reported in the result, as others are not affected by it.

    Raises:
        ModelError: a conversation, and the model has no chat template or it fails.
    """
    if isinstance(prompt, Mapping):
        if "prompt_token_ids" in prompt:
            prompt = prompt["prompt_token_ids"]
        elif isinstance(prompt.get("prompt"), str):
            prompt = prompt["prompt"]
    if isinstance(prompt, str):
        return _checked(prompt, lambda text: tokenizer.encode(text))
    items = _items(prompt)
    if items is not None:
        if is_conversation(items):
            return _checked(tokenizer.render_chat(items), lambda text: tokenizer.encode(text, add_special=False))
        if all(_is_id(one) for one in items):
            ids = tuple(int(one) for one in items)
            return Encoded(text=None, ids=ids, error=_wrong_id(ids, size=tokenizer.size))
    raise RequestError(f"{str(prompt)[:100]!r} is no prompt", fix=_FORMS)


def _checked(text: str, encode: Any) -> Encoded:
    if not text:
        return Encoded(text=text, ids=(), error="the prompt is empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        return Encoded(text=text, ids=(), error="the prompt is not text in UTF-8")
    ids = tuple(encode(text))
    return Encoded(text=text, ids=ids, error=None if ids else "the prompt is empty")


def _wrong_id(ids: Sequence[int], *, size: int) -> str | None:
    wrong = next((one for one in ids if not 0 <= one < size), None)
    if wrong is not None:
        return f"token id {wrong} lies outside the vocabulary of {size}"
    return None if ids else "the prompt is empty"


def _items(value: object) -> list[Any] | None:
    """What a list, array or generator holds; None for anything else."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        return None
    try:
        return list(value)
    except TypeError:  # an array of no dimension says that it can be iterated over
        return None


def _is_id(value: object) -> bool:
    """numpy's and torch's whole numbers, too; whole arrays of them are not."""
    if isinstance(value, bool) or getattr(value, "ndim", 0) > 0:
        return False
    try:
        index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def is_conversation(prompt: object) -> bool:
    """Whether it is a list of messages, at least one."""
    return isinstance(prompt, Sequence) and len(prompt) > 0 and all(_is_message(one) for one in prompt)


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and "role" in value
