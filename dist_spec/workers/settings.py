"""From the configuration file to what the core and the workers are built with."""

from __future__ import annotations

from dist_spec.config import Config, DrafterConfig, NgramDrafterConfig, SpeculationConfig, SuffixDrafterConfig
from dist_spec.core.settings import Speculation
from dist_spec.drafters.draw import LawSettings

_DEFAULT_DEPTH = 16
_AHEAD_DEPTH = 64
"""Where drafting runs ahead, its pace caps the depth (`core/growth/pace.py`); this bound rarely does."""
_LOOKAHEAD = 24
"""Guesses that a drafter without a model keeps ready: with more it sends three times the bytes for the same acceptance
length (measured on texts of a small chat model; with 16 the length falls by 1%)."""


def speculation_of(config: Config, drafter: DrafterConfig | None = None) -> Speculation:
    """The core's settings; a drafter's own widths and depth where one is given, else the largest depth of all."""
    spec = config.speculation
    drafters = config.drafters if drafter is None else (drafter,)
    looks_up = _looks_up(drafter, spec)
    return Speculation(
        growth=spec.growth,
        delivery=spec.delivery,
        verify_shape=spec.verify_shape,
        on_miss=spec.on_miss,
        budget=(spec.max_budget if spec.budget == "auto" else spec.budget) if config.drafters else 0,
        adaptive=spec.budget == "auto",
        blind=config.verification.rule == "rejection",
        num_draft_tokens=max((_depth(one, spec) for one in drafters), default=_DEFAULT_DEPTH),
        num_leaves=1 if looks_up else getattr(drafter, "width", 8),  # one of its leaves makes a chain
        num_children=getattr(drafter, "num_children", 4),
        fan_out=spec.fan_out,
        drafters_per_request=spec.drafters_per_request,
        lookahead=_LOOKAHEAD if looks_up else 0,
        max_wait_s=spec.max_wait_s,
        pull_timeout_s=spec.pull_timeout_s,
    )


def law_settings_of(config: Config) -> LawSettings | None:
    """How drafters tell the laws of their guesses; None: the rule does not ask for them."""
    verification = config.verification
    if verification.rule != "rejection":
        return None
    return LawSettings(size=verification.law_size, dense=verification.draft_law == "dense")


def _depth(drafter: DrafterConfig, spec: SpeculationConfig) -> int:
    ahead = spec.growth in ("best_first", "optimistic") and spec.on_miss != "draft"
    depth = drafter.num_draft_tokens or (_AHEAD_DEPTH if ahead else _DEFAULT_DEPTH)
    if _looks_up(drafter, spec):
        depth *= 3  # chains of `num_draft_tokens` each, several of them ahead of the verification in flight
    return depth


def _looks_up(drafter: DrafterConfig | None, spec: SpeculationConfig) -> bool:
    """Whether the drafter has no model and grows its tree best first: so cheap that messages are what it costs."""
    return isinstance(drafter, NgramDrafterConfig | SuffixDrafterConfig) and spec.growth == "best_first"
