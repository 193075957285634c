"""How long a message was under way, from the sender's clock and ours; it reads no clock itself.

On one host both read the same clock. On two the difference of the clocks is not known: the quickest message of late
tells it, but for the time that even this one needed, which is half the quickest round trip (`Ping.echo_s`).
"""

from __future__ import annotations

_MODULUS = 1 << 32
"""Clocks travel in microseconds modulo this."""
_SAME_US = 1_000_000
"""Clocks of two hosts show a smallest difference between 0 and this by chance only (once in 4295)."""
_LATE_US = 60_000_000
"""No message of a process on this host is older."""
_WINDOW_S = 30.0
"""Two clocks drift apart: the quickest message counts for one to two of these."""


def stamp(now: float) -> int:
    """Our clock (seconds) as it travels."""
    return int(now * 1e6) % _MODULUS


class PeerClock:
    """One peer's clock against ours."""

    def __init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self._origin: int | None = None
        self._least = self._lowest = self._lowest_before = 0
        self._window_ends_s = float("-inf")
        self._round_trip_s = float("inf")
        self._greeted = False

    def under_way_s(self, sent_us: int, *, now: float) -> float:
        """Seconds that a message took which says it was sent at `sent_us`; never negative."""
        raw = stamp(now) - sent_us
        if self._greeted and not (self._is_ours and 0 <= self._since_origin(raw) < _LATE_US):
            self._restart()
        self._greeted = False
        if self._origin is None:
            self._origin = raw
            self._least = self._lowest = self._lowest_before = _signed(raw)
            self._window_ends_s = now + _WINDOW_S
        difference = self._since_origin(raw)
        if now >= self._window_ends_s:
            self._lowest_before, self._lowest = self._lowest, difference
            self._window_ends_s = now + _WINDOW_S
        self._lowest = min(self._lowest, difference)
        self._least = min(self._least, difference)
        if self._is_ours:
            return difference * 1e-6
        return (difference - min(self._lowest, self._lowest_before)) * 1e-6 + self._half_round_trip_s

    def _since_origin(self, raw: int) -> int:
        """A difference near the first one, so that it does not jump where clocks wrap."""
        origin = self._origin or 0
        return _signed(origin) + _signed(raw - origin)

    def round_trip(self, seconds: float) -> None:
        """A message and its echo took this long, all waiting included."""
        if seconds > 0:
            self._round_trip_s = min(self._round_trip_s, seconds)

    def greeted(self) -> None:
        """Whoever bears the name now may be another process, on another host."""
        self._greeted = True

    @property
    def one_way_s(self) -> float:
        """The least time that a message took (on two hosts: half the quickest round trip)."""
        return self._least * 1e-6 if self._is_ours else self._half_round_trip_s

    @property
    def _is_ours(self) -> bool:
        return self._origin is not None and 0 <= self._least < _SAME_US

    @property
    def _half_round_trip_s(self) -> float:
        return self._round_trip_s / 2 if self._round_trip_s < float("inf") else 0.0


def _signed(difference: int) -> int:
    """The difference of two clocks modulo 2^32 as the smallest number that it can be."""
    return (difference + _MODULUS // 2) % _MODULUS - _MODULUS // 2
