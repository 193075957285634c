"""The drafter's part in feeding draft heads: hidden features that came, held until the text that they belong to is known,
dropped where they belong to another. It knows no model, socket or clock."""

from __future__ import annotations

from typing import TypeAlias

from dist_spec.core.draft import Draft
from dist_spec.core.messages import Commit, Features
from dist_spec.core.prefix import extend_digest
from dist_spec.core.types import HalfArray

RequestKey: TypeAlias = tuple[str, int]
Placed: TypeAlias = tuple[RequestKey, int, HalfArray]
"""(request, position of the first row, rows)"""

_MAX_AHEAD = 8
"""Messages kept per request whose text is not known yet; the oldest goes first."""
_MAX_WAITING = 16
"""Requests of which messages wait; the one that waits longest goes first."""
_MAX_READY = 256
"""Messages kept until somebody takes them."""


def features_of(commit: Commit) -> Features:
    """The features that ride on a commit as a message of their own; there must be some."""
    digest = commit.base_digest
    for token in commit.tokens[:-1].tolist():
        digest = extend_digest(digest, token)
    return Features(
        request=commit.request,
        generation=commit.generation,
        base_length=commit.base_length + len(commit.tokens) - 1,
        base_digest=digest,
        rows=commit.features,
    )


class FeatureInbox:
    """Features by the prefix that they end with. Late, repeated and reordered ones are as good as any (law 3)."""

    def __init__(self) -> None:
        self._ahead: dict[RequestKey, list[tuple[int, int, HalfArray]]] = {}
        self._ready: list[Placed] = []

    def came(self, draft: Draft, message: Features) -> None:
        """Features by themselves."""
        self._put(draft, message.base_length, message.base_digest, message.rows)

    def early(self, message: Features) -> None:
        """Features of a request that is not known (yet): on their own connection they may overtake its opening."""
        self._hold((message.request, message.generation), message.base_length, message.base_digest, message.rows)

    def rode(self, draft: Draft, commit: Commit) -> None:
        """Features that came with a commit, which may have been taken in or not."""
        if len(commit.features):
            self.came(draft, features_of(commit))

    def _put(self, draft: Draft, length: int, digest: int, rows: HalfArray) -> None:
        if length > len(draft.prefix):
            self._hold(draft.key, length, digest, rows)
        elif draft.prefix.matches(length, digest) and len(rows) <= length:
            self._ready.append((draft.key, length - len(rows), rows))
            del self._ready[:-_MAX_READY]

    def _hold(self, key: RequestKey, length: int, digest: int, rows: HalfArray) -> None:
        ahead = self._ahead.setdefault(key, [])
        ahead.append((length, digest, rows))
        del ahead[:-_MAX_AHEAD]
        if len(self._ahead) > _MAX_WAITING:
            del self._ahead[next(iter(self._ahead))]

    def grew(self, draft: Draft) -> None:
        """More of the request's text is known."""
        for length, digest, rows in self._ahead.pop(draft.key, ()):
            self._put(draft, length, digest, rows)

    def forget(self, key: RequestKey) -> None:
        """The request ended, or began anew with another text under the same name."""
        self._ahead.pop(key, None)
        self._ready = [one for one in self._ready if one[0] != key]

    def take(self) -> list[Placed]:
        """What is known to belong to its text, since the last call, in the order in which it came."""
        ready, self._ready = self._ready, []
        return ready
