"""What a drafter's model needs on every device over which its weights are spread, before it is loaded. Reads headers and
shapes, never weights; knows nothing of other processes."""

from __future__ import annotations

from dataclasses import replace

from dist_spec.commands.footprint import Footprint
from dist_spec.config import ModelDrafterConfig
from dist_spec.errors import UnsupportedError

DISK = "disk"


def spread_footprint(drafter: ModelDrafterConfig, whole: Footprint) -> dict[str, Footprint]:
    """Place ("cpu", "cuda:N", "disk") -> what of the model is there; a layer's KV lies where that layer computes.

    Args:
        whole: the model's, on one device and with its weights as they are.

    Raises:
        ConfigError: a package is missing.
        ModelError, UnsupportedError: it cannot be placed so (see `dist_spec.models.placement.plan`).
    """
    from dist_spec.drafters.build import placement_of
    from dist_spec.models.large import plan_large
    from dist_spec.models.source import resolve

    large = plan_large(
        drafter.model,
        resolve(drafter.model).folder,
        placement=placement_of(drafter),
        dtype=drafter.dtype,
        device=drafter.device,
        trust_remote_code=drafter.trust_remote_code,
    )
    if large is None:
        return {drafter.device: whole}
    where = large.plan
    if not large.quantised and not where.is_spread:  # loaded as others are: the CPU keeps a second copy, a GPU does not
        held = where.weights[where.main]
        return {where.main: whole if where.main == "cpu" else replace(whole, weights_bytes=held)}
    if drafter.layers is not None:
        raise UnsupportedError(
            f"{drafter.model} is quantised: its layers cannot be dropped",
            fix="remove `layers`, or use another checkpoint",
        )
    layers = where.layer_devices
    return {
        place: replace(
            whole,
            weights_bytes=held,
            kv_bytes=whole.kv_bytes * layers.count(place) // len(layers),
            process_bytes=whole.process_bytes if place == where.main else 0,
        )
        for place, held in where.weights.items()
    }
