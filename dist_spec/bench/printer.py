"""Streamed text on standard output, coloured by where its tokens came from when asked. It computes no figure but the time
that detokenisation took."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TextIO

from dist_spec.bench.compare import Comparison
from dist_spec.bench.run import RunResult
from dist_spec.models.tokenizer import IncrementalDetokenizer, Tokenizer
from dist_spec.server.client import Stream
from dist_spec.server.detokenizer import TextStream

COLOURS: Mapping[str, str] = {"accepted": "\033[32m", "recovered": "\033[31m", "bonus": "\033[36m"}
"""Of the tokens that drafting had to do with; all others stay as they are."""
LEGEND = (
    "[green]accepted[/green] (drafted and right)  [red]recovered[/red] (in place of a wrong guess)  "
    "[cyan]bonus[/cyan] (after a branch that was right to its end)"
)
"""In rich's markup."""
_RESET = "\033[0m"


def may_colour(stream: TextIO | None = None) -> bool:
    """Whether colours belong on `stream` (default: standard output): a terminal, unless NO_COLOR is set; FORCE_COLOR
    colours a pipe too."""
    stream = sys.stdout if stream is None else stream
    if os.environ.get("NO_COLOR"):
        return False
    return stream.isatty() or os.environ.get("FORCE_COLOR", "0") not in ("", "0")


class Painter:
    """Colours text that comes out of a filter later than it went in: every character keeps its token's kind."""

    def __init__(self, *, on: bool) -> None:
        self._on = on
        self._waiting: deque[tuple[str, int]] = deque()

    def put(self, text: str, kind: str) -> None:
        """These characters went in, of a token of this kind."""
        if text and self._on:
            self._waiting.append((kind, len(text)))

    def take(self, text: str) -> str:
        """These came out: the next ones that went in, with their colours around them."""
        if not self._on:
            return text
        out: list[str] = []
        while text:
            kind, count = self._waiting.popleft() if self._waiting else ("", len(text))
            if count > len(text):
                self._waiting.appendleft((kind, count - len(text)))
            piece, text = text[:count], text[count:]
            colour = COLOURS.get(kind, "")
            out.append(f"{colour}{piece}{_RESET}" if colour else piece)
        return "".join(out)


class _Text:
    """One text on its way to the screen."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], *, colour: bool) -> None:
        self._text = TextStream(tokenizer, stops=stops)
        self._painter = Painter(on=colour)
        self._each = IncrementalDetokenizer(tokenizer) if colour else None  # what every token adds, for its colour

    def push(self, tokens: Sequence[int], kinds: Sequence[str]) -> str:
        out = []
        for index, token in enumerate(tokens):
            if self._each is not None:
                self._painter.put(self._each.push(token), kinds[index] if index < len(kinds) else "")
            out.append(self._painter.take(self._text.push([token])))
        return "".join(out)

    def finish(self, reason: str) -> str:
        if self._each is not None:
            self._painter.put(self._each.flush(), "")
        return self._painter.take(self._text.finish(reason).text)


class TextPrinter:
    """Prints text as it is committed: live for one request at a time, else each text when all are complete. A stop string
    that ended a text is not shown.

    Attributes:
        detokenise_s: time spent on making text of tokens while their requests ran.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        texts: Sequence[str],
        live: bool,
        quiet: bool,
        stops: Sequence[str] = (),
        colour: bool = False,
    ) -> None:
        self.detokenise_s = 0.0
        self._tokenizer = tokenizer
        self._prompts = texts
        self._live = live
        self._quiet = quiet
        self._stops = stops
        self._colour = colour
        self._texts: dict[int, _Text] = {}

    def show(self, index: int, tokens: Sequence[int], kinds: Sequence[str] = ()) -> None:
        """Newly committed tokens of request `index`, and where each came from."""
        if self._quiet or not self._live:
            return
        if index not in self._texts:
            self._end(index - 1, reason="stop")  # whatever it was: a stop string at its very end is why
            self._header(index)
            self._texts[index] = _Text(self._tokenizer, self._stops, colour=self._colour)
        start = perf_counter()
        text = self._texts[index].push(tokens, kinds)
        self.detokenise_s += perf_counter() - start
        sys.stdout.write(text)
        sys.stdout.flush()

    def finish(self, result: RunResult, *, first: int = 0) -> None:
        """A run is over: complete the last line, or print its texts; `first` is the index of its first request."""
        if self._quiet:
            return
        if self._live:
            self._end(first + len(result.streams) - 1, reason=result.streams[-1].reason)
            return
        for index, stream in enumerate(result.streams):
            self._header(first + index)
            sys.stdout.write(self._whole(stream, colour=self._colour) + "\n")
        sys.stdout.flush()

    def _whole(self, stream: Stream, *, colour: bool) -> str:
        text = _Text(self._tokenizer, self._stops, colour=colour)
        return text.push(stream.tokens, stream.kinds) + text.finish(stream.reason)

    def outputs(self, comparison: Comparison) -> list[str]:
        """The texts of the first run, without the stop strings that ended them."""
        return [self._whole(stream, colour=False) for stream in comparison.runs["speculative"][0].streams]

    def _header(self, index: int) -> None:
        if len(self._prompts) > 1:
            first_line = self._prompts[index].strip().splitlines()[0]
            print(f"\n\033[1m> {first_line[:100]}\033[0m" if sys.stdout.isatty() else f"\n> {first_line[:100]}")

    def _end(self, index: int, *, reason: str) -> None:
        if index in self._texts:
            sys.stdout.write(self._texts.pop(index).finish(reason) + "\n")
            sys.stdout.flush()
