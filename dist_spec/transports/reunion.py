"""Holds a commit back for a moment when its features come over another link and are not there yet, so that the first guess
after it can rest on them. It knows no link and no clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeAlias

from dist_spec.core.feature_inbox import features_of
from dist_spec.core.messages import Commit, Features
from dist_spec.transports.base import Received

_Name: TypeAlias = tuple[str, int, int, int]
"""(request, generation, length, digest) of the text that features end with"""

PATIENCE_S = 0.02
"""How long a commit waits: features that were lost must not stop a drafter."""
_MAX_SEEN = 1024


class Reunion:
    """Messages in, messages out, mostly the same. Whatever it does costs or saves speed only: content has names (law 3)."""

    def __init__(self, *, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._seen: OrderedDict[_Name, None] = OrderedDict()
        self._held: dict[_Name, tuple[float, Received]] = {}

    @property
    def due_s(self) -> float:
        """When the commit that waits longest is let go (infinity: none waits)."""
        return min((until_s for until_s, _ in self._held.values()), default=float("inf"))

    def passed(self, received: Iterable[Received], *, now: float, is_up: bool) -> list[Received]:
        """What is to be handed on now.

        Args:
            is_up: whether the other link still works; without it nothing is waited for.
        """
        out: list[Received] = []
        for peer, message in received:
            if isinstance(message, Features):
                name = (message.request, message.generation, message.base_length, message.base_digest)
                out.append((peer, message))
                self._saw(name)
                if name in self._held:
                    out.append(self._held.pop(name)[1])
            elif isinstance(message, Commit) and message.apart and is_up and (name := _name(message)) not in self._seen:
                if name in self._held:  # told again
                    out.append(self._held.pop(name)[1])
                self._held[name] = now + self._patience_s, (peer, message)
            else:
                out.append((peer, message))
        for name in [name for name, (until_s, _) in self._held.items() if now >= until_s or not is_up]:
            out.append(self._held.pop(name)[1])
        return out

    def _saw(self, name: _Name) -> None:
        self._seen[name] = None
        if len(self._seen) > _MAX_SEEN:
            self._seen.popitem(last=False)


def _name(commit: Commit) -> _Name:
    named = features_of(commit)
    return named.request, named.generation, named.base_length, named.base_digest
