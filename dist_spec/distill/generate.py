"""Text that the target writes itself, with its features and top-k probabilities. It knows neither files nor training.

One pass gives all three: what a forward of generation computes anyway is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dist_spec.distill.cache import Shard
from dist_spec.distill.teacher import Batch, Teacher, top_probabilities

_PREFILL_COLUMNS = 64
_COMPACT_BELOW = 0.8
"""Ended sequences ride along until so small a share is left: dropping them copies all K/V of the rest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """A tokenized prompt, the temperature of its continuation, and its domain's index."""

    tokens: Sequence[int]
    temperature: float
    domain: int = 0


class _Page:
    """What has been written so far, by sequence: prompts end at column `width`, generated tokens begin there."""

    def __init__(self, teacher: Teacher, openings: Sequence[Opening], *, room: int, top_k: int) -> None:
        self.lengths = [len(o.tokens) for o in openings]
        self.width = max(self.lengths)
        number, device = len(openings), teacher.loaded.device
        self.tokens = torch.zeros((number, self.width + room), dtype=torch.int32, device=device)
        self.features = torch.zeros(
            (number, self.width + room, teacher.feature_size), dtype=torch.float16, device=device
        )
        self.top_ids = torch.zeros((number, self.width + room, top_k), dtype=torch.int32, device=device)
        self.top_probs = torch.zeros((number, self.width + room, top_k), dtype=torch.float16, device=device)
        self.ends = torch.full((number,), self.width, device=device)
        for row, opening in enumerate(openings):
            self.tokens[row, self.width - self.lengths[row] : self.width] = torch.tensor(opening.tokens)
        self._top_k = top_k

    def note_law(self, column: int, rows: torch.Tensor, logits: torch.Tensor) -> None:
        """The law after the tokens of `column`."""
        self.top_ids[rows, column], self.top_probs[rows, column] = top_probabilities(logits, self._top_k)

    def note_token(self, column: int, rows: torch.Tensor, tokens: torch.Tensor, features: torch.Tensor) -> None:
        self.tokens[rows, column] = tokens.to(torch.int32)
        self.features[rows, column] = features
        self.ends[rows] = column + 1

    def shard(self, domains: Sequence[int], names: tuple[str, ...]) -> Shard:
        spans = [(self.width - n, int(end)) for n, end in zip(self.lengths, self.ends, strict=True)]

        def joined(values: torch.Tensor) -> torch.Tensor:
            return torch.cat([values[row, first:end] for row, (first, end) in enumerate(spans)]).cpu()

        sizes = torch.tensor([end - first for first, end in spans])
        return Shard(
            tokens=joined(self.tokens),
            features=joined(self.features),
            top_ids=joined(self.top_ids),
            top_probs=joined(self.top_probs),
            offsets=torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
            prompt_lengths=torch.tensor(self.lengths),
            domains=torch.tensor(list(domains)),
            domain_names=names,
        )


def write_text(
    teacher: Teacher,
    openings: Sequence[Opening],
    *,
    max_new_tokens: int,
    top_k: int,
    seed: int,
    domain_names: tuple[str, ...] = (),
    tick: Callable[[int], None] | None = None,
) -> Shard:
    """Continue all `openings` in one batch, each until a token that ends a text or for `max_new_tokens`.

    The token that ends a sequence is not read by the target, so it has no row of its own: it is known by the law before it.

    Args:
        tick: told the number of tokens made, after each forward.
    """
    batch = teacher.start([len(o.tokens) for o in openings], room=max_new_tokens)
    page = _Page(teacher, openings, room=max_new_tokens, top_k=top_k)
    device = batch.first.device
    rows = torch.arange(len(openings), device=device)
    logits = _prefill(teacher, batch, page)
    page.note_law(page.width - 1, rows, logits)
    temperatures = torch.tensor([o.temperature for o in openings], device=device)
    ends = torch.tensor(teacher.loaded.tokenizer.eos_ids, device=device)
    generator = torch.Generator(device=device).manual_seed(seed)
    alive = torch.ones_like(rows, dtype=torch.bool)
    for column in range(page.width, page.width + max_new_tokens - 1):
        chance = torch.rand(len(openings), generator=generator, device=device)
        tokens = choose(logits, temperatures[rows], chance[rows])
        alive &= ~torch.isin(tokens, ends)
        num_alive = int(alive.sum())
        if num_alive == 0:
            break
        if num_alive < _COMPACT_BELOW * len(rows):
            kept = alive.nonzero()[:, 0]
            batch.keep(kept)
            rows, tokens, alive = rows[kept], tokens[kept], alive[kept]
        logits, features = teacher.forward(batch, tokens[:, None])
        page.note_token(column, rows[alive], tokens[alive], features[alive, 0])
        page.note_law(column, rows[alive], logits[alive])
        if tick is not None:
            tick(num_alive)
    return page.shard([o.domain for o in openings], domain_names)


def choose(logits: torch.Tensor, temperatures: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """The next token of each row, (n,) int64: the likeliest at temperature 0, else where `chance` (n,) in [0, 1) falls
    in the cumulated law."""
    tokens = logits.argmax(dim=-1)
    drawn = (temperatures > 0).nonzero()[:, 0]
    if len(drawn):
        law = torch.softmax(logits[drawn].float() / temperatures[drawn, None], dim=-1).cumsum_(dim=-1)
        # Rounding may leave the last sum a little off 1: scale instead of clamping, so that no id gains.
        places = torch.searchsorted(law, (chance[drawn] * law[:, -1])[:, None], right=True)[:, 0]
        tokens[drawn] = places.clamp_(max=logits.shape[-1] - 1)
    return tokens


def _prefill(teacher: Teacher, batch: Batch, page: _Page) -> torch.Tensor:
    """Read all prompts; returns the logits after them."""
    logits = torch.empty(0)
    for start in range(0, page.width, _PREFILL_COLUMNS):
        end = min(start + _PREFILL_COLUMNS, page.width)
        logits, features = teacher.forward(batch, page.tokens[:, start:end].long())
        page.features[:, start:end] = features
    return logits
