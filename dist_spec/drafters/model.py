"""The drafter that is a smaller language model with the target's tokenizer. It knows no messages, peers or time.

All leaves of all requests go through the model in one forward: each sees the committed text and its own ancestors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from dist_spec.core.law import DraftLaw
from dist_spec.core.noise import DRAFT, gumbel_at, request_key, word
from dist_spec.core.sampling.draft import DraftProcessors
from dist_spec.core.types import Expansion
from dist_spec.drafters.base import ExpandRow, RequestKey
from dist_spec.drafters.draft_cache import TREE_SLOTS, Feed, Region, plan_feed
from dist_spec.drafters.draw import LawSettings, dense_law, drawn, sparse_law
from dist_spec.drafters.ranking import best, likeliest
from dist_spec.models.loading import LoadedModel
from dist_spec.models.packed import PackedModel
from dist_spec.models.step import Segment, Visit

_CANDIDATES = 256
"""Ids that get noise when guesses are ranked; the target's choice lies outside of them once in thousands."""

_TIES = 16
"""Spare candidates at temperature 0: bfloat16 logits often tie, and the target takes the smallest id of a tie."""


class ModelDrafter:
    """See `drafters.base.Drafter`.

    Args:
        loaded: the small model.
        target_vocab: logits beyond it (padding of the drafter's head) are never guessed.
        max_requests: requests whose K/V are kept; the one unused for longest gives way (and is prefilled again later).
        max_context: tokens of history and guesses per request; longer requests get no guesses.
        tree_slots: nodes per request whose K/V are kept.
        prefill_chunk: most committed tokens in one forward.
        batch_invariant: bit-equal to a target runner in the same mode (self-drafting then always agrees).
        laws: draw one guess per leaf from a law that travels with it (rules that weigh); None: the best-ranked guesses.
    """

    kind = "model"

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        target_vocab: int | None = None,
        max_requests: int = 4,
        max_context: int | None = None,
        tree_slots: int = TREE_SLOTS,
        prefill_chunk: int = 256,
        batch_invariant: bool = False,
        attention: str | None = None,
        laws: LawSettings | None = None,
    ) -> None:
        self._laws = laws
        self._vocab = min(loaded.vocab_size, target_vocab or loaded.vocab_size)
        self.max_context = min(loaded.max_positions, max_context or 4096)
        self._embedded = loaded.vocab_size
        self._chunk = prefill_chunk
        size = Region.size(tree_slots=tree_slots, max_context=self.max_context)
        self._packed = PackedModel(
            loaded, num_slots=size * max_requests, batch_invariant=batch_invariant, attention=attention
        )
        self._spare = [
            Region(base=size * i, tree_slots=tree_slots, max_context=self.max_context) for i in range(max_requests)
        ]
        self._regions: OrderedDict[RequestKey, Region] = OrderedDict()
        self._processors = DraftProcessors(eos_ids=tuple(loaded.tokenizer.eos_ids))

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        """See `Drafter.expand`. A request's first step also prefills its history, in chunks."""
        feeds: list[Feed | None] = []
        in_use: set[RequestKey] = {row.key for row in rows}
        for row in rows:
            region = self._region(row, in_use) if 0 < len(row.history) <= self.max_context else None
            if region is not None and max(row.history[region.fed :], default=0) >= self._embedded:
                region = None  # the target's padding reaches beyond ours: an id that this model cannot read
            feeds.append(None if region is None else self._caught_up(row, region))
        logits = self._forward([feed for feed in feeds if feed is not None])
        answers: list[list[Expansion]] = []
        first = 0
        for row, feed in zip(rows, feeds, strict=True):
            places = [-1] * len(row.leaves) if feed is None else feed.leaf_rows
            count = sum(place >= 0 for place in places)
            guesses = iter(self._rank(row, places, logits[first : first + count]))
            answers.append([next(guesses) if place >= 0 else Expansion.empty() for place in places])
            first += count
        return answers

    def close(self, key: RequestKey) -> None:
        """See `Drafter.close`."""
        self._processors.close(key)
        region = self._regions.pop(key, None)
        if region is not None:
            self._spare.append(region)

    def _region(self, row: ExpandRow, in_use: set[RequestKey]) -> Region | None:
        region = self._regions.get(row.key)
        if region is None:
            if not self._spare:
                idle = next((key for key in self._regions if key not in in_use), None)
                if idle is None:
                    return None
                self._spare.append(self._regions.pop(idle))
            region = self._spare.pop()
            region.begin(row)
            self._regions[row.key] = region
        self._regions.move_to_end(row.key)
        return region

    def _caught_up(self, row: ExpandRow, region: Region) -> Feed:
        """Adopt commits, prefill all but the last chunk of what is missing, and plan the rest."""
        source, target = region.adopt_commits(row)
        if source:
            with torch.inference_mode():
                moves = torch.tensor([source, target], dtype=torch.long).to(self._packed.loaded.device)
                self._packed.cache.move(moves[0], moves[1])
        region.after_commits(row)
        while len(row.history) - region.fed > self._chunk:
            chunk = row.history[region.fed : region.fed + self._chunk]
            self._forward(
                [Feed(region=region, first=region.fed, tokens=chunk, num_committed=len(chunk), paths=[], leaf_rows=[])]
            )
        return plan_feed(row, region)

    def _forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        """One forward over all feeds; logits of their leaves in order, (n, vocab) float32."""
        segments: list[Segment] = []
        wanted: list[int] = []
        first = 0
        for feed in feeds:
            if feed.tokens:
                segments.append(self._segment(feed, first))
                wanted.extend(first + place for place in feed.leaf_rows if place >= 0)
                first += len(feed.tokens)
                feed.region.fed = max(feed.region.fed, feed.first + feed.num_committed)
        if not segments:
            return torch.empty((0, self._vocab))
        logits = self._packed.logits(
            segments,
            tokens=np.array([token for feed in feeds for token in feed.tokens], dtype=np.int64),
            positions=np.concatenate([segment.query_positions for segment in segments]),
            logit_rows=wanted,
        )
        return logits[:, : self._vocab]

    def _segment(self, feed: Feed, first: int) -> Segment:
        region, committed = feed.region, feed.num_committed
        head = feed.first + committed
        depths = np.array([len(path) for path in feed.paths], dtype=np.int64)
        own = np.array([path[-1] for path in feed.paths], dtype=np.int64)
        positions = np.concatenate([np.arange(feed.first, head, dtype=np.int64), head - 1 + depths])
        write = np.concatenate([region.prefix_slots(feed.first, head), region.base + own])
        if self._packed.attention in ("single", "shared"):
            return _walked(feed, first, positions, write)
        low = min((min(path) for path in feed.paths), default=region.tree_slots)
        ahead = region.tree_slots - low
        mask = np.zeros((len(positions), ahead + head), dtype=np.bool_)
        mask[:committed, ahead:] = np.arange(head)[None] <= positions[:committed, None]
        mask[committed:, ahead:] = True
        key_positions = np.concatenate([np.zeros(ahead, dtype=np.int64), np.arange(head, dtype=np.int64)])
        for node, path in enumerate(feed.paths):
            places = np.array(path, dtype=np.int64) - low
            mask[committed + node, places] = True
            key_positions[places] = head + np.arange(len(path))
        return Segment(
            first=first,
            count=len(positions),
            key_start=region.base + low,
            key_slots=np.arange(region.base + low, region.prefix_start + head, dtype=np.int64),
            write_slots=write,
            query_positions=positions,
            key_positions=key_positions,
            mask=None if mask.all() else mask,
        )

    def _rank(self, row: ExpandRow, places: Sequence[int], logits: torch.Tensor) -> list[Expansion]:
        leaves = [leaf for leaf, place in zip(row.leaves, places, strict=True) if place >= 0]
        if not leaves:
            return []
        width = min(row.width, self._vocab)
        if row.sampling.temperature == 0.0 and row.sampling.is_processed:
            found = zip(*self._candidates(row, leaves, logits), strict=True)
            return [best(i, x, plain=x, width=width) for i, x in found]
        if row.sampling.temperature == 0.0:
            top, ids = logits.topk(min(width + _TIES, self._vocab), dim=-1)
            scores = (top - logits.logsumexp(dim=-1, keepdim=True)).cpu().numpy()
            return [likeliest(i, s, width=width) for i, s in zip(ids.cpu().numpy(), scores, strict=True)]
        if self._laws is not None:
            return self._draw(row, leaves, logits, laws=self._laws)
        candidates, scaled = self._candidates(row, leaves, logits)
        # One call for all leaves: its cost is per call, hardly per id.
        key = request_key(row.sampling.seed, row.sampling.sample_index)
        indices = np.array([[row.noise_index(leaf)] for leaf in leaves], dtype=np.int64)
        perturbed = scaled + gumbel_at(key, indices, candidates)
        rows = zip(candidates, perturbed, scaled, strict=True)
        return [best(i, x, plain=plain, width=width) for i, x, plain in rows]

    def _candidates(
        self, row: ExpandRow, leaves: Sequence[int], logits: torch.Tensor
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Per leaf the likeliest ids, and their logits over temperature after the request's processors (-inf: dropped)."""
        sampling = row.sampling
        biased = logits
        if sampling.logit_bias:  # a token that a bias lifts must be among the candidates
            biased = logits.clone()
            for token, bias in sampling.logit_bias:
                biased[:, token : token + 1] += bias
        count = _CANDIDATES if self._laws is None else max(_CANDIDATES, self._laws.size)
        values, ids = biased.topk(min(count, self._vocab), dim=-1)
        candidates = ids.cpu().numpy()
        if not sampling.is_processed:
            return candidates, values.double().cpu().numpy() / sampling.temperature
        scores = self._processors.scores(
            row.key,
            sampling=sampling,
            tokens=row.history,
            prompt_length=row.prompt_length,
            paths=[row.tree.path_tokens(leaf) for leaf in leaves],
            ids=candidates,
            logits=logits.gather(-1, ids).double().cpu().numpy(),
        )
        return candidates, scores

    def _draw(
        self, row: ExpandRow, leaves: Sequence[int], logits: torch.Tensor, *, laws: LawSettings
    ) -> list[Expansion]:
        """One guess per leaf. Its noise belongs to the prefix before it: the same draw whenever that prefix is drafted
        again, a fresh one below any other."""
        key = request_key(row.sampling.seed, row.sampling.sample_index)
        guesses: list[Expansion] = []
        for leaf, law in zip(leaves, self._made_laws(row, leaves, logits, laws), strict=True):
            if law is None:
                guesses.append(Expansion.empty())
                continue
            bits = word(key, domain=DRAFT, index=row.noise_index(leaf), epoch=row.digest_before(leaf))
            guesses.append(drawn(law, bits))
        return guesses

    def _made_laws(
        self, row: ExpandRow, leaves: Sequence[int], logits: torch.Tensor, laws: LawSettings
    ) -> list[DraftLaw | None]:
        """The law of each leaf; None where the request's processors leave nothing."""
        scaled = logits.double() / row.sampling.temperature
        if laws.dense and not row.sampling.is_processed:
            return [dense_law(scores) for scores in scaled.cpu().numpy()]
        candidates, scores = self._candidates(row, leaves, logits)
        if row.sampling.is_processed:  # truncated: what is left among the candidates is all there is
            masses: list[float | None] = [None] * len(leaves)
        else:
            masses = scaled.logsumexp(dim=-1).tolist()
        made: list[DraftLaw | None] = []
        for ids, values, mass in zip(candidates, scores, masses, strict=True):
            if not np.isfinite(values.max()):
                made.append(None)
            elif laws.dense:
                whole = np.full(self._vocab, -np.inf)
                whole[ids] = values
                made.append(dense_law(whole))
            else:
                made.append(sparse_law(ids, values, size=laws.size, log_mass=mass))
        return made


def _walked(feed: Feed, first: int, positions: npt.NDArray[np.int64], write: npt.NDArray[np.int64]) -> Segment:
    """The one-at-a-time form: every node's path is laid behind the committed text before the node is asked."""
    region, committed = feed.region, feed.num_committed
    head = feed.first + committed
    visits = [Visit(first + i, feed.first + i + 1) for i in range(committed)]
    for node, path in enumerate(feed.paths):
        slots = torch.tensor(path, dtype=torch.long) + region.base
        visits.append(Visit(first + committed + node, head + len(path), path=slots))
    longest = head + max((len(path) for path in feed.paths), default=0)
    return Segment(
        first=first,
        count=len(positions),
        key_start=region.prefix_start,
        key_slots=region.prefix_slots(0, longest),
        write_slots=write,
        query_positions=positions,
        key_positions=np.arange(longest, dtype=np.int64),
        visits=visits,
    )
