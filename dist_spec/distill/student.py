"""A student: a few of the target's own layers, learning to say what the whole says. It knows no files and no optimiser.

Layers first to last are taken at even distances, with the target's embedding, final norm and head; embedding and head stay
the target's own. The loss is the cross entropy to the teacher's top-k laws on text that the target wrote, at every position
with a law: one forward judges them all, as a student needs no features (Hinton et al. 2015; the initialisation is that of
DistilBERT, Sanh et al. 2019).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dist_spec.distill.batches import Batch
from dist_spec.distill.learner import Outcome
from dist_spec.distill.unroll import SparseCrossEntropy
from dist_spec.models.loading import load_model
from dist_spec.models.student import check_describable, keep_layers


def new_student(target: str, *, layers: Sequence[int], dtype: str, device: str) -> Any:
    """A float32 transformers model of these layers of `target`; embedding and head are frozen.

    It is loaded anew: the target of the same process may have been changed to be fast.

    Args:
        dtype: in which the target is loaded before it is cut (so that a large one fits).
    Raises:
        ModelError, UnsupportedError: the target has no such layers, or cannot be cut.
    """
    loaded = load_model(target, dtype=dtype, device=device)
    check_describable(loaded.config, name=target)
    keep_layers(loaded.model, layers, name=target)
    student = loaded.model.float().requires_grad_(True)
    for part in (student.get_input_embeddings(), student.get_output_embeddings()):
        part.requires_grad_(False)
    return student


class Studied(nn.Module):
    """Student plus loss; see `distill.learner.Learner`.

    A student reads tokens alone, so it has no steps of its own that training could differ in: step j of a chain is judged by
    the same law as the first step of a chain that starts j later.
    """

    def __init__(self, student: Any, *, num_steps: int) -> None:
        super().__init__()
        self.student = student
        self.num_steps = num_steps

    @property
    def trained(self) -> nn.Module:
        """The decoder's parts without the embedding, which is the target's."""
        decoder, embedding = self.student.get_decoder(), self.student.get_input_embeddings()
        return nn.ModuleDict({name: part for name, part in decoder.named_children() if part is not embedding})

    def with_weights(self, weights: Mapping[str, torch.Tensor]) -> Studied:
        """See `Learner.with_weights`."""
        other = Studied(copy.deepcopy(self.student), num_steps=self.num_steps)
        other.trained.load_state_dict({**other.trained.state_dict(), **weights})
        return other

    def forward(self, batch: Batch) -> Outcome:
        """The loss is over the first steps of all chains."""
        text = torch.cat([batch.opening[:, None], batch.tokens], dim=1)
        steps = torch.arange(self.num_steps, device=text.device)[:, None, None]
        judged = batch.starts + 1 + steps
        low = int(judged[batch.valid].min()) if bool(batch.valid.any()) else 0
        judged = judged.clamp(min=low, max=text.shape[1] - 1)  # beyond: places that are not valid
        kept = torch.arange(low, text.shape[1], device=text.device)
        logits = self.student(input_ids=text, use_cache=False, logits_to_keep=kept).logits
        choices = logits.detach().argmax(dim=-1)
        agreed = torch.stack([choices.gather(1, rows - low) for rows in judged]) == batch.law_ids[..., 0]
        rows = torch.arange(text.shape[0], device=text.device)[:, None].expand(judged.shape[1:])
        there = batch.valid[0]
        wanted = logits[rows[there], judged[0][there] - low]
        ids, probs = batch.law_ids[0][there].long(), batch.law_probs[0][there].float()
        total, _ = SparseCrossEntropy.apply(wanted, ids, probs)
        loss = total / max(1, len(ids))
        return Outcome(
            loss=loss, agreed=agreed & batch.valid, cross_entropy=loss.detach().float().expand(self.num_steps)
        )
