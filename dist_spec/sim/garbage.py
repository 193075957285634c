"""Proposals that a mad drafter might send: wrong prefixes, wild tokens, senseless trees. Well formed as messages, since
what is not is stopped by the codec."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from dist_spec.core.messages import Propose
from dist_spec.core.sequence import Sequence

_FIRST_SERIAL = 1 << 31


class GarbageSource:
    """Endless garbage about the leader's requests, drawn from one seed."""

    def __init__(self, seed: str, *, vocab_size: int) -> None:
        self._draw = random.Random(seed)
        self._vocab_size = vocab_size
        self._serial = _FIRST_SERIAL

    def about(self, sequences: Iterable[Sequence]) -> list[Propose]:
        """One proposal per sequence."""
        return [self._proposal(sequence) for sequence in sequences]

    def _proposal(self, sequence: Sequence) -> Propose:
        draw, prefix = self._draw, sequence.prefix
        right = draw.random() < 0.5  # wild guesses below the right prefix, or a wrong one altogether
        highest = self._vocab_size * (2 if draw.random() < 0.25 else 1) - 1
        count = draw.randint(0, 40)
        self._serial += 1
        return Propose(
            request=sequence.request if draw.random() < 0.8 else "nobody",
            generation=sequence.generation + (draw.random() < 0.2),
            base_length=len(prefix) if right else draw.randint(0, 2 * len(prefix)),
            base_digest=prefix.digest if right else draw.getrandbits(64),
            tokens=np.array([draw.randint(0, highest) for _ in range(count)], np.int32),
            parents=np.array([draw.randint(-1, i - 1) for i in range(count)], np.int32),
            scores=np.array([-draw.random() for _ in range(count)], np.float32),
            serial=self._serial,
        )
