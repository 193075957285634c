"""The pipelines of the requests that a step runs, each kept at its request's committed text. It knows plans, not models."""

from __future__ import annotations

from collections.abc import Sequence

from dist_spec.core.plan import PlanRow
from dist_spec.core.sampling.history import History
from dist_spec.core.sampling.pipeline import Pipeline, Scratch


class Pipelines:
    """One pipeline per request of the present plan; those that are not in it are forgotten (and made again if need be).

    Args:
        eos_ids: the model's end-of-sequence ids.
    """

    def __init__(self, *, eos_ids: Sequence[int] = ()) -> None:
        self._eos_ids = tuple(eos_ids)
        self._scratch = Scratch()
        self._pipelines: dict[tuple[str, int], Pipeline] = {}

    def keep(self, rows: Sequence[PlanRow]) -> None:
        """Forget all requests but these."""
        if len(self._pipelines) > len(rows):
            keys = {row.key for row in rows}
            self._pipelines = {key: one for key, one in self._pipelines.items() if key in keys}

    def of(self, row: PlanRow) -> Pipeline:
        """The row's pipeline, at its base."""
        pipeline = self._pipelines.get(row.key)
        # A name may be used again after its request ended; the list of tokens is a request's own.
        if pipeline is None or pipeline.history.source is not row.history or pipeline.sampling is not row.sampling:
            pipeline = self._pipelines[row.key] = self._begin(row)
        if row.sampling.needs_history:
            pipeline.history.extend(row.base_length)
        return pipeline

    def _begin(self, row: PlanRow) -> Pipeline:
        sampling = row.sampling
        ends = sampling.stop_token_ids if sampling.ignore_eos else (*sampling.stop_token_ids, *self._eos_ids)
        history = History(row.history, prompt_length=row.prompt_length, length=0)
        return Pipeline(sampling, history=history, end_ids=ends, scratch=self._scratch)
