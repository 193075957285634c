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

    Attributes:
        round_trip_s: of the last answered ping, or of the greeting (0: none yet).
    """

    def __init__(self, hello: Hello, *, heartbeat_s: float = 1.0) -> None:
        self.hello = hello
        self.heartbeat_s = heartbeat_s
        self.progress = 0
        self.busy_s = 0.0
        self._sent_s = self._pinged_s = float("-inf")
        self._heard_s = float("-inf")
        self.round_trip_s = 0.0
        self._greeted_s: float | None = None
        self._clock_s = self._clock_heard_s = 0.0

    def start(self, *, now: float) -> list[Message]:
        self._heard_s = now
        return self._greet(now)

    def _greet(self, now: float) -> list[Message]:
        self._sent_s = self._greeted_s = now
        return [self.hello]

    def heard(self, message: Message, *, now: float) -> list[Message]:
        """Note traffic from the leader; answers a leader that does not know us."""
        self._heard_s = now
        if isinstance(message, Bye) and not message.fatal:
            return self._greet(now)
        if isinstance(message, Ping):
            self._clock_s, self._clock_heard_s = message.sent_s, now
            if message.echo_s > 0.0:
                self.round_trip_s = max(now - message.echo_s, 0.0)
            elif self._greeted_s is not None:  # the answer to the greeting
                self.round_trip_s = now - self._greeted_s
            self._greeted_s = None
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
            echo_s = self._clock_s + (now - self._clock_heard_s) if self._clock_s else 0.0
            return [Ping(progress=self.progress, busy_s=self.busy_s, sent_s=now, echo_s=echo_s)]
        return []
