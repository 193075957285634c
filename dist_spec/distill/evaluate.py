"""What a head is worth on held-out text, teacher-forced. Knows no optimiser and no files.

Agreement of step j: how often the head's choice is the teacher's, j steps after the last known features, the tokens
between being the text's own. Chain length: 1 + steps that agree one after the other, on text made at temperature 0, where
an agreeing token is the text's own: what a chain of that many drafts would be accepted, on average.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dist_spec.distill.batches import Corpus
from dist_spec.distill.learner import Learner
from dist_spec.distill.ranks import Ranks
from dist_spec.distill.unroll import leading_agreements


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What was measured.

    Attributes:
        agreement: per step; `chain_length`: see the module; None without greedy text.
        cross_entropy: per step, in nats, against the teacher's top-k law.
        domains: per domain (agreement of the first step, chain length).
        positions: rows at which chains started.
    """

    agreement: tuple[float, ...]
    chain_length: float | None
    cross_entropy: tuple[float, ...]
    domains: dict[str, tuple[float, float | None]]
    positions: int


def evaluate(
    module: Learner,
    corpus: Corpus,
    *,
    ranks: Ranks,
    num_chains: int = 32,
    batch_size: int = 8,
    limit: int | None = None,
) -> Evaluation:
    """Measure a head on the corpus (or the first `limit` sequences of it). Every rank measures the same."""
    places = corpus.places()[:limit]
    steps = module.num_steps
    found: list[_Row] = []
    entropy = torch.zeros(steps)
    with torch.no_grad(), ranks.precision():
        for first in range(0, len(places), batch_size):
            batch = corpus.batch(
                places[first : first + batch_size], num_chains=num_chains, num_steps=steps, generator=None
            )
            outcome = module(batch.to(ranks.device))
            entropy += outcome.cross_entropy.cpu()
            leading = leading_agreements(outcome, batch.to(ranks.device)).cpu()
            agreed = outcome.agreed.cpu()
            for row, domain in enumerate(batch.domains):
                valid = batch.valid[:, row]
                whole = valid.all(dim=0) if bool(batch.greedy[row]) else torch.zeros_like(valid[0])
                found.append(
                    _Row(
                        domain=domain,
                        agreed=agreed[:, row].sum(dim=1),
                        valid=valid.sum(dim=1),
                        leading=int(leading[row][whole].sum()),
                        chains=int(whole.sum()),
                    )
                )
    batches = max(1, -(-len(places) // batch_size))
    names = sorted({row.domain for row in found})
    return Evaluation(
        agreement=tuple(_agreement(found).tolist()),
        chain_length=_chain_length(found),
        cross_entropy=tuple((entropy / batches).tolist()),
        domains={
            name: (float(_agreement(mine)[0]), _chain_length(mine))
            for name in names
            for mine in [[row for row in found if row.domain == name]]
        },
        positions=int(sum(int(row.valid[0]) for row in found)),
    )


@dataclass(kw_only=True, slots=True)
class _Row:
    """Counts of one sequence: per step (steps,), and of its greedy chains that do not run out of text."""

    domain: str
    agreed: torch.Tensor
    valid: torch.Tensor
    leading: int
    chains: int


def _agreement(rows: list[_Row]) -> torch.Tensor:
    return torch.stack([r.agreed for r in rows]).sum(dim=0) / torch.stack([r.valid for r in rows]).sum(dim=0).clamp(
        min=1
    )


def _chain_length(rows: list[_Row]) -> float | None:
    chains = sum(row.chains for row in rows)
    return 1 + sum(row.leading for row in rows) / chains if chains else None
