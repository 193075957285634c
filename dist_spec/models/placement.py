"""Which part of a model lies on which device, planned before any weight is read: accelerate's device maps, made explicit and
checked. Knows no files, steps or caches."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dist_spec.errors import ConfigError, ModelError, UnsupportedError

_IN_MEMORY_ONLY = ("cpu", "disk")


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """How the weights of a model are to be kept; see `ModelDrafterConfig`."""

    device_map: str | Mapping[str, str] | None = None
    max_memory: Mapping[str, str] | None = None
    offload_folder: str | None = None
    quantization: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Where a model will lie.

    Attributes:
        device_map: module -> "cpu", "cuda:N" or "disk"; every decoder layer by its own name, or in parts.
        main: what computes modules that lie on the CPU or on disk.
        layer_devices: what is to compute each decoder layer (accelerate may choose another GPU for offloaded ones).
        weights: place -> bytes; that of `main` with room for the largest part that is fetched from elsewhere.
    """

    device_map: Mapping[str, str]
    main: str
    layer_devices: tuple[str, ...]
    weights: Mapping[str, int]

    @property
    def is_spread(self) -> bool:
        """Whether accelerate's hooks are needed."""
        return len(set(self.device_map.values())) > 1


def check_accelerate() -> None:
    """ConfigError: the package is missing."""
    from transformers.utils import is_accelerate_available

    if not is_accelerate_available():
        raise ConfigError(
            "device_map and quantization need the package accelerate, which is not installed (or too old)",
            fix="pip install 'dist_spec[large]'",
        )


def plan(module: Any, placement: Placement, *, device: str, name: str, quantizer: Any = None) -> Plan:
    """Where `module` (on torch's "meta" device, in the type in which it will be loaded) will lie.

    Args:
        device: for a model without a device map.
        quantizer: transformers', already applied to `module`; None: weights stay as they are.

    Raises:
        ConfigError: accelerate is missing.
        ModelError: the map leaves modules out or names some that do not exist; or the model does not fit and may not go
            to disk.
        UnsupportedError: one layer is spread over several devices, or a quantised model would be offloaded.
    """
    check_accelerate()
    wish = placement.device_map
    given = {"": device} if wish is None else dict(wish) if isinstance(wish, Mapping) else {}
    chosen = given or _choose(module, str(wish), placement.max_memory, quantizer)
    device_map = _explicit(module, chosen, name=name)
    places = set(device_map.values())
    if quantizer is not None and given and len(places) > 1 and places & set(_IN_MEMORY_ONLY):
        raise UnsupportedError(
            f"{name}: a quantised model with a part outside the GPUs is not in this release",
            fix="let device_map name GPUs only, or use an unquantised checkpoint",
        )
    if "disk" in places and (placement.offload_folder is None or quantizer is not None):
        _refuse_disk(module, placement, device_map, name=name, quantizer=quantizer)
    accelerators = [place for place in device_map.values() if place not in _IN_MEMORY_ONLY]
    main = accelerators[0] if accelerators else "cpu"
    if quantizer is not None and accelerators and "cpu" in places:
        raise UnsupportedError(
            f"{name} does not fit on the GPUs, and a quantised model with a part in host memory is not in this release",
            fix="raise max_memory of the GPUs, or remove quantization",
        )
    layers = tuple(_computing(device_map, layer, main=main, name=name) for layer in _layer_names(module))
    return Plan(
        device_map=device_map, main=main, layer_devices=layers, weights=_weights(module, device_map, main, quantizer)
    )


def _choose(module: Any, word: str, max_memory: Mapping[str, str] | None, quantizer: Any) -> dict[str, str]:
    """What transformers' own loading would choose."""
    from transformers.integrations.accelerate import get_balanced_memory, get_max_memory, infer_auto_device_map

    limits = None if max_memory is None else {_number(place): size for place, size in max_memory.items()}
    whole = module._no_split_modules
    if word == "sequential":
        memory = get_max_memory(limits)
    else:
        memory = get_balanced_memory(module, max_memory=limits, no_split_module_classes=whole, hf_quantizer=quantizer)
    if quantizer is not None:
        memory = quantizer.adjust_max_memory(memory)
    found = infer_auto_device_map(module, max_memory=memory, no_split_module_classes=whole, hf_quantizer=quantizer)
    return {part: f"cuda:{place}" if isinstance(place, int) else str(place) for part, place in found.items()}


def _number(place: str) -> int | str:
    """A GPU as accelerate names it."""
    return int(place.removeprefix("cuda:")) if place.startswith("cuda:") else place


