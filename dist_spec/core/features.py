"""The leader's part in feeding draft heads: what of the target's hidden features is kept, what travels with a commit, and
what follows it in chunks. It knows no tensors of a model, sockets or clocks.

Position i has the features that the target computed when it read token i. Commits carry those of the tokens that a
verification read, so the features of a prompt, or those that a late joiner missed, are all that is left for chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dist_spec.core.admission import FeatureFacts
from dist_spec.core.live import Live
from dist_spec.core.messages import MAX_FEATURES, Bye, Commit, Features, FeatureWish, Hello
from dist_spec.core.requests import Outgoing
from dist_spec.core.types import HalfArray

CHUNK_BYTES = 1 << 16
"""Of one `Features` message, if a row is not larger."""
STEP_BYTES = 1 << 18
"""Chunks sent after one step, to all heads together: encoding them lies between two verifications."""
MAX_WINDOW = 1024
"""Positions kept per request at most, whatever a head asks for."""

RequestKey = tuple[str, int]


class _Window:
    """The latest rows of one request, at most `limit`: those of positions `low` .. `high` - 1."""

    __slots__ = ("_limit", "_ring", "_used", "high")

    def __init__(self, limit: int) -> None:
        self.high = 0
        self._limit = limit
        self._ring: HalfArray | None = None
        self._used = 0

    @property
    def low(self) -> int:
        return self.high - min(self._used, self._limit)

    @property
    def row_bytes(self) -> int:
        return 0 if self._ring is None else self._ring[:1].nbytes

    def append(self, first: int, rows: HalfArray) -> None:
        """Rows of positions from `first` on; what does not follow replaces what was there."""
        size, limit = rows.shape[1], self._limit
        self._used = self._used if first == self.high else 0
        if self._ring is None or self._ring.shape[1] != size:
            self._ring, self._used = _room(rows, 2 * limit), 0
        self.high = first + len(rows)
        rows = rows[-limit:]
        if self._used + len(rows) > 2 * limit:  # once in `limit` rows: the latest move to the front
            kept = min(self._used, limit)
            self._ring[:kept] = _copied(self._ring[self._used - kept : self._used])
            self._used = kept
        self._ring[self._used : self._used + len(rows)] = rows
        self._used += len(rows)

    def part(self, first: int, last: int) -> HalfArray:
        """A copy: messages outlive what they were made of."""
        assert self._ring is not None
        shift = self._used - self.high
        return _copied(self._ring[first + shift : last + shift])


def _room(rows: Any, count: int) -> HalfArray:
    """(count, size) rows that lie where these lie: an array of the host, or a tensor of a device that NCCL will read."""
    shape = (count, rows.shape[1])
    return np.empty(shape, np.float16) if isinstance(rows, np.ndarray) else rows.new_empty(shape)


def _copied(rows: Any) -> HalfArray:
    return rows.copy() if isinstance(rows, np.ndarray) else rows.clone()


class FeatureStream:
    """Who wants features, what is kept for them, and what each was sent.

    Args:
        facts: None: this target gives none.

    Attributes:
        layers: those whose outputs the target is to keep in every step; empty until a head has joined.
    """

    def __init__(self, facts: FeatureFacts | None) -> None:
        self.facts = facts
        self.layers: tuple[int, ...] = ()
        self._window = 0
        self._wishes: dict[str, FeatureWish] = {}
        self._windows: dict[RequestKey, _Window] = {}
        self._sent: dict[tuple[str, RequestKey], tuple[int, int]] = {}

    @property
    def window(self) -> int:
        """Positions kept per request."""
        return self._window

    def refusal(self, peer: str, hello: Hello) -> Bye | None:
        """Why this head cannot be fed, or None."""
        wish, facts = hello.features, self.facts
        if wish is None:
            return None
        if facts is None:
            return Bye(reason="this target gives no hidden features", fatal=True)
        for name in ("hidden_size", "num_layers"):
            theirs, ours = getattr(wish, name), getattr(facts, name)
            if theirs != ours:
                return Bye(
                    reason=f"the head was made for a target with {name} {theirs}, this target has {name} {ours}: use a "
                    "head that was made for this target (dist-spec distill makes one)",
                    fatal=True,
                )
        if not wish.layers or max(wish.layers) >= facts.num_layers:
            reason = f"the head wants features of layers {wish.layers}, this target has {facts.num_layers} layers"
            return Bye(reason=reason, fatal=True)
        if len(wish.layers) * wish.hidden_size > MAX_FEATURES:
            reason = (
                f"the head wants {len(wish.layers)} x {wish.hidden_size} features a row, at most {MAX_FEATURES} travel"
            )
            return Bye(reason=reason, fatal=True)
        others = [one for other, one in self._wishes.items() if other != peer]
        if any(one.layers != wish.layers for one in others):
            reason = f"the head wants features of layers {wish.layers}, one that is attached wants {others[0].layers}"
            return Bye(reason=reason, fatal=True)
        return None

    def join(self, peer: str, hello: Hello) -> None:
        """A drafter greeted: it knows nothing (again)."""
        self.tell_again(peer)
        wish = hello.features
        if wish is None:
            self._wishes.pop(peer, None)
            return
        if wish.layers != self.layers:
            self._windows.clear()
        self._wishes[peer] = wish
        # Kept on when the last head is gone: it may come back in the middle of a text.
        self.layers = wish.layers
        if (wider := min(max(one.window for one in self._wishes.values()), MAX_WINDOW)) > self._window:
            self._window = wider
            self._windows.clear()

    def leave(self, peer: str) -> None:
        self._wishes.pop(peer, None)
        self.tell_again(peer)

    def tell_again(self, peer: str, key: RequestKey | None = None) -> None:
        """Nothing that the peer was sent (of this request, if one is named) counts any more."""
        for name in [name for name in self._sent if name[0] == peer and key in (None, name[1])]:
            del self._sent[name]

    def computed(self, live: Live, rows: HalfArray, *, end: int) -> None:
        """The target read the tokens before position `end`; `rows` are the features of the last of them."""
        useful = len(live.sequence.prefix) - self._window
        first = end - len(rows)
        if first < useful:  # a long prompt's beginning: too far back to be of use by the time the prompt has been read
            rows, first = rows[useful - first :], useful
        if len(rows) and end > first:
            window = self._windows.get(live.sequence.key)
            if window is None:
                window = self._windows[live.sequence.key] = _Window(self._window)
            window.append(first, rows)

    def with_commit(self, peer: str, key: RequestKey, commit: Commit, *, num_tokens: int) -> Commit:
        """The commit as this peer gets it: a head with the features of what the verification read.

        Args:
            num_tokens: how many of the commit's tokens are new.
        """
        window = self._windows.get(key)
        end = commit.base_length + len(commit.tokens) - 1
        if peer not in self._wishes or window is None or window.high != end:
            return commit
        first = max(end - num_tokens, window.low)
        low, high = self._sent.get((peer, key), (first, first))
        self._sent[peer, key] = (low, end) if high == first else (first, end)
        return replace(commit, features=window.part(first, end)) if first < end else commit

    def due(
        self,
        live: Mapping[RequestKey, Live],
        drafters: Iterable[str],
        *,
        serves: Callable[[str, RequestKey], bool] = lambda peer, key: True,
    ) -> list[Outgoing]:
        """Chunks to send now: what heads lack of the windows of their requests, nearest to the commits first."""
        for key in [key for key in self._windows if key not in live]:
            del self._windows[key]
        for name in [name for name in self._sent if name[1] not in live]:
            del self._sent[name]
        out: list[Outgoing] = []
        left = STEP_BYTES
        for peer in drafters:
            if peer not in self._wishes:
                continue
            for key, window in self._windows.items():
                while left > 0 and serves(peer, key) and (chunk := self._next(peer, live[key], window)) is not None:
                    left -= chunk.rows.nbytes
                    out.append((peer, chunk))
        return out

    def _next(self, peer: str, live: Live, window: _Window) -> Features | None:
        """The next chunk of one window for one head, None when it has all; counted as sent."""
        key = live.sequence.key
        count = max(1, CHUNK_BYTES // max(window.row_bytes, 1))
        low, high = self._sent.get((peer, key), (window.high, window.high))
        if high < window.low:
            low = high = window.high
        if high < window.high:
            first, last = max(high, window.low), min(high + count, window.high)
            low = min(low, first)
            self._sent[peer, key] = (low, last)
        elif low > window.low and low > window.high - self._wishes[peer].window:
            first, last = max(low - count, window.low), low
            self._sent[peer, key] = (first, high)
        else:
            return None
        return Features(
            request=key[0],
            generation=key[1],
            base_length=last,
            base_digest=live.sequence.prefix.digests[last],
            rows=window.part(first, last),
        )
