"""Loads this rank's shard of a model, and refuses by name what cannot be sharded before any weight is read. Knows no steps.

By transformers' own plans: each rank reads its shard only. The head is made to keep its part of the vocabulary (the plan
would gather it on every rank). DeepSpeed's way is in `deepspeed.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from dist_spec.errors import ModelError, UnsupportedError
from dist_spec.models.kv_cache import kv_shape
from dist_spec.models.loading import (
    DTYPES,
    LoadedModel,
    Shard,
    check_config_file,
    check_module,
    read_module,
    usable_device,
)
from dist_spec.models.parallel.deepspeed import shard_by_deepspeed
from dist_spec.models.parallel.gather import shard_width
from dist_spec.models.parallel.place import TpPlace
from dist_spec.models.random_models import build_random
from dist_spec.models.source import Progress, Source, resolve

ShardingBackend = Literal["transformers", "deepspeed"]
AttentionPlan = Literal["sharded", "replicated"]
_KEYS = ("k_proj", "qkv_proj", "query_key_value")
_WHOLE = ("replicate", "replicated_with_grad_allreduce")


def check_heads(config: Any, *, name: str, size: int) -> None:
    """Refuse numbers of heads that transformers cannot share out (it would load them and fail in the first forward).

    Args:
        config: the model's (text) config.

    Raises:
        ModelError: with the ways out.
    """
    heads, kv_heads = int(config.num_attention_heads), kv_shape(config)[0]
    if heads % size == 0 and kv_heads % size == 0:
        return
    fitting = [number for number in range(2, kv_heads + 1) if heads % number == 0 and kv_heads % number == 0]
    others = f", or parallel.tp_size to {' or '.join(map(str, fitting))}" if fitting else ""
    raise ModelError(
        f"{name} has {heads} attention heads and {kv_heads} KV heads, which {size} ranks cannot share out evenly",
        fix=f"set parallel.attention: replicated, or parallel.backend: deepspeed{others}",
    )


def share_of(bare: Any, *, name: str, size: int, attention: AttentionPlan = "sharded") -> tuple[int, bool]:
    """(parameters that a rank holds, whether it has only some of the attention heads), by transformers' sharding.

    Args:
        bare: the model, with or without its weights.

    Raises:
        ModelError: its heads cannot be shared out.
        UnsupportedError: there is no plan for it.
    """
    plan = _plan(bare, name=name, attention=attention, ordered=False)
    plan = dict(bare.tp_plan) | plan
    spread = spreads_heads(plan)
    if spread:
        check_heads(bare.config.get_text_config(), name=name, size=size)
    whole = shared = 0
    for key, parameter in bare.named_parameters():
        module = re.sub(r"\.\d+\.", ".*.", key).rpartition(".")[0]
        if plan.get(module, "replicate") in _WHOLE:
            whole += parameter.numel()
        else:
            shared += parameter.numel()
    return whole + -(-shared // size), spread


def load_shard(
    model: str,
    *,
    dtype: str,
    place: TpPlace,
    backend: ShardingBackend = "transformers",
    attention: AttentionPlan = "sharded",
    ordered: bool = False,
    trust_remote_code: bool = False,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """This rank's part of `model`; call it on every rank of the group, after all have joined.

    Args:
        ordered: sums do not depend, to the last bit, on how many rows they are made of (transformers' sharding only).

    Raises:
        ModelError: it cannot be found, read or sharded.
        UnsupportedError: it is of a kind that is not served.
        ConfigError: the backend's package is missing.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} of model {model}", fix=f"use one of {', '.join(DTYPES)}")
    device = usable_device(place.device)
    source = resolve(model, cache_dir=cache_dir, progress=progress)
    if source.folder is not None:
        check_config_file(source.folder, trust_remote_code=trust_remote_code)
    if progress is not None and place.is_leader:
        progress(f"loading {model} as {dtype} on {place.size} ranks")
    torch_dtype = getattr(torch, dtype)
    with _as_folder(source, torch_dtype) as folder:
        if backend == "deepspeed":
            module, shard = shard_by_deepspeed(
                folder, dtype=torch_dtype, place=place, trust_remote_code=trust_remote_code
            )
        else:
            module, shard = _by_transformers(
                folder,
                name=model,
                dtype=torch_dtype,
                place=place,
                attention=attention,
                ordered=ordered and place.size > 2,
                trust_remote_code=trust_remote_code,
            )
    module = module.eval().requires_grad_(False)
    check_module(module, name=model)
    return LoadedModel(
        name=model,
        model=module,
        config=module.config.get_text_config(),
        dtype=torch_dtype,
        device=device,
        cache_dir=cache_dir,
        shard=shard,
    )


def _by_transformers(
    folder: Path,
    *,
    name: str,
    dtype: torch.dtype,
    place: TpPlace,
    attention: AttentionPlan,
    ordered: bool,
    trust_remote_code: bool,
) -> tuple[Any, Shard]:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    text = config.get_text_config()
    with torch.device("meta"):
        bare = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    plan = _plan(bare, name=name, attention=attention, ordered=ordered)
    spread = spreads_heads(dict(bare.tp_plan) | plan)
    if spread:
        check_heads(text, name=name, size=place.size)
    module = read_module(
        folder,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        what="a shard of the model",
        distributed_config=DistributedConfig(tp_size=place.size, tp_plan=plan),
    )
    return module, _shard(module, text, place=place, spread=spread)


def _plan(bare: Any, *, name: str, attention: AttentionPlan, ordered: bool) -> dict[str, str]:
    """What is to be otherwise than in the model's own plan.

    Raises:
        UnsupportedError: it has none.
    """
    own = dict(bare.tp_plan or {})
    if not own:
        raise UnsupportedError(
            f"{name} ({type(bare).__name__}): transformers has no tensor-parallel plan for it",
            fix="set parallel.backend: deepspeed",
        )
    plan = {"lm_head": "colwise"} if own.get("lm_head", "").startswith("colwise") else {}
    if ordered:
        from dist_spec.models.parallel.ordered import ordered_plan

        plan |= ordered_plan(own)
    if attention == "replicated":
        plan |= {key: "replicate" for key in own if "attn." in key or "attention." in key}
    return plan


def spreads_heads(plan: dict[str, str]) -> bool:
    """Whether each rank has some of the attention heads (a fused projection's plan may gather them again)."""
    return any(style == "colwise" and key.rpartition(".")[2] in _KEYS for key, style in plan.items())


def _shard(module: Any, config: Any, *, place: TpPlace, spread: bool) -> Shard:
    heads, kv_heads = int(config.num_attention_heads), kv_shape(config)[0]
    parts = place.size if spread else 1
    vocab_size = int(config.vocab_size)
    width = shard_width(vocab_size, place.size)
    first, last = min(place.rank * width, vocab_size), min((place.rank + 1) * width, vocab_size)
    head = module.get_output_embeddings()
    whole = module.tp_plan.get("lm_head") != "colwise"
    rows = getattr(head.weight, "to_local", lambda: head.weight)().shape[0]
    if first == last or (not whole and rows != last - first):
        raise UnsupportedError(
            f"rank {place.rank} holds {rows} of {vocab_size} rows of the output head, not {last - first}",
            fix="set parallel.backend: deepspeed, or another parallel.tp_size",
        )
    return Shard(heads=heads // parts, kv_heads=kv_heads // parts, first=first, last=last, whole_rows=whole)


@contextmanager
def _as_folder(source: Source, dtype: torch.dtype) -> Iterator[Path]:
    """The model's folder; a random model is written into one for as long as it takes to read it back."""
    if source.folder is not None:
        yield source.folder
        return
    from safetensors.torch import save_file

    with TemporaryDirectory(prefix="dist-spec-random-") as name:
        module = build_random(source.spec).to(dtype=dtype)
        weights = {key: tensor.contiguous() for key, tensor in module.state_dict().items()}
        if module.config.get_text_config().tie_word_embeddings:
            weights.pop("lm_head.weight", None)
        save_file(weights, str(Path(name) / "model.safetensors"), metadata={"format": "pt"})
        module.config.save_pretrained(name)
        yield Path(name)
