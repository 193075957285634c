"""What each drafter is worth to the requests it serves, judged by what came of it and not by its socket (law 10). Pure: it
is told what happened and when; it sends nothing and decides nothing about guesses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

_WEIGHT = 1 / 64
_KNOWN = 32
"""Verifications after which a drafter's gain is taken for known."""
BARREN_AFTER = 64
"""Verifications, per request that it serves, without a single guess in time: then a drafter serves nobody for a while, if
others do better."""
BARREN_AFTER_S = 1.0
FIRST_REST_S, LONGEST_REST_S = 5.0, 60.0
"""How long it rests before it is tried again: twice as long each time, from the beginning once it has been of use."""
_LEAST = 0.05
"""A drafter counts for at least this much of the mean: it must be seen to get better."""


@dataclass(kw_only=True, slots=True)
class Record:
    """One drafter.

    Attributes:
        num_verified: verifications of requests that it served.
        gain: accepted tokens that were its guesses, per such verification (a moving mean).
        barren: verifications since it was last in time with a guess; `fed_s`: when that was.
        rests_until_s: it is given no request before; `rest_s`: how long its next rest is.
    """

    num_verified: int = 0
    gain: float = 0.0
    barren: int = 0
    fed_s: float = 0.0
    rests_until_s: float = float("-inf")
    rest_s: float = FIRST_REST_S


class Usefulness:
    """Records of all drafters, by peer."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}

    def joined(self, peer: str, *, now: float) -> None:
        """A drafter that is new, or was away: it may be as good as any."""
        self.records[peer] = Record(fed_s=now)

    def left(self, peer: str) -> None:
        self.records.pop(peer, None)

    def verified(
        self, serving: Sequence[str], *, fed: Collection[str], accepted: Mapping[str, int], now: float
    ) -> None:
        """One row was verified.

        Args:
            serving: drafters that serve its request.
            fed: those with a guess in time, by which something was added below the text as it stood.
            accepted: by drafter, how many of the accepted tokens were its guesses.
        """
        for peer in serving:
            record = self.records.setdefault(peer, Record(fed_s=now))
            record.num_verified += 1
            record.gain += (accepted.get(peer, 0) - record.gain) * max(_WEIGHT, 1 / record.num_verified)
            if peer in fed:
                record.barren, record.fed_s = 0, now
                if record.num_verified > BARREN_AFTER:
                    record.rest_s = FIRST_REST_S
            else:
                record.barren += 1

    def is_resting(self, peer: str, *, now: float) -> bool:
        record = self.records.get(peer)
        return record is not None and now < record.rests_until_s

    def judge(self, alike: Mapping[str, int], *, now: float) -> bool:
        """Send to rest who is of no use while another of its kind is; returns whether somebody was.

        Args:
            alike: drafters of one kind that serve, and how many requests each.
        """
        barren = [peer for peer, load in alike.items() if self._is_barren(peer, load=load, now=now)]
        if not any(load and self._is_fed(peer) for peer, load in alike.items()):
            return False
        for peer in barren:
            record = self.records[peer]
            rest_s = record.rest_s
            self.records[peer] = Record(
                fed_s=now + rest_s, rests_until_s=now + rest_s, rest_s=min(2 * rest_s, LONGEST_REST_S)
            )
        return bool(barren)

    def _is_barren(self, peer: str, *, load: int, now: float) -> bool:
        record = self.records.get(peer)
        if record is None or not load:
            return False
        return record.barren >= BARREN_AFTER * load and now - record.fed_s >= BARREN_AFTER_S

    def _is_fed(self, peer: str) -> bool:
        record = self.records.get(peer)
        return record is not None and record.num_verified >= _KNOWN and record.barren < BARREN_AFTER // 2

    def weights(self, step_s: Mapping[str, float]) -> dict[str, float]:
        """How many requests each can serve beside the others: accepted tokens per verification and per busy second of a
        draft step, as a share of the mean. What is not known of one is taken to be the mean of the rest.

        Args:
            step_s: busy seconds per draft step of each drafter (0: not known).
        """
        gains = {peer: self._gain(peer) for peer in step_s}
        mean_gain = _mean([gain for gain in gains.values() if gain is not None])
        mean_step = _mean([seconds for seconds in step_s.values() if seconds > 0])
        weights: dict[str, float] = {}
        for peer, gain in gains.items():
            quality = 1.0 if gain is None or mean_gain <= 0 else max(gain / mean_gain, _LEAST)
            weights[peer] = quality * (mean_step / step_s[peer] if step_s[peer] > 0 else 1.0)
        return weights

    def _gain(self, peer: str) -> float | None:
        record = self.records.get(peer)
        return None if record is None or record.num_verified < _KNOWN else record.gain


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
