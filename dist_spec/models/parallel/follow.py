"""A follower's life: take an order, do the same step as the leader, answer. It decides nothing and knows no requests."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import torch

from dist_spec.core.verification.chosen import Chosen
from dist_spec.models.loading import LoadedModel
from dist_spec.models.packed import ATTENTION
from dist_spec.models.parallel.argmax import ShardChooser
from dist_spec.models.parallel.gather import gather_rows, local_rows
from dist_spec.models.parallel.group import TpGroup
from dist_spec.models.parallel.order import HEADER_WORDS, Kind, StepOrder, Words, decode, opened
from dist_spec.models.parallel.runner import NOTHING, answer, chooser_of, digest_of, wanted_rows
from dist_spec.models.runner import ModelRunner


@dataclass(kw_only=True, slots=True)
class _Pool:
    runner: ModelRunner
    chooser: ShardChooser


class Follower:
    """Executes the leader's orders.

    Args:
        stopping: whether this process was asked to end; the leader is told, and ends all ranks.
        noise_maker: see `ModelBackend`.

    Attributes:
        num_steps: packed forwards so far.
        digest: of all orders so far.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        group: TpGroup,
        stopping: Callable[[], bool],
        noise_maker: Executor | None = None,
    ) -> None:
        self.loaded = loaded
        self.group = group
        self.num_steps = 0
        self.digest = 0
        self._stopping = stopping
        self._noise_maker = noise_maker
        self._pools: dict[int, _Pool] = {}
        self._header = torch.zeros(HEADER_WORDS, dtype=torch.int64)

    def run(self) -> None:
        """Until the leader says so."""
        while self.obey():
            pass

    def obey(self) -> bool:
        """One order; False after the last."""
        kind, pool, content = self._receive()
        match kind:
            case Kind.IDLE:
                self._answer(NOTHING)
            case Kind.POOL:
                self._make_pool(pool, content)
                self._answer(NOTHING)
            case Kind.STEP:
                self._step(self._pools[pool], decode(content))
            case Kind.STOCK:
                logits = self._pools[0].runner.stock_logits(content.tolist())
                self._answer(NOTHING)
                gather_rows(logits, self.loaded, self.group)
            case Kind.STOP:
                self.group.watch.stop()
                self._answer(NOTHING)
        return kind is not Kind.STOP

    def _receive(self) -> tuple[Kind, int, Words]:
        self.group.watch.doing("the leader's next order was awaited")
        header = self.group.broadcast(self._header).numpy()
        kind, pool, length, content = opened(header)
        if content is None:
            content = self.group.broadcast(torch.empty(length, dtype=torch.int64)).numpy()
        self.digest = digest_of(header, content, before=self.digest)
        self.group.watch.doing(f"an order ({kind.name.lower()}) was carried out")
        return kind, pool, content

    def _make_pool(self, number: int, content: Words) -> None:
        num_blocks, block_size, batch_invariant, attention, noise_rows = content.tolist()
        self._pools.pop(number, None)  # its memory first
        runner = ModelRunner(
            self.loaded,
            num_blocks=num_blocks,
            block_size=block_size,
            batch_invariant=bool(batch_invariant),
            attention=list(ATTENTION)[attention],
        )
        self._pools[number] = _Pool(runner=runner, chooser=chooser_of(self.loaded, capacity=noise_rows))

    def _step(self, pool: _Pool, order: StepOrder) -> None:
        self.num_steps += 1
        pool.runner.move(*order.moves)
        noise = None
        if self._noise_maker is not None:
            noise = self._noise_maker.submit(pool.chooser.prepare, order.rows, order.wishes)
        pending = pool.runner.launch(order.rows)
        if noise is None:
            pool.chooser.prepare(order.rows, order.wishes)
        else:
            noise.result()
        logits = pending.wait()
        self._answer(pool.chooser.choose(local_rows(logits, self.loaded.shard), order))
        gather_rows(wanted_rows(logits, order), self.loaded, self.group)

    def _answer(self, own: Chosen) -> None:
        self.group.gather(torch.from_numpy(answer(own, self.digest, stopping=self._stopping())))
