"""A smaller model made of some layers of a larger one: which layers, their numbering, what the configuration says of them.
Knows no training, drafts or requests.

The layers stay as they are, so that the parts of a decoder (embedding, final norm, head) fit behind any of them: run as
they are they make an early-exit drafter (LayerSkip, Elhoushi et al. 2024, without its training); as a start, a student.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dist_spec.errors import ModelError, UnsupportedError
from dist_spec.models.loading import LoadedModel

_PER_LAYER = ("layer_types", "no_rope_layers", "mlp_layer_types")
"""Lists in a configuration with an entry for every layer."""

_BY_NUMBER = ("mlp_only_layers", "first_k_dense_replace", "moe_layer_freq", "decoder_sparse_step")
"""Settings that say by its number how a layer is built: such a configuration cannot describe other layers in that place."""


def early_exit(loaded: LoadedModel, layers: Sequence[int]) -> LoadedModel:
    """The model with only these decoder layers, in this order, then its final norm and head. The same object, changed: the
    other layers' memory is free afterwards.

    Raises:
        ModelError: the model has no layer of one of these numbers, or they do not ascend.
        UnsupportedError: see `keep_layers`.
    """
    if loaded.stock_only:
        raise UnsupportedError(
            f"{loaded.name} is quantised: its layers cannot be dropped",
            fix="remove `layers`, or use another checkpoint",
        )
    keep_layers(loaded.model, layers, name=loaded.name)
    loaded.lean = None
    return loaded


def keep_layers(module: Any, layers: Sequence[int], *, name: str) -> None:
    """Drop all decoder layers of a transformers model but these, and number those that stay from 0.

    Raises:
        ModelError: the model has no layer of one of these numbers, or they do not ascend.
        UnsupportedError: the model does not keep its layers in one list.
    """
    from torch import nn

    decoder = module.get_decoder()
    kept = getattr(decoder, "layers", None)
    config = module.config.get_text_config()
    if not isinstance(kept, nn.ModuleList) or len(kept) != config.num_hidden_layers:
        raise UnsupportedError(
            f"{name} ({type(module).__name__}) does not keep its layers in one list", fix="use a model of its own"
        )
    check_layers(layers, num_layers=len(kept), name=name)
    if tuple(layers) == tuple(range(len(kept))):
        return
    decoder.layers = nn.ModuleList(kept[number] for number in layers)
    for place, layer in enumerate(decoder.layers):
        for part in layer.modules():
            if hasattr(part, "layer_idx"):
                part.layer_idx = place
    for settings in {id(c): c for c in (config, decoder.config, module.config)}.values():
        _renumber(settings, layers, num_layers=len(kept))


def check_layers(layers: Sequence[int], *, num_layers: int, name: str) -> None:
    """ModelError unless `layers` are numbers of layers of a model that has so many, ascending."""
    wanted = ", ".join(map(str, layers))
    if not layers or list(layers) != sorted(set(layers)):
        raise ModelError(f"layers: [{wanted}] do not ascend", fix="name each layer once, lowest first")
    if layers[0] < 0 or layers[-1] >= num_layers:
        raise ModelError(
            f"layers: [{wanted}] are not all in {name}, which has {num_layers} layers",
            fix=f"use numbers from 0 to {num_layers - 1}",
        )


def check_describable(config: Any, *, name: str) -> None:
    """UnsupportedError unless the configuration still describes a model after its layers were numbered anew."""
    odd = [key for key in _BY_NUMBER if getattr(config, key, None) not in (None, 0, 1, [])]
    if odd:
        raise UnsupportedError(f"{name}: its layers differ by their number ({odd[0]})", fix="use a head instead")


def spread_layers(count: int, *, num_layers: int) -> tuple[int, ...]:
    """`count` of the numbers 0 .. num_layers - 1, spread evenly with the first and the last among them.

    Raises:
        ModelError: there are not so many.
    """
    if not 1 <= count <= num_layers:
        raise ModelError(f"{count} layers of a model that has {num_layers}", fix=f"use 1 to {num_layers}")
    if count == 1:
        return (0,)
    return tuple(round(i * (num_layers - 1) / (count - 1)) for i in range(count))


def _renumber(config: Any, layers: Sequence[int], *, num_layers: int) -> None:
    if not hasattr(config, "num_hidden_layers"):
        return
    for key in _PER_LAYER:
        values = getattr(config, key, None)
        if isinstance(values, list) and len(values) == num_layers:
            setattr(config, key, [values[number] for number in layers])
    config.num_hidden_layers = len(layers)
