"""The leader's runner of a model that is spread over ranks: `ModelRunner`'s interface, every step told to the followers
first. It knows no requests.

It tells rows, not tensors: each rank makes the same packed step of them. Where a token is an argmax, every rank looks
through its own part of the vocabulary and only scores travel; whole rows of logits are gathered for those who want them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from concurrent.futures import Executor, Future

import numpy as np
import torch

from dist_spec.core.types import ForwardRow, HalfArray
from dist_spec.core.verification.chosen import Chosen, best_of_shards
from dist_spec.errors import WorkerError
from dist_spec.models.kv_cache import path_moves
from dist_spec.models.loading import LoadedModel
from dist_spec.models.packed import ATTENTION
from dist_spec.models.parallel.argmax import ShardChooser, chosen_rows
from dist_spec.models.parallel.gather import gather_rows, local_rows
from dist_spec.models.parallel.group import TpGroup
from dist_spec.models.parallel.order import INLINE_WORDS, Kind, StepOrder, Wish, Words, block, encode
from dist_spec.models.rows import plan_segments
from dist_spec.models.runner import ModelRunner, PendingForward

_MAIN, _TWIN = 0, 1


class Orders:
    """The leader's end of the orders: sends them, takes the answers, sees that all ranks did the same.

    Attributes:
        num_orders: orders so far.
        asked_to_stop: a follower was told to end.
    """

    def __init__(self, group: TpGroup) -> None:
        self.group = group
        self.num_orders = 0
        self.asked_to_stop = False
        self._digest = 0

    def send(self, kind: Kind, *, pool: int = _MAIN, content: Words | None = None) -> None:
        """Tell all followers; every order is answered (`answers`)."""
        words = np.empty(0, dtype=np.int64) if content is None else content
        self.num_orders += 1
        self.group.watch.doing(f"order {self.num_orders} ({kind.name.lower()}) was under way")
        header = block(kind, pool=pool, content=words)
        self._digest = digest_of(header, words, before=self._digest)
        self.group.broadcast(torch.from_numpy(header))
        if len(words) > INLINE_WORDS:
            self.group.broadcast(torch.from_numpy(words))

    def answers(self, own: Chosen) -> list[Chosen]:
        """What each rank found, in rank order."""
        found = [one.numpy() for one in self.group.gather(torch.from_numpy(answer(own, self._digest, stopping=False)))]
        self.group.watch.doing(None)
        for rank, one in enumerate(found):
            if int(one[0, 0]) != self._digest:
                raise WorkerError(
                    f"rank {rank} of {len(found)} has done other work than the leader by order {self.num_orders}",
                    fix="this is a bug in dist_spec; please report it",
                )
            self.asked_to_stop |= bool(one[0, 1])
        return [one[1:] for one in found]


def digest_of(header: Words, content: Words, *, before: int) -> int:
    """A running checksum of all orders."""
    return zlib.crc32(content.tobytes(), zlib.crc32(header.tobytes(), before))


def answer(own: Chosen, digest: int, *, stopping: bool) -> Chosen:
    """A rank's answer to an order: one row about itself, then what it found."""
    return np.concatenate([np.array([[digest, stopping, 0.0]]), own])


class ParallelForward:
    """A step under way on all ranks; see `PendingForward`."""

    def __init__(
        self, runner: ParallelRunner, pending: PendingForward, order: StepOrder, noise: Future[None] | None
    ) -> None:
        self._runner = runner
        self._pending = pending
        self._order = order
        self._noise = noise
        self._found: torch.Tensor | None = None
        self._chosen: list[Chosen] = []

    def done(self) -> bool:
        return self._found is not None or self._pending.done()

    def wait(self) -> torch.Tensor:
        """Logits of the rows without a wish, (n, vocab) float32, rows in order."""
        if self._found is None:
            self._found, self._chosen = self._runner.finish(self._pending, self._order, self._noise)
        return self._found

    def chosen(self, row: int) -> Chosen:
        """After `wait`: what was chosen for a row with a wish; see `core.verification.chosen`."""
        return self._chosen[row]

    def features(self, rows: Sequence[int], *, stay: bool = False) -> HalfArray:
        """See `PendingForward.features`; every rank has all of them."""
        return self._pending.features(rows, stay=stay)


