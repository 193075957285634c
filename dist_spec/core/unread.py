"""Ends of requests of which frontends were told and have not yet said that they read it: a leader that ends stays for that
long. It sends nothing and knows no clock."""

from __future__ import annotations

from collections.abc import Set

_MAX_UNREAD = 256
"""A frontend that never answers must not fill the memory."""


class Unread:
    """By (request, generation), the frontend that was told last."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, int], str] = {}

    def told(self, key: tuple[str, int], *, peer: str) -> None:
        """Note an end on its way to this frontend ("": a request of this process's own, which needs no answer)."""
        if not peer:
            return
        self._told.pop(key, None)
        self._told[key] = peer
        while len(self._told) > _MAX_UNREAD:
            del self._told[next(iter(self._told))]

    def read(self, key: tuple[str, int], *, peer: str) -> None:
        """This frontend has read the end of this request."""
        if self._told.get(key) == peer:
            del self._told[key]

    def left(self, peer: str) -> None:
        """This frontend reads nothing any more."""
        self._told = {key: one for key, one in self._told.items() if one != peer}

    @property
    def peers(self) -> Set[str]:
        """Frontends that have yet to read something."""
        return set(self._told.values())
