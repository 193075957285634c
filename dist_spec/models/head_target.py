"""What a draft head must know of its target, read without loading the target. Knows no head."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dist_spec.errors import ModelError
from dist_spec.models.loading import LoadedModel, check_config_file
from dist_spec.models.random_models import build_random
from dist_spec.models.source import Progress, resolve
from dist_spec.models.tokenizer import Tokenizer, load_tokenizer

_EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight", "transformer.wte.weight")


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """What a head is checked against, and the embedding it shares.

    Attributes:
        vocabulary: digest of the token map.
        load_embedding: gives the (vocab_size, hidden) token embedding, on CPU.
    """

    name: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    vocabulary: str
    load_embedding: Callable[[], torch.Tensor]


def vocabulary_digest(tokenizer: Tokenizer) -> str:
    """Hex digest of a token map: two maps with the same digest are the same map."""
    return hashlib.blake2b(tokenizer.vocabulary_hashes(), digest_size=16).hexdigest()


def facts_of(loaded: LoadedModel) -> TargetFacts:
    """The facts of a target that is loaded."""
    return TargetFacts(
        name=loaded.name,
        hidden_size=int(loaded.config.hidden_size),
        num_layers=int(loaded.config.num_hidden_layers),
        vocab_size=loaded.vocab_size,
        vocabulary=vocabulary_digest(loaded.tokenizer),
        load_embedding=lambda: loaded.model.get_input_embeddings().weight.detach().cpu(),
    )


def target_facts(model: str, *, cache_dir: str | Path | None = None, progress: Progress | None = None) -> TargetFacts:
    """The facts of a model id (see `dist_spec.models.source`): of its files only the embedding is ever read.

    Raises:
        ModelError: it cannot be found or read.
    """
    source = resolve(model, cache_dir=cache_dir, progress=progress)
    vocabulary = vocabulary_digest(load_tokenizer(model, cache_dir=cache_dir))
    if source.folder is None:
        module = build_random(source.spec)
        config: dict[str, Any] = module.config.to_dict()
        load = module.get_input_embeddings().weight.detach
    else:
        folder = source.folder
        config = check_config_file(folder, trust_remote_code=True)
        load = lambda: _embedding(folder)  # noqa: E731
    try:
        return TargetFacts(
            name=model,
            hidden_size=int(config["hidden_size"]),
            num_layers=int(config["num_hidden_layers"]),
            vocab_size=int(config["vocab_size"]),
            vocabulary=vocabulary,
            load_embedding=load,
        )
    except KeyError as error:
        raise ModelError(f"the config of {model} has no {error}", fix="give an intact model folder") from error


def _embedding(folder: Path) -> torch.Tensor:
    """The token embedding alone, out of the (possibly many) weight files of a folder."""
    from safetensors import safe_open

    index = folder / "model.safetensors.index.json"
    try:
        places = json.loads(index.read_text())["weight_map"] if index.exists() else {}
        files = sorted({places[name] for name in _EMBEDDINGS if name in places}) or [
            file.name for file in sorted(folder.glob("*.safetensors"))
        ]
        for file in files:
            with safe_open(folder / file, "pt") as handle:
                names = set(handle.keys())
                for name in _EMBEDDINGS:
                    if name in names:
                        return handle.get_tensor(name).clone()
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"cannot read the weights in {folder}: {error}", fix="give an intact model folder") from error
    raise ModelError(f"found no token embedding in {folder}", fix="give a target with *.safetensors files")
