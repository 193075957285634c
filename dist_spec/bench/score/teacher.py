"""What the target says along a known text: its logits before every generated token, its features, its distribution. It
knows no drafter and writes no text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dist_spec.bench.score.texts import Text
from dist_spec.core.sampling.history import History
from dist_spec.core.sampling.pipeline import Pipeline
from dist_spec.core.types import FloatArray, ForwardRow
from dist_spec.models.runner import ModelRunner

_CHUNK = 256


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reading:
    """One text read by the target.

    Attributes:
        logits: (len(output), vocab) before every generated token.
        features: (len(tokens), size) float16, row i after reading token i; None: not asked for.
    """

    logits: FloatArray
    features: npt.NDArray[np.float16] | None


class Teacher:
    """Reads texts with a runner whose cache is free.

    Args:
        layers: whose outputs make the features; empty: none.
    """

    def __init__(self, runner: ModelRunner, *, layers: Sequence[int] = ()) -> None:
        self._runner = runner
        self._layers = tuple(layers)
        self._blocks = np.arange(runner.num_blocks, dtype=np.int32)

    def read(self, text: Text) -> Reading:
        """One pass over the text, in chunks.

        Raises:
            CapacityError: it is longer than the cache.
        """
        tokens = np.array(text.tokens, dtype=np.int32)
        wanted = len(text.prompt) - 1  # the row after the last prompt token tells of the first generated one
        logits: list[FloatArray] = []
        features: list[npt.NDArray[np.float16]] = []
        self._runner.capture(self._layers)
        try:
            for first in range(0, len(tokens), _CHUNK):
                part = tokens[first : first + _CHUNK]
                count = max(0, min(len(part), first + len(part) - wanted))
                pending = self._runner.launch([self._row(first, part, count)])
                logits.append(pending.wait().float().cpu().numpy())
                if self._layers:
                    features.append(pending.features(range(len(part))))
        finally:
            self._runner.capture(())
        return Reading(
            logits=np.concatenate(logits)[: len(text.output)],
            features=np.concatenate(features) if features else None,
        )

    def _row(self, cached: int, tokens: npt.NDArray[np.int32], count: int) -> ForwardRow:
        return ForwardRow(
            block_table=self._blocks,
            cached=cached,
            tokens=tokens,
            num_pending=len(tokens),
            parents=np.empty(0, dtype=np.int32),
            num_logits=count,
        )


def distributions(text: Text, reading: Reading, *, end_ids: Sequence[int]) -> Iterator[npt.NDArray[np.float64]]:
    """(V,) the distribution that every generated token was drawn from, by the request's processors."""
    tokens = text.tokens
    history = History(tokens, prompt_length=len(text.prompt), length=len(text.prompt))
    ends = {*end_ids, *text.sampling.stop_token_ids}
    pipeline = Pipeline(text.sampling, history=history, end_ids=ends)
    for number, row in enumerate(reading.logits):
        history.extend(len(text.prompt) + number)
        yield pipeline.probs(row)
