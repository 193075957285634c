"""Reads the text files that a suffix drafter searches and turns them into token ids. It keeps nothing on disk and knows
nothing of how the texts are searched."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic

from dist_spec.errors import ConfigError

_PIECE = 1 << 17  # characters encoded at once (a piece ends at a line's end where there is one)
_QUIET_S = 1.0


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def read_corpus(
    files: Sequence[str],
    *,
    name: str,
    encode: Callable[[str], list[int]],
    max_tokens: int,
    say: Callable[[str], None] = to_stderr,
) -> list[list[int]]:
    """Token ids of every file, in order, `max_tokens` in all at most.

    Args:
        name: of the drafter, for messages.
        encode: the target's tokenizer.
        say: told, once a second, how far a long reading is, and when something is left out.

    Raises:
        ConfigError: a file cannot be read, or is not text in UTF-8.
    """
    texts = [(file, _read(file, name=name)) for file in files]
    total, done = sum(len(text) for _, text in texts), 0
    corpus: list[list[int]] = []
    left, last_said = max_tokens, monotonic()
    for file, text in texts:
        ids: list[int] = []
        for piece in _pieces(text):
            ids += encode(piece)
            done += len(piece)
            if len(ids) >= left:
                break
            if monotonic() - last_said > _QUIET_S:
                last_said = monotonic()
                say(f"drafter {name}: reading corpus, {100 * done // total}% ({file})")
        corpus.append(ids[:left])
        left -= len(corpus[-1])
        if left == 0:
            if done < total or len(ids) > len(corpus[-1]):
                say(f"drafter {name}: the corpus is longer than max_tokens ({max_tokens}); the rest is left out")
            break
    return corpus


def _read(file: str, *, name: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"drafter {name}: corpus file {file} cannot be read ({error.strerror})",
            fix="give text files that are there; paths are relative to where the command is run",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"drafter {name}: corpus file {file} is not text in UTF-8", fix="convert it, or leave it out"
        ) from error


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = start + _PIECE
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or end
        yield text[start:end]
        start = end
