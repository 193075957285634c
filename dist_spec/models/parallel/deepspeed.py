"""Shards a model by DeepSpeed's AutoTP, which also shares out numbers of heads that the ranks do not divide. Knows no steps.

Every rank loads the whole model first. The embedding stays whole, and so does every row of logits, on every rank.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from dist_spec.errors import ConfigError, ModelError, UnsupportedError
from dist_spec.models.kv_cache import kv_shape
from dist_spec.models.loading import Shard, read_module
from dist_spec.models.parallel.gather import shard_width
from dist_spec.models.parallel.place import TpPlace

_SHM_OP = "deepspeed_shm_comm"


def check_deepspeed() -> None:
    """ConfigError: the package is missing."""
    if importlib.util.find_spec("deepspeed") is None:
        raise ConfigError(
            "parallel.backend: deepspeed needs the package deepspeed, which is not installed",
            fix="pip install 'dist_spec[deepspeed]', or set parallel.backend: transformers",
        )


def shard_by_deepspeed(
    folder: Path, *, dtype: torch.dtype, place: TpPlace, trust_remote_code: bool
) -> tuple[Any, Shard]:
    """The sharded module and what of it is here.

    Raises:
        ConfigError: the package is missing.
        ModelError: the model cannot be loaded or sharded.
        UnsupportedError: its queries, keys and values are one layer.
    """
    check_deepspeed()
    module = read_module(folder, dtype=dtype, trust_remote_code=trust_remote_code)
    module = module.to(torch.device(place.device)).eval()
    try:
        with redirect_stdout(sys.stderr):  # it tells there what it found
            sharded = _sharded(module, dtype=dtype, place=place)
    except Exception as error:
        raise ModelError(
            f"DeepSpeed cannot shard {type(module).__name__}: {error}", fix="set parallel.backend: transformers"
        ) from error
    return sharded, _shard(sharded, place=place)


def _sharded(module: Any, *, dtype: torch.dtype, place: TpPlace) -> Any:
    # DeepSpeed reads these although the group exists already, and they may be those of a larger world.
    os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.size))
    os.environ.setdefault("LOCAL_RANK", str(place.rank))
    os.environ.setdefault("MASTER_ADDR", place.store_host)
    os.environ.setdefault("MASTER_PORT", str(place.store_port))
    import deepspeed

    _choose_sums(place)
    deepspeed.init_distributed(dist_backend=None, auto_mpi_discovery=False, verbose=False)
    engine = deepspeed.init_inference(
        module,
        config={"tensor_parallel": {"tp_size": place.size}, "dtype": dtype, "replace_with_kernel_inject": False},
    )
    return engine.module


def _choose_sums(place: TpPlace) -> None:
    """Its shared-memory sums work only if its own launcher started all ranks on one host (LOCAL_SIZE says so): elsewhere
    they end the process by a segmentation fault. They are compiled at first use (about a minute)."""
    from deepspeed.ops import __compatible_ops__ as usable

    if os.environ.get("LOCAL_SIZE") != str(place.size):
        usable[_SHM_OP] = False


def _shard(module: Any, *, place: TpPlace) -> Shard:
    config = module.config.get_text_config()
    dim, vocab_size = kv_shape(config)[1], int(config.vocab_size)
    attention = getattr(module.get_decoder().layers[0], "self_attn", None)
    if attention is None or not (hasattr(attention, "q_proj") and hasattr(attention, "k_proj")):
        raise UnsupportedError(
            f"{type(module).__name__} has no separate layers for queries and keys: how many heads are here is not known",
            fix="set parallel.backend: transformers",
        )
    width = shard_width(vocab_size, place.size)
    return Shard(
        heads=int(attention.q_proj.weight.shape[0]) // dim,
        kv_heads=int(attention.k_proj.weight.shape[0]) // dim,
        first=place.rank * width,
        last=min((place.rank + 1) * width, vocab_size),
        whole_rows=True,
    )
