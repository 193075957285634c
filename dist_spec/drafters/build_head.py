"""From the settings of a draft head to the drafter: finds its files, checks that it fits the target, shares the target's
embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dist_spec.config import HeadDrafterConfig
from dist_spec.core.messages import FeatureWish
from dist_spec.drafters.draw import LawSettings
from dist_spec.drafters.head import HeadDrafter
from dist_spec.models.head_formats import head_of, load_head
from dist_spec.models.head_target import target_facts
from dist_spec.models.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from dist_spec.models.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeHead:
    """The drafter, the tokenizer whose ids it speaks, and what it wants of the target."""

    drafter: HeadDrafter
    tokenizer: Tokenizer
    wish: FeatureWish


def head_drafter(config: HeadDrafterConfig, *, target: str, max_requests: int, laws: LawSettings | None) -> MadeHead:
    """The drafter of an entry.

    Args:
        target: the target's model id; of its files only tokenizer, config and embedding are read.

    Raises:
        ModelError: there is no such head, or it was made for another target (the field is named).
        UnsupportedError: it is of a kind that is not read here.
    """
    facts = target_facts(target)
    head = load_head(
        head_of(config.model, target=target), target=facts, dtype=getattr(torch, config.dtype), device=config.device
    )
    tokenizer = load_tokenizer(target)
    drafter = HeadDrafter(head, eos_ids=tokenizer.eos_ids, max_requests=max_requests, window=config.window, laws=laws)
    return MadeHead(drafter=drafter, tokenizer=tokenizer, wish=drafter.wish)
