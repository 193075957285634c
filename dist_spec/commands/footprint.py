"""What a model needs before it is loaded: memory for weights and KV cache. Reads headers and shapes, never weights;
knows nothing of drafters or processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_spec.config import DEFAULT_MODEL_LEN, ParallelConfig
from dist_spec.errors import ModelError

PROCESS_BYTES = 350 << 20
"""A Python process with torch loaded and nothing done yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Bytes on the device, and the longest sequence that was reckoned with."""

    weights_bytes: int
    kv_bytes: int
    max_model_len: int
    process_bytes: int = PROCESS_BYTES

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.process_bytes


def model_footprint(
    model: str,
    *,
    dtype: str,
    max_model_len: int | None,
    max_sequences: int,
    kv_block_size: int,
    layers: Sequence[int] | None = None,
    device: str = "cpu",
    num_tree_slots: int = 0,
    batch_invariant: bool = False,
    parallel: ParallelConfig | None = None,
    trust_remote_code: bool = False,
    quantised: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Footprint:
    """Sizes of a model that could be loaded.

    Args:
        layers: the decoder layers that run (None: all).
        num_tree_slots: KV slots per sequence for the nodes of a draft tree.
        batch_invariant: as the target runs; its KV may be kept in another type then.
        parallel: the ranks that it is spread over; sizes are then those of the largest rank.
        quantised: it may be a quantised checkpoint (sizes are those of its unquantised weights).

    Raises:
        ModelError: it cannot be found or read, is asked for more positions or layers than it has, or cannot be spread so.
        UnsupportedError: it is of a kind that is not served.
    """
    import torch

    from dist_spec.models.kv_cache import bytes_per_token
    from dist_spec.models.loading import check_module
    from dist_spec.models.packed import attention_for, kv_dtype, packed_copy_bytes
    from dist_spec.models.student import keep_layers

    module = _shapes(model, trust_remote_code=trust_remote_code, quantised=quantised, progress=progress)
    check_module(module, name=model)
    if layers is not None:
        keep_layers(module, layers, name=model)
    config = module.config.get_text_config()
    longest = int(config.max_position_embeddings)
    if max_model_len is not None and max_model_len > longest:
        raise ModelError(
            f"{model}: max_model_len {max_model_len} is more than the {longest} positions the model was made for",
            fix=f"set max_model_len to {longest} or less",
        )
    length = max_model_len or min(longest, DEFAULT_MODEL_LEN)
    blocks = -(-(length + num_tree_slots) // kv_block_size) * max_sequences
    weight_type: torch.dtype = getattr(torch, dtype)
    weights_bytes = sum(p.numel() for p in module.parameters()) * weight_type.itemsize
    packed_bytes = packed_copy_bytes(module, dtype=weight_type, device=torch.device(device))
    if parallel is not None and parallel.tp_size > 1:
        weights_bytes, packed_bytes, config = _rank_share(module, parallel, name=model, itemsize=weight_type.itemsize)
    attention = attention_for(config, device=torch.device(device), batch_invariant=batch_invariant)
    kept = kv_dtype(attention, weight_type)
    return Footprint(
        weights_bytes=weights_bytes + packed_bytes,
        kv_bytes=blocks * kv_block_size * bytes_per_token(config, kept),
        max_model_len=length,
    )


def _rank_share(module: Any, parallel: ParallelConfig, *, name: str, itemsize: int) -> tuple[int, int, Any]:
    """(bytes of weights, of a second copy of them, config) of the rank with the most. Ranks keep no second copy of
    their weights; those of DeepSpeed hold the whole model before they cut it."""
    from dist_spec.models.kv_cache import kv_shape
    from dist_spec.models.parallel.deepspeed import check_deepspeed
    from dist_spec.models.parallel.load import share_of

    config, size = copy(module.config.get_text_config()), parallel.tp_size
    if parallel.backend == "deepspeed":
        check_deepspeed()
        held, spread = sum(p.numel() for p in module.parameters()), True
    else:
        held, spread = share_of(module, name=name, size=size, attention=parallel.attention)
    if spread:
        heads, (kv_heads, dim) = int(config.num_attention_heads), kv_shape(config)
        config.head_dim = dim
        config.num_attention_heads, config.num_key_value_heads = -(-heads // size), -(-kv_heads // size)
    return held * itemsize, 0, config


def head_footprint(
    model: str, *, target: str, dtype: str, window: int, max_sequences: int, num_tree_slots: int, device: str = "cpu"
) -> Footprint:
    """Sizes of a draft head that fits the target.

    Raises:
        ModelError: there is no such head, or it was made for another target.
        UnsupportedError: it is of a kind that is not read here.
    """
    import torch

    from dist_spec.models.head import Head
    from dist_spec.models.head_formats import read_head_config
    from dist_spec.models.head_target import target_facts

    config = read_head_config(model, target=target_facts(target))
    with torch.device("meta"):
        head = Head(config, embedding=torch.empty(config.vocab_size, config.embedding_size))
    size = getattr(torch, dtype).itemsize
    copies = 2 if device == "cpu" and dtype == "bfloat16" else 1
    embedding = config.vocab_size * config.embedding_size
    per_row = 2 * config.num_kv_heads * config.head_dim + config.hidden_size
    return Footprint(
        weights_bytes=(copies * head.num_parameters + embedding) * size,
        kv_bytes=(2 * window + num_tree_slots) * max_sequences * per_row * size,
        max_model_len=config.max_positions,
    )


def _shapes(model: str, *, trust_remote_code: bool, quantised: bool, progress: Callable[[str], None] | None) -> Any:
    """The model without its weights (on torch's "meta" device)."""
    from dist_spec.models.large import empty_module
    from dist_spec.models.loading import check_config_file
    from dist_spec.models.random_models import build_random
    from dist_spec.models.source import resolve

    source = resolve(model, progress=progress)
    if source.folder is None:
        return build_random(source.spec)
    check_config_file(source.folder, trust_remote_code=trust_remote_code, quantised=quantised)
    check_weight_files(source.folder)
    return empty_module(source.folder, name=model, trust_remote_code=trust_remote_code)


def check_weight_files(folder: Path) -> None:
    """ModelError unless the folder has weights in safetensors format whose headers are whole."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} holds no *.safetensors", fix="save the model's weights in safetensors format")
    for file in files:
        try:
            with safe_open(str(file), framework="numpy") as opened:
                opened.keys()
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file} is damaged or not complete: {error}", fix="copy the model again") from error
