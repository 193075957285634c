"""How far ahead drafting can be of use: the drafter's and the target's pace, from moments that are told. No clock here."""

from __future__ import annotations

import math

_WEIGHT = 0.1
_FIRST = 4
_SURPRISE = math.log(2.0)
_AHEAD = 2.0
_LEAST_DEPTH, _UNKNOWN_DEPTH = 4, 16


class Follower:
    """A duration that changes slowly: the least of the first few, then a logarithmic moving average in which nothing
    counts for more than twice or less than half of it (a prompt being read, a pause)."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._count = 0

    def saw(self, seconds: float) -> None:
        if seconds <= 0.0:
            return
        self._count += 1
        if self._count <= _FIRST:
            self.seconds = min(self.seconds or seconds, seconds)
        else:
            error = math.log(seconds / self.seconds)
            self.seconds *= math.exp(_WEIGHT * min(max(error, -_SURPRISE), _SURPRISE))

    @property
    def known(self) -> bool:
        return self._count >= _FIRST


class Pace:
    """Seconds per draft step and per verification.

    Attributes:
        link_s: one way between drafter and leader (0: not known).
    """

    def __init__(self) -> None:
        self.link_s = 0.0
        self.draft = Follower()
        self.verify = Follower()
        self._began_s: float | None = None
        self._committed_s: dict[tuple[str, int], float] = {}

    def began(self, *, now: float) -> None:
        """A draft step begins; the one before ended with it, if there was no rest between the two."""
        if self._began_s is not None:
            self.draft.saw(now - self._began_s)
        self._began_s = now

    def rested(self) -> None:
        """There was nothing to draft."""
        self._began_s = None

    def committed(self, key: tuple[str, int], *, now: float) -> None:
        """The target committed something of a request: so often does it verify."""
        last = self._committed_s.get(key)
        if last is not None:
            self.verify.saw(now - last)
        self._committed_s[key] = now

    def closed(self, key: tuple[str, int]) -> None:
        self._committed_s.pop(key, None)

    def depth_cap(self, limit: int) -> int:
        """Depth below the last known head beyond which drafting cannot be of use yet: twice the draft steps that fit
        into a verification and the way there and back. At least 4, at most `limit`."""
        if not (self.draft.known and self.verify.known):
            return min(limit, _UNKNOWN_DEPTH)
        steps = _AHEAD * (self.verify.seconds + 2.0 * self.link_s) / self.draft.seconds
        return min(limit, max(_LEAST_DEPTH, math.ceil(min(steps, float(limit)))))
