"""The drafter that is a smaller language model with another tokenizer, whose text is written in the target's ids
(string-level exact match, arXiv 2502.05202). It knows no messages, peers or time.

For rules that accept by equality: a string's probability as ids of the target is not known, so no law travels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from dist_spec.core.noise import gumbel_at, request_key
from dist_spec.core.types import Expansion
from dist_spec.drafters.base import ExpandRow, RequestKey
from dist_spec.drafters.follower import Follower
from dist_spec.drafters.leaf_reader import LeafReader
from dist_spec.drafters.strands import Next, Strand, begin_strand
from dist_spec.drafters.vocabularies import Vocabularies

_CANDIDATES = 64
_MEAN_NOISE = 0.5772
"""What a token gets that is several ids of the target, or part of one: the noise of a position belongs to ids."""


class TextDrafter:
    """See `drafters.base.Drafter`; one `expand` is up to `num_steps` forwards, as a string takes several tokens.

    Args:
        reader: the small model.
        both: the target's and its own vocabulary.
        num_steps: its own tokens per string.
    """

    kind = "model"

    def __init__(self, reader: LeafReader, *, both: Vocabularies, num_steps: int = 4) -> None:
        self._reader = reader
        self._both = both
        self._num_steps = num_steps
        self._unreadable = torch.full((reader.vocab_size,), -torch.inf)
        self._unreadable[[i for i, text in enumerate(both.drafter_bytes[: reader.vocab_size]) if text]] = 0.0
        if both.target_end >= 0:
            self._unreadable[list(both.drafter.eos_ids)] = 0.0
        self._followers: dict[RequestKey, Follower] = {}

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        """See `Drafter.expand`."""
        strands = [self._begin(row) for row in rows]
        under_way = [strand for some in strands for strand in some if strand is not None]
        for _ in range(self._num_steps):
            asking = [strand for strand in under_way if strand.grow(self._both, length=self._num_steps)]
            if not asking:
                break
            self._read(asking)
        for strand in under_way:
            strand.grow(self._both, length=self._num_steps)
        return [[one.expansion(self._both) if one else Expansion.empty() for one in some] for some in strands]

    def close(self, key: RequestKey) -> None:
        """See `Drafter.close`."""
        self._followers.pop(key, None)
        self._reader.close(key)

    def _begin(self, row: ExpandRow) -> list[Strand | None]:
        """One strand per leaf."""
        follower = self._followers.get(row.key)
        if follower is None:
            follower = self._followers[row.key] = Follower(self._both)
        self._reader.rewind(row.key, follower.follow(row.history))
        return [begin_strand(self._both, row, leaf, follower) for leaf in row.leaves]

    def _read(self, asking: Sequence[Strand]) -> None:
        """One forward: what follows the tips of all these strands; what cannot be read has nothing after it."""
        by_request: dict[RequestKey, dict[int, Strand]] = {}
        for strand in asking:
            strand.follower.tree.features[strand.tip] = Next(tokens=[], scores=[])
            by_request.setdefault(strand.row.key, {}).setdefault(strand.tip, strand)
        firsts = [next(iter(tips.values())) for tips in by_request.values()]
        asked = [one.follower.row(one.row, sorted(by_request[one.row.key])) for one in firsts]
        for tips, (nodes, logits) in zip(by_request.values(), self._reader.read(asked), strict=True):
            if nodes:
                temperature = tips[nodes[0]].row.sampling.temperature
                for node, ids, scores in zip(nodes, *self._likeliest(logits, temperature), strict=True):
                    tips[node].follower.tree.features[node] = self._ranked(tips[node], ids, scores)

    def _likeliest(
        self, logits: torch.Tensor, temperature: float
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """(n, m) ids that stand for text or end it, and their log probabilities, best first."""
        scaled = logits / (temperature or 1.0) + self._unreadable.to(logits.device)
        top, ids = (scaled - scaled.logsumexp(dim=-1, keepdim=True)).topk(min(_CANDIDATES, scaled.shape[1]), dim=-1)
        return ids.cpu().numpy(), top.double().cpu().numpy()

    def _ranked(self, strand: Strand, ids: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> Next:
        values = scores if strand.row.sampling.temperature == 0.0 else scores + self._noise(strand, ids)
        order = np.lexsort((ids, -values))[: max(strand.row.width, 1)]
        order = order[np.isfinite(scores[order])]
        shares = values - np.logaddexp.reduce(values)
        return Next(tokens=ids[order].tolist(), scores=shares[order].tolist())

    def _noise(self, strand: Strand, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The target's own noise of the tokens that are its ids, where the string so far is as many ids as tokens."""
        sampling, theirs = strand.row.sampling, self._both.to_target[ids]
        aligned = strand.text == strand.wanted and all(
            self._both.to_target[strand.follower.tree.token[node]] >= 0 for node, _ in strand.chain
        )
        noise = np.full(len(ids), _MEAN_NOISE)
        if aligned:
            index = strand.row.noise_index(strand.leaf) + len(strand.chain)
            key = request_key(sampling.seed, sampling.sample_index)
            common = theirs >= 0
            if common.any():
                noise[common] = gumbel_at(key, np.array([[index]], dtype=np.int64), theirs[common][None])[0]
        return noise
