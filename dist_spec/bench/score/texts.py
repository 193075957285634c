"""What is scored: prompts of a file or the built-in ones, and the texts that the target made of them. It reads files and
knows no models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_spec.bench.prompts import Prompt
from dist_spec.core.types import Sampling
from dist_spec.errors import RequestError

MAX_FILE_BYTES = 256 << 20
_FIX = 'one JSON object per line, for instance {"prompt": "What is a tree?", "domain": "chat"}'


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """One prompt and what the target made of it, as token ids.

    Attributes:
        sampling: with which it was made.
    """

    domain: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    sampling: Sampling

    @property
    def tokens(self) -> list[int]:
        """Prompt, then output."""
        return [*self.prompt, *self.output]


def read_prompt_file(path: Path) -> list[Prompt]:
    """Prompts of a JSONL file: one object per line with `prompt`, and `domain` if there are several kinds; empty lines are
    skipped, other keys ignored. Domains come in the order of their first line, as they are measured one after the other.

    Raises:
        RequestError: the file cannot be read or holds no prompts; a line is not what it should be (named by its number).
    """
    prompts: list[Prompt] = []
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            prompts.append(_prompt(line, place=f"{path}: line {number}"))
    if not prompts:
        raise RequestError(f"{path}: there are no prompts in it", fix=_FIX)
    order = {domain: at for at, domain in reversed(list(enumerate(one.domain for one in prompts)))}
    return sorted(prompts, key=lambda one: order[one.domain])


def _lines(path: Path) -> Sequence[str]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise RequestError(f"{path}: too large ({path.stat().st_size >> 20} MiB)", fix="give a part of it")
        return path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error.strerror})", fix="check --prompts") from None
    except UnicodeDecodeError:
        raise RequestError(f"{path}: is not text in UTF-8", fix="convert it first") from None


def _prompt(line: str, *, place: str) -> Prompt:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise RequestError(f"{place} is not JSON", fix=_FIX) from None
    if not isinstance(entry, dict):
        raise RequestError(f"{place} holds no JSON object", fix=_FIX)
    text, domain = entry.get("prompt"), entry.get("domain", "")
    if not isinstance(text, str) or not text.strip():
        raise RequestError(f"{place}: `prompt` must be a text that is not empty", fix=_FIX)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, written as \\ud800: no tokenizer understands it
        raise RequestError(f"{place}: `prompt` is not text in UTF-8", fix="correct its \\u escapes") from None
    if not isinstance(domain, str) or ":" in domain or len(domain) > 64:
        raise RequestError(f"{place}: `domain` must be a label: at most 64 characters, no colon", fix=_FIX)
    return Prompt(domain=domain, text=text)
