"""How many of the candidates are verified: as many as earn the most tokens per second. Looks at estimated probabilities and
costs; it knows no trees, tokens or time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dist_spec.core.control.costs import VerifyCost
from dist_spec.core.messages import NO_FLOOR
from dist_spec.core.score_grid import rounded

_PROBE_AFTER = 64
_FLOOR_SHARE = 0.05
_HIGHEST_FLOOR = math.log(0.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """How many nodes to verify, and how long the step is expected to take (0: not known)."""

    num_nodes: int
    predicted_s: float


class Budget:
    """Chooses the number of nodes per step.

    Args:
        limit: most nodes of one step.
        adaptive: choose by price; else always as many as there are.
    """

    def __init__(self, *, limit: int, adaptive: bool) -> None:
        self.limit = limit
        self.adaptive = adaptive
        self.costs: VerifyCost | None = None
        self._passed_over = 0

    def choose(self, survival: Sequence[float], *, rows: int, extra: int = 0, price: float = 0.0) -> Choice:
        """argmax over n of expected tokens - price x seconds(rows, n), where the expected tokens are rows + the n best
        survivals. At the price of the whole run, that is what earns the most in the long run (Dinkelbach 1967): a step with
        sure guesses may be dear, and a step with poor ones must not be worse than plain decoding. Without a price yet the
        step's own rate, tokens / seconds, is maximised.

        Every n is looked at, as costs may come in steps. When 0 wins over and over although there are candidates, the best
        n > 0 is taken once in a while, so that the costs do not grow stale.

        Args:
            survival: probabilities that each candidate is accepted, best first, at most `limit`.
            rows: sequences that get a verdict in this step.
            extra: tokens of the step beside the candidates and one per row.
            price: tokens per second now being earned (0: not known).
        """
        count = len(survival)
        if self.costs is None:
            return Choice(num_nodes=count, predicted_s=0.0)
        curve = self.costs.curve(max(rows, 1), extra=extra, budget=self.limit)
        if not self.adaptive or count == 0:
            return Choice(num_nodes=count, predicted_s=float(curve[count]))
        # In plain Python: the candidates are few, and every array operation costs as much as a dozen of these rounds.
        seconds = curve[: count + 1].tolist()
        values = [rows - price * seconds[0] if price > 0 else rows / seconds[0]]
        tokens = float(rows)
        for chance, spent in zip(survival, seconds[1:], strict=True):
            tokens += chance
            values.append(tokens - price * spent if price > 0 else tokens / spent)
        best = values.index(max(values))
        if best == 0:
            self._passed_over += 1
            if self._passed_over >= _PROBE_AFTER:
                best = values.index(max(values[1:]), 1)
        if best > 0:
            self._passed_over = 0
        return Choice(num_nodes=best, predicted_s=seconds[best])

    def floor(self, *, price: float, rows: int) -> float:
        """Log of the probability of acceptance below which a node is not worth sending at present.

        A node pays where its probability exceeds price x the seconds it costs; what has not even a twentieth of that will
        hardly come to it by the time it arrives. Never above one half; NO_FLOOR where nodes cost nothing.
        """
        if not self.adaptive or self.costs is None or price <= 0.0:
            return NO_FLOOR
        worth = _FLOOR_SHARE * price * self.costs.slope(max(rows, 1), budget=self.limit)
        if worth <= 0.0:
            return NO_FLOOR
        return float(rounded([min(math.log(worth), _HIGHEST_FLOOR)])[0])  # as it travels
