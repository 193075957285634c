"""Times the drafter's steps and the target's forwards in turns, in one process on the same core, so that a busy machine hits
both alike. It decides nothing and keeps nothing."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from dist_spec.bench.score.expected import Seconds
from dist_spec.core.control.costs import VerifyCost
from dist_spec.core.prefix import Prefix
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import ForwardRow, Sampling
from dist_spec.drafters.base import Drafter, ExpandRow, Featured, RequestKey
from dist_spec.models.runner import ModelRunner
from dist_spec.telemetry.timeline import Timeline
from dist_spec.workers.costs import Space, measure_costs
from dist_spec.workers.model_backend import ModelBackend

_CONTEXT = 128
_WARM_UP = 3
_CHAIN = 4
_KEY: RequestKey = ("score-timed", 0)


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Pinned to these cores meanwhile (none: left alone), with one torch thread each."""
    import torch

    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    try:
        if cores:
            os.sched_setaffinity(0, cores)
            torch.set_num_threads(len(cores))
        yield
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)


def verify_cost(runner: ModelRunner, *, max_model_len: int, max_nodes: int) -> VerifyCost:
    """Seconds of whole verifications, verdict included, of one sequence."""
    backend = ModelBackend(
        runner,
        vocab_size=runner.vocab_size,
        rule="auto",
        noise_rows=1,
        with_margin=False,
        timeline=Timeline(perf_counter),
    )
    space = Space(
        num_blocks=runner.num_blocks,
        block_size=runner.block_size,
        max_model_len=max_model_len,
        max_rows=1,
        max_nodes=max_nodes,
    )
    return measure_costs(backend, space, clock=perf_counter)


def time_steps(
    drafter: Drafter,
    runner: ModelRunner,
    tokens: Sequence[int],
    *,
    sampling: Sampling,
    features: Any,
    width: int,
    rounds: int,
    verify: VerifyCost,
    step_s: float = 0.0,
) -> Seconds:
    """Medians over rounds; in each the target reads one token, and the drafter drafts below a text one token longer.

    Args:
        step_s: what every step of the drafter is made to take beside its own work (scripted ones).
        tokens: a text to do it on, at least two tokens; features: the target's along it (None: none).
        width: leaves of the wide step.
    """
    context = max(min(_CONTEXT, len(tokens) - rounds - _WARM_UP - 1), 1)
    target = _target_step(runner, tokens[:context])
    timed = _DraftTimer(drafter, tokens, context=context, sampling=sampling, features=features, width=width)
    spent: dict[str, list[float]] = {"target": [], "first": [], "next": [], "wide": []}
    for turn in range(min(rounds + _WARM_UP, len(tokens) - context)):
        found = {"target": [_seconds(target)], **timed.round()}
        for name, values in found.items():
            if turn >= min(_WARM_UP, len(tokens) - context - 1):
                spent[name] += values
    drafter.close(_KEY)
    first = statistics.median(spent["first"]) + step_s
    token = statistics.median(spent["next"] or spent["first"]) + step_s
    return Seconds(
        target_token_s=statistics.median(spent["target"]),
        draft_token_s=token,
        draft_first_s=first,
        draft_wide_s=max(statistics.median(spent["wide"]) + step_s, token) if spent["wide"] else token,
        width=timed.widest,
        verify=verify,
    )


class _DraftTimer:
    """Drafts below one text that grows by a token per round: a chain, then a step with several leaves."""

    def __init__(
        self, drafter: Drafter, tokens: Sequence[int], *, context: int, sampling: Sampling, features: Any, width: int
    ) -> None:
        self.widest = 1
        self._drafter = drafter
        self._tokens = list(tokens)
        self._prefix = Prefix(tokens[:context])
        self._slots = [-1] * context
        self._context = context
        self._sampling = sampling
        self._features = features
        self._told = 0
        self._width = width

    def round(self) -> dict[str, list[float]]:
        """Seconds of the first step, of the further ones of a chain, and of a wide one; then the text grows."""
        tree = DraftTree(len(self._prefix), self._prefix.tokens[-1])
        first = self._expand(tree, [tree.root], tell=True)
        chain: list[float] = []
        node = tree.root
        while len(chain) < _CHAIN - 1 and tree.children[node]:
            node = tree.children[node][0]
            chain.append(self._expand(tree, [node]))
        leaves = [one for one in tree.nodes()[1:] if one not in tree.best_chain(_CHAIN)][: self._width]
        wide = [self._expand(tree, leaves)] if len(leaves) > 1 and len(leaves) >= self.widest else []
        if wide:
            self.widest = len(leaves)
        self._grow()
        return {"first": [first], "next": chain, "wide": wide}

    def _expand(self, tree: DraftTree, leaves: list[int], *, tell: bool = False) -> float:
        row = ExpandRow(
            key=_KEY,
            history=self._prefix.tokens,
            history_slots=self._slots,
            prompt_length=self._context,
            generated_offset=0,
            sampling=self._sampling,
            tree=tree,
            leaves=leaves,
            width=self._width,
            digest=self._prefix.digest,
        )
        begun = perf_counter()
        if tell:
            self._tell()
        answers = self._drafter.expand([row])[0]
        spent = perf_counter() - begun
        for leaf, one in zip(leaves, answers, strict=True):
            tree.graft(leaf, one.tokens, one.parents, one.scores)
        return spent

    def _tell(self) -> None:
        known = len(self._prefix) - 1
        if isinstance(self._drafter, Featured) and self._features is not None and self._told < known:
            self._drafter.features(_KEY, self._told, self._features[self._told : known])
            self._told = known

    def _grow(self) -> None:
        if len(self._prefix) < len(self._tokens):
            self._prefix.extend([self._tokens[len(self._prefix)]])
            self._slots.append(-1)


def _target_step(runner: ModelRunner, tokens: Sequence[int]) -> Callable[[], Any]:
    """A forward of one token behind the others, with its logits."""
    table = np.arange(runner.num_blocks, dtype=np.int32)

    def row(cached: int, part: Sequence[int], wanted: int) -> ForwardRow:
        return ForwardRow(
            block_table=table,
            cached=cached,
            tokens=np.array(part, np.int32),
            num_pending=len(part),
            parents=np.empty(0, np.int32),
            num_logits=wanted,
        )

    if len(tokens) > 1:
        runner.launch([row(0, tokens[:-1], 0)]).wait()
    step = row(len(tokens) - 1, tokens[-1:], 1)
    return lambda: runner.launch([step]).wait()


def _seconds(run: Callable[[], Any]) -> float:
    begun = perf_counter()
    run()
    return perf_counter() - begun
