"""From every rank's part of the vocabulary to whole rows of logits on the leader, and back. It knows no steps."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dist_spec.models.loading import LoadedModel, Shard
from dist_spec.models.parallel.group import TpGroup


def shard_width(vocab_size: int, size: int) -> int:
    """Ids per rank; the last ranks may have fewer."""
    return -(-vocab_size // size)


def local_rows(logits: torch.Tensor, shard: Shard | None) -> torch.Tensor:
    """This rank's part of rows of logits, which may be whole already."""
    return logits[:, shard.first : shard.last] if shard is not None and shard.whole_rows else logits


def gather_rows(logits: torch.Tensor, loaded: LoadedModel, group: TpGroup) -> torch.Tensor:
    """On the leader (n, vocab) of all ranks' (n, width); elsewhere what was given. Ranks must agree on n; nothing travels
    for n = 0, or where every rank has whole rows."""
    assert loaded.shard is not None
    if loaded.shard.whole_rows:
        return logits
    if len(logits) == 0:
        return logits.new_empty((0, loaded.vocab_size))
    width = shard_width(loaded.vocab_size, group.size)
    padded = F.pad(logits, (0, width - logits.shape[1])).contiguous()
    group.watch.doing("logits were gathered")
    parts = group.gather(padded)
    group.watch.doing(None)
    return torch.cat(parts, dim=1)[:, : loaded.vocab_size] if parts else logits
