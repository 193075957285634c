"""The price of the target's time: tokens per second now being earned, and what a wait on a miss is worth against it."""

from __future__ import annotations


class Price:
    """Exponentially weighted tokens per second (design section 5: one scalar decides).

    A thing is worth doing iff expected extra tokens > price x extra seconds on the critical path.
    """

    def __init__(self, *, weight: float = 0.05) -> None:
        self._weight = weight
        self._tokens = 0.0
        self._seconds = 0.0

    def earned(self, tokens: int, seconds: float) -> None:
        self._tokens += self._weight * (tokens - self._tokens)
        self._seconds += self._weight * (seconds - self._seconds)

    @property
    def tokens_per_s(self) -> float:
        return self._tokens / self._seconds if self._seconds > 0 else 0.0


class MissWait:
    """How long a row without a guess may wait for one (`on_miss: wait`).

    Learns what waiting brought (tokens accepted in the step after a wait, 0 when nothing came) and how long the answer
    took. A wait that costs more than it brings is not started; every `probe_every`-th miss waits all the same, within
    the bound, so that a drafter which became fast is noticed.
    """

    def __init__(self, *, max_wait_s: float, probe_every: int = 32) -> None:
        self.max_wait_s = max_wait_s
        self._probe_every = probe_every
        self._gain_tokens = 1.0
        self._answer_s = 0.0
        self._misses = 0

    def bound_s(self, price_tokens_per_s: float) -> float:
        """Seconds to wait at most now (0: do not)."""
        self._misses += 1
        if self._misses % self._probe_every == 0 or price_tokens_per_s <= 0:
            return self.max_wait_s
        worth_s = self._gain_tokens / price_tokens_per_s
        return min(self.max_wait_s, worth_s) if self._answer_s < worth_s else 0.0

    def answered(self, seconds: float) -> None:
        self._answer_s += 0.1 * (seconds - self._answer_s)

    def brought(self, tokens: int) -> None:
        self._gain_tokens += 0.05 * (tokens - self._gain_tokens)
