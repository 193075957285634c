"""How a drafter or frontend keeps in touch with the leader: greet, ping when silent, greet again when not heard.

Sans-I/O: it says what to send, and is told what arrived and when.
"""

from __future__ import annotations

from dist_spec.core.messages import Bye, Hello, Message, Ping


class Attachment:
    """One connection to the leader as seen from the connecting side.

    Args:
        hello: the greeting.
        heartbeat_s: a ping goes out this often; after three of them without a word from the
            leader the greeting is repeated (it, or the answer, was lost, or the leader is new).
    """

    def __init__(self, hello: Hello, *, heartbeat_s: float = 1.0) -> None:
        self.hello = hello
        self.heartbeat_s = heartbeat_s
        self.progress = 0
        self.busy_s = 0.0
        self._sent_s = self._pinged_s = float("-inf")
        self._heard_s = float("-inf")

    def start(self, *, now: float) -> list[Message]:
        self._heard_s = now
        return self._greet(now)

    def _greet(self, now: float) -> list[Message]:
        self._sent_s = now
        return [self.hello]

    def heard(self, message: Message, *, now: float) -> list[Message]:
        """Note traffic from the leader; answers a leader that does not know us."""
        self._heard_s = now
        if isinstance(message, Bye) and not message.fatal:
            return self._greet(now)
        return []

    def sent(self, *, now: float) -> None:
        self._sent_s = now

    def quiet_s(self, *, now: float) -> float:
        """Seconds since the leader was last heard."""
        return now - self._heard_s

    def tick(self, *, now: float) -> list[Message]:
        if now - self._heard_s > 3 * self.heartbeat_s and now - self._sent_s >= self.heartbeat_s:
            return self._greet(now)
        if now - self._pinged_s >= self.heartbeat_s:  # other traffic or not: it carries figures for the report
            self._sent_s = self._pinged_s = now
            return [Ping(progress=self.progress, busy_s=self.busy_s)]
        return []