class ParallelRunner:
    """A KV cache over all ranks.

    Args:
        orders: one for all runners of a process.
        noise_rows: rows of noise that are kept.
        noise_maker: see `ModelBackend`.
        twin: a second cache beside the main one (a new one takes the place of the last).
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        orders: Orders,
        num_blocks: int,
        block_size: int,
        batch_invariant: bool,
        noise_rows: int = 1,
        noise_maker: Executor | None = None,
        attention: str | None = None,
        twin: bool = False,
    ) -> None:
        self.local = ModelRunner(
            loaded, num_blocks=num_blocks, block_size=block_size, batch_invariant=batch_invariant, attention=attention
        )
        self.loaded = loaded
        self.device = loaded.device
        self.orders = orders
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.batch_invariant = batch_invariant
        self.vocab_size = loaded.vocab_size
        self.max_positions = loaded.max_positions
        self.kv_bytes = self.local.kv_bytes
        self._noise_maker = noise_maker
        self._chooser = chooser_of(loaded, capacity=noise_rows)
        self._pool = _TWIN if twin else _MAIN
        self._moves: tuple[list[int], list[int]] = ([], [])
        names = list(ATTENTION)
        shape = (num_blocks, block_size, batch_invariant, names.index(self.local.packed.attention), noise_rows)
        orders.send(Kind.POOL, pool=self._pool, content=np.array(shape, dtype=np.int64))
        orders.answers(NOTHING)

    def forward(self, rows: Sequence[ForwardRow]) -> torch.Tensor:
        """See `ModelRunner.forward`."""
        return self.launch(rows).wait()

    def launch(self, rows: Sequence[ForwardRow]) -> ParallelForward:
        """See `ModelRunner.launch`."""
        return self.launch_choosing(rows, [None] * len(rows))

    def launch_choosing(
        self, rows: Sequence[ForwardRow], wishes: Sequence[Wish | None], *, with_margin: bool = False
    ) -> ParallelForward:
        """Start a step of which the logits are wanted only where there is no wish; a row with one has logits of its last
        pending token and of every node."""
        # Whatever may be refused is refused before anyone is told.
        plan_segments(
            rows, block_size=self.block_size, attention=self.local.packed.attention, max_positions=self.max_positions
        )
        order = StepOrder(rows=rows, wishes=wishes, moves=self._moves, with_margin=with_margin)
        self._moves = ([], [])
        self.orders.send(Kind.STEP, pool=self._pool, content=encode(order, block_size=self.block_size))
        noise: Future[None] | None = None
        if self._noise_maker is not None:
            noise = self._noise_maker.submit(self._chooser.prepare, rows, wishes)
        pending = self.local.launch(rows)
        if noise is None:
            self._chooser.prepare(rows, wishes)
        return ParallelForward(self, pending, order, noise)

    def finish(
        self, pending: PendingForward, order: StepOrder, noise: Future[None] | None
    ) -> tuple[torch.Tensor, list[Chosen]]:
        """(gathered logits, choices per row) of a step, from all ranks."""
        logits = pending.wait()
        if noise is not None:
            noise.result()
        own = self._chooser.choose(local_rows(logits, self.loaded.shard), order)
        best = best_of_shards(self.orders.answers(own))
        whole = gather_rows(wanted_rows(logits, order), self.loaded, self.orders.group)
        ends = np.cumsum([chosen_rows(row, wish) for row, wish in zip(order.rows, order.wishes, strict=True)])
        return whole, np.split(best, ends[:-1])

    def twin(self, *, num_blocks: int, block_size: int) -> ParallelRunner:
        """See `ModelRunner.twin`."""
        return ParallelRunner(
            self.loaded,
            orders=self.orders,
            num_blocks=num_blocks,
            block_size=block_size,
            batch_invariant=self.batch_invariant,
            attention=self.local.packed.attention,
            twin=True,
        )

    def stock_logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """See `ModelRunner.stock_logits`."""
        self.orders.send(Kind.STOCK, content=np.array(tokens, dtype=np.int64))
        logits = self.local.stock_logits(tokens)
        self.orders.answers(NOTHING)
        return gather_rows(logits, self.loaded, self.orders.group)

    def capture(self, layers: Sequence[int]) -> None:
        """See `ModelRunner.capture`; followers need not know."""
        self.local.capture(layers)

    def compact(self, rows: Sequence[ForwardRow], paths: Sequence[Sequence[int]]) -> None:
        """See `ModelRunner.compact`; followers are told with the next step."""
        source, target = path_moves(rows, paths, block_size=self.block_size)
        self.local.move(source, target)
        self._moves = (self._moves[0] + source, self._moves[1] + target)

    def tick(self) -> None:
        """Tell idle followers that all is well, and hear the same of them."""
        self.orders.send(Kind.IDLE)
        self.orders.answers(NOTHING)

    @property
    def asked_to_stop(self) -> bool:
        """Whether a follower's process was asked to end."""
        return self.orders.asked_to_stop

    def close(self) -> None:
        """Part with the followers."""
        self.orders.send(Kind.STOP)
        self.orders.answers(NOTHING)


NOTHING: Chosen = np.empty((0, 3), dtype=np.float64)


def chooser_of(loaded: LoadedModel, *, capacity: int) -> ShardChooser:
    """The chooser of this rank's part of the vocabulary."""
    assert loaded.shard is not None
    return ShardChooser(first=loaded.shard.first, last=loaded.shard.last, capacity=capacity)


def wanted_rows(logits: torch.Tensor, order: StepOrder) -> torch.Tensor:
    """The logits of rows without a wish."""
    parts = logits.split([row.num_logits for row in order.rows]) if order.rows else ()
    kept = [part for part, wish in zip(parts, order.wishes, strict=True) if wish is None]
    return torch.cat(kept) if kept else logits[:0]
