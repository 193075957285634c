"""From the configuration file to what the core and the workers are built with."""

from __future__ import annotations

from dist_spec.config import Config, DrafterConfig, NgramDrafterConfig, SpeculationConfig
from dist_spec.core.settings import Speculation

_DEFAULT_DEPTH = 16


def speculation_of(config: Config, drafter: DrafterConfig | None = None) -> Speculation:
    """The core's settings; a drafter's own widths and depth where one is given, else the largest depth of all."""
    spec = config.speculation
    drafters = config.drafters if drafter is None else (drafter,)
    return Speculation(
        growth=spec.growth,
        delivery=spec.delivery,
        verify_shape=spec.verify_shape,
        on_miss=spec.on_miss,
        budget=(spec.max_budget if spec.budget == "auto" else spec.budget) if config.drafters else 0,
        adaptive=spec.budget == "auto",
        blind=config.verification.rule == "rejection",
        num_draft_tokens=max((_depth(one, spec) for one in drafters), default=_DEFAULT_DEPTH),
        num_leaves=getattr(drafter, "width", 8),
        num_children=getattr(drafter, "num_children", 4),
        fan_out=spec.fan_out,
        max_wait_s=spec.max_wait_s,
        pull_timeout_s=spec.pull_timeout_s,
    )


def _depth(drafter: DrafterConfig, spec: SpeculationConfig) -> int:
    depth = drafter.num_draft_tokens or _DEFAULT_DEPTH
    if isinstance(drafter, NgramDrafterConfig) and spec.growth == "best_first":
        depth *= 3  # chains of `num_draft_tokens` each, several of them ahead of the verification in flight
    return depth
