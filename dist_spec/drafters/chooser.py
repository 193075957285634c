"""From the logits of leaves to guesses in the target's ids: ranked by the target's own noise, or drawn from a law that
travels. It knows no model, cache or message, nor where the logits come from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from dist_spec.core.law import DraftLaw
from dist_spec.core.noise import DRAFT, gumbel_at, request_key, word
from dist_spec.core.sampling.draft import DraftProcessors
from dist_spec.core.types import Expansion
from dist_spec.drafters.base import ExpandRow, RequestKey
from dist_spec.drafters.draw import LawSettings, dense_law, drawn, sparse_law
from dist_spec.drafters.ranking import best, likeliest

_CANDIDATES = 256
"""Ids that get noise when guesses are ranked; the target's choice lies outside of them once in thousands."""

_TIES = 16
"""Spare candidates at temperature 0: bfloat16 logits often tie, and the target takes the smallest id of a tie."""


class Chooser:
    """Guesses below the leaves of one request, from one row of logits per leaf.

    Args:
        vocab_size: ids of the target that can be guessed lie below it.
        eos_ids: end-of-sequence ids of the target, as far as the drafter knows them.
        laws: draw one guess per leaf from a law that travels with it (rules that weigh); None: the best-ranked guesses.
        ids: (m,) int64, the target's id of each column of logits, all different; None: column i is id i.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        eos_ids: Sequence[int] = (),
        laws: LawSettings | None = None,
        ids: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._laws = laws
        self._vocab = vocab_size
        self._ids = ids
        self._columns = vocab_size if ids is None else len(ids)
        self._column_of = None if ids is None else {token: column for column, token in enumerate(ids.tolist())}
        self._processors = DraftProcessors(eos_ids=tuple(eos_ids))

    def close(self, key: RequestKey) -> None:
        """Forget a request."""
        self._processors.close(key)

    def guess(self, row: ExpandRow, leaves: Sequence[int], logits: torch.Tensor) -> list[Expansion]:
        """Guesses of each leaf, in order.

        Args:
            row: the request in the target's ids.
            leaves: nodes of `row.tree`.
            logits: (len(leaves), columns) float32, before temperature and processors.
        """
        if not leaves:
            return []
        width = min(row.width, self._columns)
        if row.sampling.temperature == 0.0 and row.sampling.is_processed:
            found = zip(*self._candidates(row, leaves, logits), strict=True)
            return [best(i, x, plain=x, width=width) for i, x in found]
        if row.sampling.temperature == 0.0:
            top, columns = logits.topk(min(width + _TIES, self._columns), dim=-1)
            scores = (top - logits.logsumexp(dim=-1, keepdim=True)).cpu().numpy()
            return [likeliest(i, s, width=width) for i, s in zip(self._named(columns), scores, strict=True)]
        if self._laws is not None:
            return self._draw(row, leaves, logits, laws=self._laws)
        candidates, scaled = self._candidates(row, leaves, logits)
        # One call for all leaves: its cost is per call, hardly per id.
        key = request_key(row.sampling.seed, row.sampling.sample_index)
        indices = np.array([[row.noise_index(leaf)] for leaf in leaves], dtype=np.int64)
        perturbed = scaled + gumbel_at(key, indices, candidates)
        rows = zip(candidates, perturbed, scaled, strict=True)
        return [best(i, x, plain=plain, width=width) for i, x, plain in rows]

    def _named(self, columns: torch.Tensor) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = columns.cpu().numpy()
        return found if self._ids is None else self._ids[found]

    def _candidates(
        self, row: ExpandRow, leaves: Sequence[int], logits: torch.Tensor
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Per leaf the likeliest ids, and their logits over temperature after the request's processors (-inf: dropped)."""
        sampling = row.sampling
        count = _CANDIDATES if self._laws is None else max(_CANDIDATES, self._laws.size)
        values, columns = self._biased(row, logits).topk(min(count, self._columns), dim=-1)
        candidates = self._named(columns)
        if not sampling.is_processed:
            return candidates, values.double().cpu().numpy() / sampling.temperature
        scores = self._processors.scores(
            row.key,
            sampling=sampling,
            tokens=row.history,
            prompt_length=row.prompt_length,
            paths=[row.tree.path_tokens(leaf) for leaf in leaves],
            ids=candidates,
            logits=logits.gather(-1, columns).double().cpu().numpy(),
        )
        return candidates, scores

    def _biased(self, row: ExpandRow, logits: torch.Tensor) -> torch.Tensor:
        """With the request's logit bias: a token that a bias lifts must be among the candidates."""
        if not row.sampling.logit_bias:
            return logits
        biased = logits.clone()
        for token, bias in row.sampling.logit_bias:
            column = token if self._column_of is None else self._column_of.get(token, self._columns)
            biased[:, column : column + 1] += bias
        return biased

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
            return [self._dense(self._ids, scores) for scores in scaled.cpu().numpy()]
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
                made.append(self._dense(ids, values))
            else:
                made.append(sparse_law(ids, values, size=laws.size, log_mass=mass))
        return made

    def _dense(self, ids: npt.NDArray[np.int64] | None, scores: npt.NDArray[np.float64]) -> DraftLaw:
        if ids is None:
            return dense_law(scores)
        whole = np.full(self._vocab, -np.inf)
        whole[ids] = scores
        return dense_law(whole)
