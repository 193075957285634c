"""How a drafter's large model may be kept: which settings contradict each other, and what is not served. Knows only the
schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_spec.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from dist_spec.config.schema import ModelDrafterConfig, TargetConfig


def check_large(drafter: ModelDrafterConfig, *, place: str, target: TargetConfig) -> None:
    """Raises ConfigError (contradiction, or nothing to gain) or UnsupportedError; `place` is the entry's, for messages."""
    if drafter.layers is not None and (drafter.device_map is not None or drafter.quantization is not None):
        key = "device_map" if drafter.device_map is not None else "quantization"
        raise UnsupportedError(
            f"{place}.layers with {place}.{key} is not in this release: layers are dropped after the whole model was loaded",
            fix=f"remove {place}.{key}, or save these layers as a model of their own",
        )
    _check_quantization(drafter, place)
    if drafter.device_map is None:
        for key in ("max_memory", "offload_folder"):
            if getattr(drafter, key) is not None:
                raise ConfigError(f"{place}.{key} is for {place}.device_map", fix=f"set {place}.device_map: auto")
    elif drafter.device != "cpu":
        raise ConfigError(
            f"{place}.device: {drafter.device} contradicts {place}.device_map, which says where the model lies",
            fix=f"remove {place}.device, or {place}.device_map",
        )
    elif isinstance(drafter.device_map, dict):
        _check_mapping(drafter, drafter.device_map, place)
    elif drafter.max_memory is None and target.device != "cpu":
        raise ConfigError(
            f"{place}.device_map: {drafter.device_map} would take the memory of all GPUs, the target's among them",
            fix=f'name the devices it may use: {place}.max_memory: {{"cuda:1": 20GiB, cpu: 40GiB}}',
        )


def _check_mapping(drafter: ModelDrafterConfig, device_map: dict[str, str], place: str) -> None:
    if drafter.max_memory is not None:
        raise ConfigError(
            f"{place}.max_memory is for a {place}.device_map that is chosen (auto, balanced, sequential), not given",
            fix=f"remove {place}.max_memory",
        )
    places = set(device_map.values())
    if "disk" in places and drafter.offload_folder is None:
        raise ConfigError(
            f"{place}.device_map puts modules on disk, and no folder is named for what must be written anew",
            fix=f"set {place}.offload_folder to a folder on a fast disk",
        )
    if "disk" not in places and drafter.offload_folder is not None:
        raise ConfigError(
            f"{place}.offload_folder: {place}.device_map puts nothing on disk", fix=f"remove {place}.offload_folder"
        )
    if places == {"disk"}:
        raise ConfigError(
            f"{place}.device_map puts everything on disk: no device is left to compute",
            fix=f"put one module into memory, say {place}.device_map: {{model.embed_tokens: cpu, ...}}",
        )
    if len(places) == 1:
        only = next(iter(places))
        raise ConfigError(
            f"{place}.device_map puts everything on {only}: then a device is simpler, and runs faster",
            fix=f"set {place}.device: {only} and remove {place}.device_map",
        )


def _check_quantization(drafter: ModelDrafterConfig, place: str) -> None:
    quantization = drafter.quantization
    if quantization is None:
        return
    if not isinstance(quantization.get("method"), str):
        raise ConfigError(
            f"{place}.quantization names no method",
            fix=f"set {place}.quantization.method to one that transformers knows, say torchao",
        )
    given = set(drafter.device_map.values()) if isinstance(drafter.device_map, dict) else set()
    if drafter.offload_folder is not None or "disk" in given or "cpu" in given:
        raise UnsupportedError(
            f"{place}.quantization with weights outside the GPUs is not in this release: few of transformers' methods do it",
            fix=f"remove {place}.quantization, or let {place}.device_map name GPUs only",
        )
