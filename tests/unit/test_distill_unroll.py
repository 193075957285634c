"""The unrolled loss: every step of every chain is what drafting step by step would give."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dist_spec.distill.batches import Batch, Corpus
from dist_spec.distill.unroll import SparseCrossEntropy, Unrolled, leading_agreements
from dist_spec.models.head import Head
from tests.unit.distill_cases import tiny_head, tiny_recipe, tiny_shard

STEPS = 3


def batch_of(num_chains: int = 5) -> Batch:
    corpus = Corpus(tiny_recipe())
    corpus.add(0, tiny_shard(seed=1))
    generator = torch.Generator().manual_seed(0)
    return corpus.batch(corpus.places()[:3], num_chains=num_chains, num_steps=STEPS, generator=generator)


def drafted(head: Head, batch: Batch, row: int, start: int) -> list[torch.Tensor]:
    """The logits of a chain that starts at `start`, by the ordinary forward of the head with a growing cache."""
    true = head.fuse(batch.features[row : row + 1])
    found: list[torch.Tensor] = []
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if kept:
            k, v = torch.cat([kept[0][0], k], dim=1), torch.cat([kept[0][1], v], dim=1)
        kept[:] = [(k, v)]
        groups = q.shape[2] // k.shape[2]
        count, total = q.shape[1], k.shape[1]
        mask = torch.ones(count, total, dtype=torch.bool).tril(total - count)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2).repeat_interleave(groups, dim=1),
            v.transpose(1, 2).repeat_interleave(groups, dim=1),
            attn_mask=mask,
        )
        return out.transpose(1, 2).flatten(2)

    states, tokens, positions = (
        true[:, : start + 1],
        batch.tokens[row : row + 1, : start + 1],
        torch.arange(start + 1)[None],
    )
    for step in range(STEPS):
        hidden = head(states, tokens, positions, attend)[:, -1:]
        found.append(head.logits(hidden)[0, 0])
        place = start + step + 1
        if place >= batch.tokens.shape[1]:
            break
        states, tokens, positions = hidden, batch.tokens[row : row + 1, place : place + 1], torch.tensor([[place]])
    return found


def test_a_chain_is_what_drafting_gives() -> None:
    head, batch = tiny_head(norm_features=True), batch_of()
    with torch.no_grad():
        outcome = Unrolled(head, num_steps=STEPS, step_weight=1.0)(batch)
        losses: list[list[float]] = [[] for _ in range(STEPS)]
        for row in range(3):
            for chain, start in enumerate(batch.starts[row].tolist()):
                logits = drafted(head, batch, row, start)
                for step in range(STEPS):
                    if not batch.valid[step, row, chain]:
                        continue
                    law = torch.log_softmax(logits[step], dim=-1)
                    first = int(head.draft_to_target[int(law.argmax())])
                    assert bool(outcome.agreed[step, row, chain]) == (first == int(batch.law_ids[step, row, chain, 0]))
                    losses[step].append(
                        -sum(
                            float(p) * float(law[int(i) - 10])
                            for i, p in zip(
                                batch.law_ids[step, row, chain], batch.law_probs[step, row, chain], strict=True
                            )
                            if i >= 10
                        )
                    )
    wanted = torch.tensor([sum(values) / len(values) for values in losses])
    torch.testing.assert_close(outcome.cross_entropy, wanted, rtol=2e-4, atol=1e-4)
    torch.testing.assert_close(outcome.loss, wanted.mean(), rtol=2e-4, atol=1e-4)


def test_fewer_deep_chains_are_a_part_of_all() -> None:
    head, batch = tiny_head(), batch_of(num_chains=6)
    with torch.no_grad():
        every = Unrolled(head, num_steps=STEPS)(batch)
        some = Unrolled(head, num_steps=STEPS, deep_chains=3)(batch)
    assert torch.equal(every.agreed[0], some.agreed[0])
    assert torch.equal(every.agreed[1:, :, ::2], some.agreed[1:, :, ::2])
    assert not bool(some.agreed[1:, :, 1::2].any())


def test_gradient_is_that_of_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 30, generator=generator, dtype=torch.float64).requires_grad_()
    ids = torch.stack([torch.randperm(30, generator=generator)[:4] for _ in range(5)])
    probs = torch.rand(5, 4, generator=generator).double() / 4
    loss, best = SparseCrossEntropy.apply(logits, ids, probs)
    assert torch.equal(best, logits.argmax(dim=-1) == ids[:, 0])
    (mine,) = torch.autograd.grad(loss, logits)
    dense = torch.zeros(5, 30, dtype=torch.float64).scatter(1, ids, probs)
    reference = -(dense * torch.log_softmax(logits, dim=-1)).sum()
    (wanted,) = torch.autograd.grad(reference, logits)
    torch.testing.assert_close(loss, reference.detach(), check_dtype=False, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-6)


def test_leading_agreements_end_at_the_first_difference() -> None:
    batch = batch_of(num_chains=2)
    outcome = Unrolled(tiny_head(), num_steps=STEPS)(batch)
    outcome.agreed = torch.tensor([[[1, 1]] * 3, [[0, 1]] * 3, [[1, 1]] * 3], dtype=torch.bool)
    batch.valid = torch.ones_like(outcome.agreed)
    batch.valid[2, :, 1] = False
    assert leading_agreements(outcome, batch).tolist() == [[1, 2]] * 3


def test_a_folded_head_is_the_same_function() -> None:
    head = tiny_head(norm_features=True)
    scale = torch.rand(head.config.feature_size, generator=torch.Generator().manual_seed(1)) + 0.1
    scaled = Unrolled(head, num_steps=STEPS, feature_scale=scale)
    batch = batch_of()
    with torch.no_grad():
        plain = Unrolled(scaled.folded(), num_steps=STEPS)(batch)
        torch.testing.assert_close(scaled(batch).loss, plain.loss)
        torch.testing.assert_close(scaled.with_weights({})(batch).loss, plain.loss)
        assert not torch.allclose(Unrolled(head, num_steps=STEPS)(batch).loss, plain.loss)
