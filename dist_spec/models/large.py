"""Loads a model whose weights are quantised, or lie on several devices, in host memory or on disk. Knows no steps.

Such a model runs through transformers' own forward alone: accelerate's hooks fetch weights and move what layers hand on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dist_spec.errors import DistSpecError, ModelError, UnsupportedError
from dist_spec.models.loading import (
    LoadedModel,
    check_config_file,
    check_module,
    load_model,
    read_module,
    usable_device,
)
from dist_spec.models.placement import Placement, Plan, check_accelerate, plan
from dist_spec.models.quantised import quantization_config, quantization_error, quantizer_for
from dist_spec.models.source import Progress, resolve


@dataclass(frozen=True, kw_only=True)
class Large:
    """A model that cannot be loaded as others are.

    Attributes:
        module: it without weights, on torch's "meta" device, quantised layers in their places.
        wanted: transformers' quantization settings for weights that are stored as they are; None: none.
        quantised: by `wanted`, or as it is stored.
    """

    module: Any
    plan: Plan
    wanted: Any
    quantised: bool


def load_large(
    model: str,
    *,
    placement: Placement,
    dtype: str,
    device: str,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> LoadedModel:
    """As `load_model`, with the weights kept as `placement` says; a checkpoint may be a quantised one.

    Raises:
        ConfigError, ModelError, UnsupportedError: see `load_model`, `plan_large`.
    """
    source = resolve(model, progress=progress)
    large = plan_large(
        model, source.folder, placement=placement, dtype=dtype, device=device, trust_remote_code=trust_remote_code
    )
    if large is None or source.folder is None:
        return load_model(model, dtype=dtype, device=device, trust_remote_code=trust_remote_code, progress=progress)
    where = large.plan
    if not large.quantised and not where.is_spread:
        return load_model(model, dtype=dtype, device=where.main, trust_remote_code=trust_remote_code, progress=progress)
    places = [usable_device(place) for place in dict.fromkeys(where.device_map.values()) if place != "disk"]
    if progress is not None:
        progress(f"loading {model} as {dtype} over {', '.join(map(str, places))}")
    module = _read(source.folder, large, placement, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code)
    module = module.eval().requires_grad_(False)
    return LoadedModel(
        name=model,
        model=module,
        config=module.config.get_text_config(),
        dtype=getattr(torch, dtype),
        device=torch.device(where.main),
        layer_devices=tuple(map(_computing, module.get_decoder().layers, where.layer_devices)),
        stock_only=True,
    )


def _computing(layer: Any, planned: str) -> torch.device:
    """What computes a layer. For parts that lie on the CPU or on disk, accelerate takes a GPU of its own choice."""
    for module in layer.modules():
        hook = getattr(module, "_hf_hook", None)
        for one in getattr(hook, "hooks", (hook,)):
            place = getattr(one, "execution_device", None)
            if place is not None:
                return torch.device(f"cuda:{place}" if isinstance(place, int) else place)
    return torch.device(planned)


def plan_large(
    model: str,
    folder: Path | None,
    *,
    placement: Placement,
    dtype: str,
    device: str,
    trust_remote_code: bool = False,
) -> Large | None:
    """What will lie where, before any weight is read; None: this model is loaded as others are.

    Raises:
        ConfigError: a package is missing.
        ModelError, UnsupportedError: see `placement.plan`; the model is none that is served, or is made in memory.
    """
    wishes = placement.device_map is not None or placement.quantization is not None
    if folder is None:
        if wishes:
            raise UnsupportedError(
                f"{model} is made in memory: device_map and quantization are for models in folders", fix="save it first"
            )
        return None
    stored = check_config_file(folder, trust_remote_code=trust_remote_code, quantised=True).get("quantization_config")
    if not wishes and not stored:
        return None
    check_accelerate()
    module = empty_module(folder, name=model, trust_remote_code=trust_remote_code)
    check_module(module, name=model)
    module = module.to(getattr(torch, dtype))
    wanted = None if placement.quantization is None else quantization_config(placement.quantization)
    quantizer = _prepare(module, wanted, stored, placement, device=device, dtype=getattr(torch, dtype), name=model)
    where = plan(module, placement, device=device, name=model, quantizer=quantizer)
    return Large(module=module, plan=where, wanted=wanted, quantised=quantizer is not None)


def empty_module(folder: Path, *, name: str, trust_remote_code: bool) -> Any:
    """The model of a folder without its weights (on torch's "meta" device).

    Raises:
        ModelError: its config.json does not make one.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(
                config, trust_remote_code=trust_remote_code, attn_implementation="eager"
            )
    except UnsupportedError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise ModelError(
            f"{name}: its config.json does not make a model: {text}", fix="give an intact folder"
        ) from error


def _prepare(
    module: Any, wanted: Any, stored: Any, placement: Placement, *, device: str, dtype: torch.dtype, name: str
) -> Any:
    """Put quantised layers into their places; their quantizer, or None."""
    if wanted is None and not stored:
        return None
    if wanted is not None and stored:
        raise ModelError(
            f"{name} is a quantised checkpoint ({stored.get('quant_method', 'unknown')}): it cannot be quantised again",
            fix="remove `quantization`: it loads as it is stored",
        )
    method = str(stored.get("quant_method") if placement.quantization is None else placement.quantization["method"])
    device_map = _as_given(placement, device)
    quantizer = quantizer_for(deepcopy(module.config), deepcopy(wanted), device_map=device_map, method=method)
    if quantizer is None:
        raise UnsupportedError(
            f"{name} is a quantised checkpoint ({method}) of a kind that transformers does not know",
            fix="use an unquantised checkpoint",
        )
    try:
        with torch.device("meta"):
            quantizer.preprocess_model(model=module, dtype=dtype, device_map=device_map, checkpoint_files=None)
    except Exception as error:
        raise quantization_error(error, method=method) from error
    return quantizer


def _as_given(placement: Placement, device: str) -> Any:
    wish = placement.device_map
    return {"": device} if wish is None else wish if isinstance(wish, str) else dict(wish)


def _read(folder: Path, large: Large, placement: Placement, *, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    where = large.plan
    device_map = dict(where.device_map) if where.is_spread else {"": where.main}
    options: dict[str, Any] = {"device_map": device_map}
    if placement.offload_folder is not None:
        options["offload_folder"] = placement.offload_folder
    if large.wanted is not None:
        options["quantization_config"] = large.wanted
    try:
        with _quiet():
            return read_module(folder, dtype=dtype, trust_remote_code=trust_remote_code, **options)
    except DistSpecError as error:
        cause = error.__cause__
        if large.quantised and "out of memory" not in str(cause).lower():
            raise ModelError(
                f"{folder} cannot be loaded with quantised weights: {' '.join(str(cause).split())}"[:400],
                fix="this method may not work on this machine (see the log above); use another, or none",
            ) from cause
        if isinstance(cause, torch.OutOfMemoryError) or "out of memory" in str(cause).lower():
            raise ModelError(
                f"{folder} does not fit: {' '.join(str(cause).split())}"[:400],
                fix="lower max_memory of that device, put more on cpu or disk (device_map, offload_folder), or quantise it",
            ) from cause
        raise


@contextmanager
def _quiet() -> Iterator[None]:
    """accelerate warns that parts were offloaded, which was asked for."""
    told = logging.getLogger("accelerate.big_modeling")
    before = told.level
    told.setLevel(logging.ERROR)
    try:
        yield
    finally:
        told.setLevel(before)
