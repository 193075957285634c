"""Loads a transformers model for inference and refuses by name what is not served. Knows no caches, rows or requests."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_spec.errors import ModelError, UnsupportedError
from dist_spec.models.random_models import build_random
from dist_spec.models.source import Progress, resolve

if TYPE_CHECKING:
    import torch

    from dist_spec.models.tokenizer import Tokenizer

DTYPES = ("float32", "bfloat16", "float16")
_LAYER_TYPES = {"full_attention", "sliding_attention"}
_SERVED_ROPES = {"default", "linear", "llama3", "yarn", "proportional"}
_ENCODER_DECODERS = {"t5", "mt5", "bart", "mbart", "marian", "pegasus", "whisper", "umt5", "led", "blenderbot"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """What of a model one of several ranks holds.

    Attributes:
        heads, kv_heads: attention heads.
        first, last: ids first .. last - 1 are its part of the vocabulary.
        whole_rows: its logits are of the whole vocabulary all the same.
    """

    heads: int
    kv_heads: int
    first: int
    last: int
    whole_rows: bool = False


@dataclass(kw_only=True)
class LoadedModel:
    """A model in eval mode on its device, with its config.

    Attributes:
        name: the model id it was loaded from.
        model: a transformers `...ForCausalLM` module.
        config: its (text) config, of the whole model.
        shard: the part of it that is here; None: all of it.
        layer_devices: where each decoder layer computes; None: on `device`.
        stock_only: its weights can be run by transformers' own forward alone (hooks move them, or they are quantised).
    """

    name: str
    model: Any
    config: Any
    dtype: torch.dtype
    device: torch.device
    cache_dir: str | Path | None = None
    shard: Shard | None = None
    layer_devices: tuple[torch.device, ...] | None = None
    stock_only: bool = False
    lean: Any = None
    """The lean stack that the runners of this model share (`dist_spec.models.packed` fills it in)."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Loaded at first use."""
        from dist_spec.models.tokenizer import load_tokenizer

        return load_tokenizer(self.name, cache_dir=self.cache_dir)

    @property
    def vocab_size(self) -> int:
        """Width of the logits (the tokenizer may know fewer ids)."""
        return int(self.config.vocab_size)

    @property
    def local_config(self) -> Any:
        """`config` with the numbers of heads that are here: what sizes a KV cache."""
        if self.shard is None:
            return self.config
        config = copy(self.config)
        heads = int(config.num_attention_heads)
        config.head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        config.num_attention_heads, config.num_key_value_heads = self.shard.heads, self.shard.kv_heads
        return config

    @property
    def max_positions(self) -> int:
        """Longest sequence the model was made for."""
        return int(self.config.max_position_embeddings)

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def load_model(
    model: str,
    *,
    dtype: str,
    device: str,
    trust_remote_code: bool = False,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load `model` (see `dist_spec.models.source` for the forms of an id).

    Raises:
        ModelError: it cannot be found or read, or the device does not exist.
        UnsupportedError: it is of a kind that is not served (named in the message).
    """
    import torch

    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} of model {model}", fix=f"use one of {', '.join(DTYPES)}")
    place = usable_device(device)
    source = resolve(model, cache_dir=cache_dir, progress=progress)
    if source.folder is not None:
        check_config_file(source.folder, trust_remote_code=trust_remote_code)
        if progress is not None:
            progress(f"loading {model} as {dtype}")
        module = read_module(source.folder, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code)
    else:
        module = build_random(source.spec)
    # The dtype argument leaves float32 buffers (rotary frequencies) alone, which is what the stock model does too.
    module = module.to(dtype=getattr(torch, dtype)) if source.folder is None else module
    module = module.to(place).eval().requires_grad_(False)
    check_module(module, name=model)
    config = module.config.get_text_config()
    return LoadedModel(
        name=model, model=module, config=config, dtype=getattr(torch, dtype), device=place, cache_dir=cache_dir
    )


def check_config_file(folder: Path, *, trust_remote_code: bool = False, quantised: bool = False) -> dict[str, Any]:
    """Read config.json and refuse, without loading any weight, what its keys already rule out; `quantised` checkpoints
    are left to transformers."""
    try:
        config: Any = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {folder / 'config.json'}: {error}", fix="give an intact model folder") from error
    if not isinstance(config, dict):
        raise ModelError(f"{folder / 'config.json'} holds no settings", fix="give an intact model folder")
    stored = config.get("quantization_config")
    if stored and not quantised:
        method = stored.get("quant_method", "unknown") if isinstance(stored, dict) else stored
        raise UnsupportedError(
            f"{folder} is a quantised checkpoint ({method}); FP8, GPTQ, AWQ and the like are for drafters only",
            fix="use an unquantised checkpoint in float32, bfloat16 or float16",
        )
    kind = config.get("model_type", "unknown")
    if config.get("is_encoder_decoder") or kind in _ENCODER_DECODERS:
        raise UnsupportedError(f"{folder} is an encoder-decoder model ({kind})", fix="use a decoder-only model")
    if "vision_config" in config or "audio_config" in config:
        raise UnsupportedError(f"{folder} is a multimodal model ({kind})", fix="use its text-only checkpoint")
    if "auto_map" in config and not trust_remote_code:
        raise ModelError(
            f"{folder} brings its own code (auto_map), which is not run unless asked for",
            fix="set trust_remote_code: true if you trust it",
        )
    return dict(config)


def check_module(module: Any, *, name: str) -> None:
    """Refuse an architecture whose attention or cache is not ours to replace.

    Raises:
        UnsupportedError: with the architecture and the reason.
    """
    kind, config = type(module).__name__, module.config.get_text_config()

    def refuse(reason: str) -> None:
        raise UnsupportedError(
            f"{name} ({kind}): {reason}", fix="see the support matrix; Llama, Qwen, Gemma, Mistral work"
        )

    if not getattr(module, "_supports_attention_backend", False):
        refuse("its attention does not go through transformers' AttentionInterface")
    if getattr(config, "is_encoder_decoder", False):
        refuse("encoder-decoder models are not supported")
    strange = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if strange:
        refuse(f"layers of kind {', '.join(sorted(strange))} keep a state other than a KV cache")
    if getattr(config, "kv_lora_rank", None):
        refuse("multi-head latent attention (keys and values of different size) is not supported")
    if not getattr(config, "max_position_embeddings", None):
        refuse("its config names no longest sequence (max_position_embeddings)")
    ropes = _rope_types(config) - _SERVED_ROPES
    if ropes:
        refuse(f"rotary scaling {', '.join(sorted(ropes))} depends on the longest sequence of a batch")


def _rope_types(config: Any) -> set[str]:
    rope = getattr(config, "rope_parameters", None) or {}
    groups = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    return {str(group.get("rope_type", "default")) for group in groups}


def usable_device(device: str) -> torch.device:
    """The device of that name. ModelError, UnsupportedError: it does not exist here, or is not one that is supported."""
    import torch

    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"unknown device {device!r}", fix="use cpu or cuda:N") from error
    if place.type not in ("cpu", "cuda"):
        raise UnsupportedError(f"device {device!r} is not supported", fix="use cpu or cuda:N")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise ModelError(f"device {device} does not exist here ({torch.cuda.device_count()} GPUs)", fix="use cpu")
    return place


def read_module(
    folder: Path, *, dtype: torch.dtype, trust_remote_code: bool, what: str = "the model", **options: Any
) -> Any:
    """The transformers module of a folder, as every way of loading wants it: from safetensors, from here alone, quietly.

    Args:
        what: is read, for the error.
        options: more for `from_pretrained`.

    Raises:
        ModelError: it cannot be read.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        return AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
            use_safetensors=True,
            attn_implementation="eager",
            **options,
        )
    except Exception as error:
        raise ModelError(f"cannot load {what} in {folder}: {error}", fix="give an intact model folder") from error
