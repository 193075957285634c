"""A drafter that is always wrong and always sure of itself: the control of every benchmark. It looks at no text.

As a plugin: `kind: plugin, target: "dist_spec.bench.random_drafter:RandomDrafter", options: {vocab_size: 49152}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dist_spec.core.types import NO_PARENT, Expansion
from dist_spec.errors import ConfigError

if TYPE_CHECKING:
    from dist_spec.drafters.base import ExpandRow, RequestKey

_CONFIDENCE = 0.9  # claimed for the first guess; of what is left, for the next, and so on


class RandomDrafter:
    """Uniformly random tokens with scores that claim them to be almost certain.

    Args:
        seed: of the tokens.
        vocab_size: ids are drawn from 0 .. vocab_size - 1.
        width: guesses below each leaf at most.

    Raises:
        ConfigError: vocabulary or width is not positive.
    """

    kind = "random"

    def __init__(self, *, seed: int = 0, vocab_size: int = 32_000, width: int = 4) -> None:
        if vocab_size < 1 or width < 1:
            raise ConfigError(f"vocab_size ({vocab_size}) and width ({width}) must be at least 1")
        self._random = np.random.default_rng(seed)
        self._vocab_size = vocab_size
        self._width = min(width, vocab_size)

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        """See `Drafter.expand`."""
        return [[self._guess(min(row.width, self._width)) for _ in row.leaves] for row in rows]

    def close(self, key: RequestKey) -> None:
        """See `Drafter.close`: there is nothing to forget."""

    def _guess(self, width: int) -> Expansion:
        tokens = self._random.integers(0, self._vocab_size, 2 * width + 8)
        different = np.array(list(dict.fromkeys(tokens.tolist()))[:width], dtype=np.int32)
        number = len(different)
        claimed = _CONFIDENCE * (1.0 - _CONFIDENCE) ** np.arange(number)
        scores = np.log(claimed).astype(np.float32)
        features = np.stack([scores, np.arange(number, dtype=np.float32)], axis=1)
        return Expansion(
            tokens=different, parents=np.full(number, NO_PARENT, dtype=np.int32), scores=scores, features=features
        )
