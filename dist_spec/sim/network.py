"""Links of virtual time with latency, jitter, loss, duplication and reordering; every draw comes from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from dist_spec.core.messages import Message
from dist_spec.sim.clock import Clock
from dist_spec.transports.base import LEADER, Received
from dist_spec.transports.ledger import Ledger


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """How one direction behaves. Probabilities are per message; a reordered message is held back by `reorder_s`."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_s: float = 0.02


class Network:
    """Star network around the leader. Without faults every direction is first in, first out."""

    def __init__(self, clock: Clock, *, link: Link, seed: int) -> None:
        self.clock = clock
        self.link = link
        self.cut: set[str] = set()
        self._random = random.Random(seed)
        self._inboxes: dict[str, list[Received]] = {}
        self._wake: dict[str, Callable[[], None]] = {}
        self._last: dict[tuple[str, str], float] = {}

    def attach(self, name: str, wake: Callable[[], None]) -> Endpoint:
        """Join (or rejoin, empty-handed) under `name`; `wake` is called after every delivery."""
        self._inboxes[name] = []
        self._wake[name] = wake
        return Endpoint(self, name)

    def detach(self, name: str) -> None:
        self._inboxes.pop(name, None)
        self._wake.pop(name, None)

    def post(self, source: str, target: str, message: Message) -> None:
        draw, link = self._random.random, self.link
        if source in self.cut or target in self.cut or (link.loss and draw() < link.loss):
            return
        copies = 2 if link.duplicate and draw() < link.duplicate else 1
        for _ in range(copies):
            delay = link.latency_s + (link.jitter_s * draw() if link.jitter_s else 0.0)
            arrival = self.clock.now + delay
            if link.reorder and draw() < link.reorder:
                arrival += link.reorder_s * draw()
            else:  # a stream keeps its order unless a fault breaks it
                arrival = max(arrival, self._last.get((source, target), 0.0))
                self._last[source, target] = arrival
            self.clock.at(arrival, lambda: self._deliver(source, target, message))

    def _deliver(self, source: str, target: str, message: Message) -> None:
        if target in self._inboxes and target not in self.cut:
            self._inboxes[target].append((source, message))
            self._wake[target]()

    def take(self, name: str) -> list[Received]:
        received, self._inboxes[name] = self._inboxes.get(name, []), []
        return received


class Endpoint:
    """One end, with the contract of every transport."""

    def __init__(self, network: Network, name: str) -> None:
        self.ledger = Ledger()
        self._network = network
        self._name = name

    def send(self, peer: str, message: Message) -> None:
        self._network.post(self._name, peer, message)

    def receive(self, timeout_s: float) -> list[Received]:
        """What has arrived; virtual time does not pass here."""
        return self._network.take(self._name)

    def close(self) -> None:
        self._network.detach(self._name)


__all__ = ["LEADER", "Endpoint", "Link", "Network"]
