"""From the configuration file to what the core and the workers are built with."""

from __future__ import annotations

from dist_spec.config import Config, DrafterConfig, NgramDrafterConfig
from dist_spec.core.settings import Speculation

_DEFAULT_DEPTH = 16


def speculation_of(config: Config, drafter: DrafterConfig | None = None) -> Speculation:
    """The core's settings; a drafter's own widths and depth where one is given."""
    spec = config.speculation
    depth = drafter.num_draft_tokens if drafter is not None else None
    if depth is None:
        depth = max((d.num_draft_tokens or _DEFAULT_DEPTH for d in config.drafters), default=_DEFAULT_DEPTH)
    if isinstance(drafter, NgramDrafterConfig) and spec.growth == "best_first":
        depth *= 3  # chains of `num_draft_tokens` each, several of them ahead of the verification in flight
    return Speculation(
        growth=spec.growth,
        delivery=spec.delivery,
        verify_shape=spec.verify_shape,
        on_miss=spec.on_miss,
        budget=spec.budget if config.drafters else 0,
        num_draft_tokens=depth,
        num_leaves=getattr(drafter, "width", 8),
        num_children=getattr(drafter, "num_children", 4),
        fan_out=spec.fan_out,
        max_wait_s=spec.max_wait_s,
        pull_timeout_s=spec.pull_timeout_s,
    )
