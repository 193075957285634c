"""From the committed tokens of one request to its text, as they come. It knows stop strings and what ends a text, not
who commits or who reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dist_spec.models.tokenizer import IncrementalDetokenizer, Tokenizer

__all__ = ["Ending", "TextStream"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """Why a text ended.

    Attributes:
        text: what of the text had not been given out yet.
        stop_reason: the stop string, or the id out of `stop_token_ids`; None: the model's own end, or a full length.
    """

    text: str
    stop_reason: int | str | None


class TextStream:
    """Text of one request. What may turn out to be (part of) a stop string is held back until that is known: the target
    ends a request with the token that completes one, so a stop string that another commit follows was none.

    Args:
        ends: ids that end the request; their text is not part of it.
        reported: those of them that a stop is explained with.
        include_stop: stop strings and the texts of `reported` ids are part of the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str] = (),
        ends: Collection[int] = (),
        reported: Collection[int] = (),
        include_stop: bool = False,
        skip_special: bool = True,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, skip_special=skip_special)
        self._stops = tuple(stops)
        self._silent = frozenset(ends) - (frozenset(reported) if include_stop else frozenset())
        self._reported = frozenset(reported)
        self._include_stop = include_stop
        self._held = ""
        self._fresh_at = 0  # where in the held text that of the newest token begins
        self._last_token: int | None = None

    def push(self, tokens: Sequence[int]) -> str:
        """The text that one commit lets out."""
        text = ""
        for token in tokens:
            self._fresh_at = len(self._held)
            self._last_token = token
            if token not in self._silent:
                self._held += self._detokenizer.push(token)
            text += self._release()
        return text

    def _release(self) -> str:
        """All before a stop string that the newest token completed, or before what may become one."""
        keep_from = self._stop_at()[0]
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(self._held)), 0, -1):
                if self._held.endswith(stop[:size]):
                    keep_from = min(keep_from, len(self._held) - size)
                    break
        out, self._held = self._held[:keep_from], self._held[keep_from:]
        self._fresh_at = max(self._fresh_at - keep_from, 0)
        return out

    def _stop_at(self) -> tuple[int, str | None]:
        """(place, stop string) of the first one that ends in the newest token's text; (length, None) without any."""
        best: tuple[int, str | None] = (len(self._held), None)
        for stop in self._stops:
            at = self._held.find(stop, max(0, self._fresh_at - len(stop) + 1))
            if 0 <= at < best[0]:
                best = at, stop
        return best

    def finish(self, reason: str) -> Ending:
        """The rest of the text, once the request has ended because of `reason` ("stop", "length", ...)."""
        self._held += self._detokenizer.flush()
        at, stop = self._stop_at()
        held, self._held = self._held, ""
        if reason != "stop":
            return Ending(text=held, stop_reason=None)
        if self._last_token in self._reported:
            return Ending(text=held, stop_reason=self._last_token)
        if stop is None:
            return Ending(text=held, stop_reason=None)
        return Ending(text=held[: at + len(stop)] if self._include_stop else held[:at], stop_reason=stop)
