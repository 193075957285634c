"""How a scripted drafter is wrong: the rank at which the truth stands among its guesses, as a function of (seed,
position) alone. It knows no tokens, trees or requests."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dist_spec.core.types import FloatArray
from dist_spec.errors import ConfigError

_TAG = 0x72616E6B6C6177  # "ranklaw": keeps these draws apart from the noise of sampling
_TINY = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLaw:
    """First guess right with probability a_t, the next with `b` of the rest, and so on.

    Attributes:
        a: probability that the first guess is right; its mean when `concentration` is set.
        b: probability that a later guess is right, given that those before it are wrong.
        concentration: None for a_t = a everywhere; else a_t ~ Beta(a * concentration, (1 - a) * concentration), drawn
            per position and known to the drafter.

    Raises:
        ConfigError: a or b lies outside [0, 1], or the concentration is not positive (and a not strictly inside).
    """

    a: float
    b: float
    concentration: float | None = None

    def __post_init__(self) -> None:
        if not (0.0 <= self.a <= 1.0 and 0.0 <= self.b <= 1.0):
            raise ConfigError(f"a rank law needs a and b in [0, 1], got {self.a} and {self.b}")
        if self.concentration is not None and not (self.concentration > 0.0 and 0.0 < self.a < 1.0):
            raise ConfigError(
                f"a rank law with concentration ({self.concentration}) needs it positive and 0 < a < 1 (a={self.a})"
            )

    def draw(self, seed: int, position: int, *, stream: int = 0) -> tuple[float, int, int]:
        """What holds at one absolute position.

        Args:
            seed: unsigned 64-bit.
            position: of the token guessed at.
            stream: independent draws for one position (0: on the true text).

        Returns: (confidence a_t, rank of the truth counted from 1 or 0 for never, a random 32-bit word for decoys).
        """
        counter = np.array([0, position, stream, 0], dtype=np.uint64)
        key = np.array([seed, _TAG], dtype=np.uint64)
        draws = np.random.Generator(np.random.Philox(key=key, counter=counter))
        first, later, word = draws.random(3).tolist()
        confidence = self.a
        if self.concentration is not None:
            confidence = float(draws.beta(self.a * self.concentration, (1.0 - self.a) * self.concentration))
        rank = 1 if first < confidence else self._later_rank(later)
        return confidence, rank, int(word * 2**32)

    def scores(self, confidence: float, *, width: int) -> FloatArray:
        """(width,) float32: log probability of each guess, best first, for one confidence."""
        first = min(max(confidence, _TINY), 1.0 - _TINY)
        later = min(max(self.b, _TINY), 1.0 - _TINY)
        beyond = math.log(1.0 - first) + math.log(later)  # rank 2
        ladder = [beyond + step * math.log(1.0 - later) for step in range(width - 1)]
        return np.array([math.log(first), *ladder], dtype=np.float32)[:width]

    def _later_rank(self, uniform: float) -> int:
        """2, 3, ... with probabilities b, (1 - b) b, ...; 0 when no guess is ever right."""
        if self.b == 0.0:
            return 0
        if self.b == 1.0:
            return 2
        return 2 + int(math.log1p(-uniform) / math.log1p(-self.b))