def _explicit(module: Any, given: Mapping[str, str], *, name: str) -> dict[str, str]:
    """The same map with a key for every decoder layer and every module beside them, or for their parts where the map
    divides them. (transformers matches keys as texts: "layers.1" would be "layers.10" as well.)"""
    known = {part for part, _ in module.named_modules()} | {part for part, _ in module.named_parameters()}
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, sorted(known), n=1)
            hint = f", perhaps you mean {near[0]!r}" if near else ""
            raise ModelError(f"device_map: {name} has no module {key!r}{hint}", fix="name modules of the model")
    inner = {layer.rsplit(".", 1)[0] for layer in _layer_names(module)}
    found: dict[str, str] = {}
    missing: list[str] = []
    for part, tensors in _parts(module, "", given, inner):
        place = _place_of(part, given)
        if place is not None:
            found[part] = place
        elif tensors:
            missing.append(part)
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelError(
            f"device_map gives no place to {', '.join(missing[:3])}{more} of {name}",
            fix='name them, or give the rest a place: "": cpu',
        )
    return found


def _parts(module: Any, prefix: str, given: Mapping[str, str], inner: set[str]) -> Iterator[tuple[str, bool]]:
    """(name, whether it has weights) of the modules that lie in one place."""

    def divided(name: str) -> bool:
        below = f"{name}." if name else ""
        return any(key != name and key.startswith(below) for key in [*given, *inner]) or name in inner

    if not divided(prefix):
        yield prefix, any(True for _ in module.parameters())
        return
    for child, part in module.named_children():
        yield from _parts(part, f"{prefix}.{child}" if prefix else child, given, inner)
    for own, _ in module.named_parameters(recurse=False):
        yield f"{prefix}.{own}" if prefix else own, True


def _place_of(part: str, given: Mapping[str, str]) -> str | None:
    """That of the nearest key above."""
    while part and part not in given:
        part = part.rpartition(".")[0]
    return given.get(part)


def _layer_names(module: Any) -> list[str]:
    """Names of the decoder layers. UnsupportedError: they are not in one list."""
    layers = getattr(module.get_decoder(), "layers", None)
    for name, part in module.named_modules():
        if part is layers and layers is not None:
            return [f"{name}.{number}" for number in range(len(layers))]
    raise UnsupportedError(
        f"{type(module).__name__} does not keep its layers in one list", fix="remove device_map and quantization"
    )


def _computing(device_map: Mapping[str, str], layer: str, *, main: str, name: str) -> str:
    parts = {place for part, place in device_map.items() if part == layer or part.startswith(f"{layer}.")}
    computing = {main if place in _IN_MEMORY_ONLY else place for place in parts}
    if len(computing) != 1:
        raise UnsupportedError(
            f"device_map spreads {layer} of {name} over {', '.join(sorted(computing))}",
            fix="keep each decoder layer on one device",
        )
    return computing.pop()


def _weights(module: Any, device_map: Mapping[str, str], main: str, quantizer: Any) -> dict[str, int]:
    sizes, leaves = _sizes(module, quantizer)
    held: dict[str, int] = {}
    for part, place in device_map.items():
        held[place] = held.get(place, 0) + sizes.get(part, 0)
    outside = {place for place in held if place in _IN_MEMORY_ONLY and place != main}
    fetched = [size for leaf, size in leaves.items() if _place_of(leaf, device_map) in outside]
    held[main] = held.get(main, 0) + max(fetched, default=0)
    return held


def _sizes(module: Any, quantizer: Any) -> tuple[dict[str, int], dict[str, int]]:
    from transformers.integrations.accelerate import compute_module_sizes

    sizes, leaves = compute_module_sizes(module, quantizer, only_modules=False)
    return {part: int(size) for part, size in sizes.items()}, {part: int(size) for part, size in leaves.items()}


def _refuse_disk(
    module: Any, placement: Placement, device_map: Mapping[str, str], *, name: str, quantizer: Any
) -> None:
    sizes, _ = _sizes(module, quantizer)
    beyond = sum(sizes.get(part, 0) for part, place in device_map.items() if place == "disk")
    limit = ", ".join(f"{place}: {size}" for place, size in (placement.max_memory or {}).items()) or "the free memory"
    raise ModelError(
        f"{name} needs {sizes[''] / 2**20:,.1f} MiB for its weights; {beyond / 2**20:,.1f} MiB of it do not fit ({limit})",
        fix="raise max_memory, use a smaller model"
        + (", or set offload_folder: the rest is then read from disk" if quantizer is None else ""),
    )
