"""Start-up checks of a runner: is it the stock model, and how far do one-token and many-token forwards differ?

Both run on a small runner of their own (same weights, own KV), so they may be called at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from dist_spec.core.types import ForwardRow, IntArray
from dist_spec.errors import ModelError
from dist_spec.models.loading import LoadedModel

_PREFIX = 12
_NODES = 8
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.08}
"""Largest accepted root-mean-square difference to the stock logits, relative to theirs. (A wrong mask, rotation or
scale gives about 1; rounding in a wild random bfloat16 model gives up to .04, in a trained one .01.)"""


class Runner(Protocol):
    """What is checked: `ModelRunner`, or the runner of a model that is spread over ranks."""

    @property
    def vocab_size(self) -> int: ...

    def twin(self, *, num_blocks: int, block_size: int) -> Runner: ...

    def stock_logits(self, tokens: Sequence[int]) -> torch.Tensor: ...

    def forward(self, rows: Sequence[ForwardRow]) -> torch.Tensor: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What the probe found.

    Attributes:
        bit_equal: every logit of every checked row was identical in one-token and many-token forwards.
        max_logit_difference: largest absolute difference (0.0 if bit_equal); the numeric-equality rule uses it.
        checked_rows: rows of logits compared.
    """

    bit_equal: bool
    max_logit_difference: float
    checked_rows: int


def probe(runner: Runner, *, seed: int = 0) -> Probe:
    """Compare one-token forwards with prefill, chain and tree forwards that other sequences ride along with."""
    twin = runner.twin(num_blocks=_BLOCKS, block_size=_BLOCK)
    tokens = _tokens(runner.vocab_size, _PREFIX + _NODES, seed=seed)
    one_by_one = torch.cat([twin.forward([_row(_FIRST, i, tokens[i : i + 1])]) for i in range(len(tokens))])
    others: list[torch.Tensor] = []
    for rows, picked in _many(tokens, _tokens(runner.vocab_size, 40, seed=seed + 1)):
        for prefix in (_row(_FIRST, 0, tokens[:_PREFIX], wanted=0), _row(_RIDER, 0, tokens[::-1].copy(), wanted=0)):
            twin.forward([prefix])
        others.append(twin.forward(rows)[picked])
    many = torch.cat(others)
    reference = torch.cat([one_by_one, *[one_by_one[_PREFIX:]] * (len(others) - 1)])
    difference = float((many - reference).abs().max())
    return Probe(
        bit_equal=bool(torch.equal(many, reference)), max_logit_difference=difference, checked_rows=many.shape[0]
    )


def check_against_stock(loaded: LoadedModel, runner: Runner, *, seed: int = 0) -> None:
    """Compare the runner's logits with transformers' own, for prefill, decode, a chain and a tree.

    Raises:
        ModelError: they differ by more than rounding explains: the architecture does something that is not known here.
    """
    window = getattr(loaded.config, "sliding_window", None) or 0
    count = _PREFIX + _NODES + (window if window <= 64 else 0)
    tokens = _tokens(loaded.vocab_size, count, seed=seed)
    stock = runner.stock_logits(tokens.tolist())
    twin = runner.twin(num_blocks=_BLOCKS, block_size=_BLOCK)
    head = count - _NODES
    ours = [
        twin.forward([_row(_FIRST, 0, tokens[: head - 1])]),
        twin.forward([_row(_FIRST, head - 1, tokens[head - 1 : head])]),
    ]
    for rows, picked in _many(tokens, tokens[::-1].copy(), prefix=head)[1:]:
        ours.append(twin.forward(rows)[picked])
    reference = torch.cat([stock, *[stock[head:]] * (len(ours) - 3)])
    _compare(loaded, reference, torch.cat(ours))


def _compare(loaded: LoadedModel, stock: torch.Tensor, ours: torch.Tensor) -> None:
    size = float(stock.square().mean().sqrt())
    difference = float((ours - stock).square().mean().sqrt()) / max(size, 1e-9)
    top = stock.topk(2, dim=-1).values
    clear = (top[:, 0] - top[:, 1]) > 4 * _TOLERANCE[loaded.dtype] * size
    same = ours.argmax(-1) == stock.argmax(-1)
    if not difference <= _TOLERANCE[loaded.dtype] or not bool(same[clear].all()):
        raise ModelError(
            f"{loaded.name} ({type(loaded.model).__name__}): packed logits differ from the stock model's by "
            f"{difference:.1%} (argmax equal in {float(same.float().mean()):.0%} of rows)",
            fix="this architecture is not supported; please report it",
        )


_BLOCK = 8
_FIRST = np.array([5, 2, 9, 3, 8, 11, 12, 13, 14, 15, 16, 17, 18], dtype=np.int32)
"""Scattered at first, as a served sequence's blocks are."""
_RIDER = np.array([20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33], dtype=np.int32)
_BLOCKS = 34


def _many(tokens: IntArray, decoys: IntArray, *, prefix: int = _PREFIX) -> list[tuple[list[ForwardRow], list[int]]]:
    """Many-token forwards and which of their rows follow `tokens`: a whole prefill, a chain and a tree with a rider."""
    nodes = tokens[prefix:]
    count = len(nodes)
    chain = np.arange(-1, count - 2, dtype=np.int32)
    pair = np.stack([decoys[: count - 1], nodes[1:]], axis=1).reshape(-1)
    pair_parents = np.repeat(2 * np.arange(count - 1, dtype=np.int32) - 1, 2)
    tree = np.concatenate([nodes[:1], pair])
    rider = _row(_RIDER, len(tokens), decoys[:3])
    return [
        ([_row(_FIRST, 0, tokens)], list(range(len(tokens)))),
        ([rider, _row(_FIRST, prefix, nodes, parents=chain)], list(range(3, 3 + count))),
        ([_row(_FIRST, prefix, tree, parents=pair_parents), rider], list(range(0, 2 * count, 2))),
    ]


def _row(
    table: IntArray, cached: int, tokens: IntArray, *, parents: IntArray | None = None, wanted: int = -1
) -> ForwardRow:
    below = np.empty(0, dtype=np.int32) if parents is None else parents
    return ForwardRow(
        block_table=table,
        cached=cached,
        tokens=tokens.astype(np.int32),
        num_pending=len(tokens) - len(below),
        parents=below,
        num_logits=len(tokens) if wanted < 0 else wanted,
    )


def _tokens(vocab_size: int, count: int, *, seed: int) -> IntArray:
    return np.random.default_rng(seed).integers(0, min(vocab_size, 50_000), count).astype(np.int32)
