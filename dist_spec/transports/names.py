"""Short names for requests on one end's links: 4 bytes instead of a text that a frontend chose. It knows no session.

A request's handle is a hash of its name and generation, so both ends find it without agreeing on anything, and it means
the same after a restart. A sender uses it towards peers that spoke of the request before; everyone else is told the name.
Whoever meets a handle that it does not know (it was restarted, or lost an `Open`) calls the request "#" and the handle,
asks about it under that name as about any other, and the end that is asked knows which one is meant. So nothing needs
to arrive for names to work (law 3).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from zlib import crc32

from dist_spec.core.messages import Bye, Close, Commit, Features, Hello, Message, Need, Open, Propose
from dist_spec.transports.codec import unknown_name
from dist_spec.transports.stream import RequestName

__all__ = ["Names", "handle_of"]

MAX_REQUESTS = 4096
"""Requests remembered, those spoken of last."""

_MAX_PEERS = 64
"""Peers of which it is remembered that they know one request: strangers must not fill the memory."""

_Named = Open | Commit | Propose | Need | Close | Features


def handle_of(name: RequestName) -> int:
    """The 32-bit handle of (request, generation)."""
    request, generation = name
    return crc32(f"{generation} {request}".encode(errors="replace"))


@dataclass(slots=True)
class _Entry:
    handle: int
    peers: set[str] = field(default_factory=set)


class Names:
    """What one end knows of requests' names, and which of its peers know them too."""

    def __init__(self, *, limit: int = MAX_REQUESTS) -> None:
        self._limit = limit
        self._entries: OrderedDict[RequestName, _Entry] = OrderedDict()
        self._by_handle: dict[int, list[RequestName]] = {}  # names of one handle: hardly ever more than one

    def outgoing(self, message: Message, *, peer: str) -> int | None:
        """Take note of a message to be sent; its request's handle if the peer will understand it."""
        if not isinstance(message, _Named):
            return None
        name = (message.request, message.generation)
        entry = self._entry(name)
        if entry is None or peer not in entry.peers or self._by_handle[entry.handle] != [name]:
            return None
        return entry.handle if isinstance(message, Commit | Propose | Features) else None

    def incoming(self, message: Message, *, peer: str) -> Message:
        """Take note of a message that came; the message, by its request's real name where it came by a handle's."""
        if isinstance(message, Hello | Bye):  # whoever greets, or sends us to greet, may remember nothing
            for known in self._entries.values():
                known.peers.discard(peer)
            return message
        if not isinstance(message, _Named):
            return message
        if isinstance(message, Need | Close) and message.request.startswith("#"):
            request, generation = self.resolve(_handle_in(message.request))
            if not request.startswith("#"):
                message = replace(message, request=request, generation=generation)
        entry = self._entry((message.request, message.generation))
        if entry is not None and len(entry.peers) < _MAX_PEERS:
            entry.peers.add(peer)
        return message

    def resolve(self, handle: int) -> RequestName:
        """The request that a handle stands for; "#" and the handle if that is not known, or not clear."""
        names = self._by_handle.get(handle, ())
        return names[0] if len(names) == 1 else unknown_name(handle)

    def _entry(self, name: RequestName) -> _Entry | None:
        known = self._entries.get(name)
        if known is not None:
            self._entries.move_to_end(name)
            return known
        if name[0].startswith("#"):
            return None
        entry = self._entries[name] = _Entry(handle_of(name))
        self._by_handle.setdefault(entry.handle, []).append(name)  # two names with one handle go by their names
        if len(self._entries) > self._limit:
            self._forget(*self._entries.popitem(last=False))
        return entry

    def _forget(self, name: RequestName, entry: _Entry) -> None:
        names = self._by_handle[entry.handle]
        names.remove(name)
        if not names:
            del self._by_handle[entry.handle]


def _handle_in(request: str) -> int:
    """The inverse of `unknown_name`; -1 for another text."""
    try:
        handle = int(request[1:], 16)
    except ValueError:
        return -1
    return handle if unknown_name(handle)[0] == request else -1
