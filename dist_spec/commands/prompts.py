"""Where prompts come from: arguments, files, standard input. Knows nothing of tokens or models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from dist_spec.errors import RequestError

MAX_PROMPT_BYTES = 16 << 20


def read_prompts(arguments: Sequence[str], *, files: Sequence[Path], stdin: TextIO) -> list[str]:
    """All prompts in order: arguments first ("-" is standard input), then one per file.

    Raises:
        RequestError: a prompt cannot be read, is too large or no text, or "-" is given twice.
    """
    names = [*arguments, *("-" for file in files if str(file) == "-")]
    if names.count("-") > 1:
        raise RequestError("standard input (-) is asked for twice", fix="give - once")
    prompts = [_read_stdin(stdin) if text == "-" else _checked(text, "a prompt") for text in arguments]
    return prompts + [_read_stdin(stdin) if str(file) == "-" else _read_file(file) for file in files]


def _read_stdin(stdin: TextIO) -> str:
    try:
        text = stdin.read(MAX_PROMPT_BYTES + 1)
    except UnicodeDecodeError:
        raise RequestError("standard input is not text in UTF-8", fix="convert it first") from None
    if len(text) > MAX_PROMPT_BYTES:
        raise RequestError("standard input: too large for a prompt", fix=f"at most {MAX_PROMPT_BYTES >> 20} MiB")
    return _checked(text, "standard input").rstrip("\n")


def _checked(text: str, what: str) -> str:
    """Python takes bytes that are no UTF-8 from a shell as lone surrogates, which no tokenizer understands."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{what} is not text in UTF-8", fix="convert it first") from None
    return text


def _read_file(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_PROMPT_BYTES:
            raise RequestError(f"{path}: too large for a prompt", fix=f"at most {MAX_PROMPT_BYTES >> 20} MiB")
        return path.read_text(encoding="utf-8").rstrip("\n")
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error.strerror})", fix="check --prompt-file") from None
    except UnicodeDecodeError:
        raise RequestError(f"{path}: is not text in UTF-8", fix="convert it first") from None
