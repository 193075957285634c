"""Files of draft heads: our own folders, and EAGLE-3 checkpoints as they are published. Runs no head.

Our own: `head.json` (the `HeadConfig`) and `head.safetensors`, weights in 8 bits with a scale per row (or in 16). The token
embedding is never stored: it is the target's.

Published EAGLE-3 folders (config.json, and model.safetensors or pytorch_model.bin) in three variants:
    EAGLE / SpecForge   architecture LlamaForCausalLMEagle3; tensors midlayer.*, fc, norm, lm_head, d2t, t2d
    ModelOpt            the same with `eagle_config` (its eagle_aux_hidden_state_layer_ids count outputs of 0-based layers)
    speculators         `transformer_layer_config`, layers.0.*, `norm_before_residual`; its layer ids count one higher
Without layer ids the features are those of EAGLE-3's own code: the inputs of layers 2, N / 2 and N - 3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dist_spec.errors import ModelError, UnsupportedError
from dist_spec.models.head import Head, HeadConfig
from dist_spec.models.head_target import TargetFacts

CONFIG_FILE = "head.json"
WEIGHTS_FILE = "head.safetensors"
FORMAT = 1
_SCALE = ".scale"

_PUBLISHED = {
    "fc.weight": "fc.weight",
    "self_attn.q_proj.weight": "q.weight",
    "self_attn.k_proj.weight": "k.weight",
    "self_attn.v_proj.weight": "v.weight",
    "self_attn.o_proj.weight": "o.weight",
    "mlp.gate_proj.weight": "gate.weight",
    "mlp.up_proj.weight": "up.weight",
    "mlp.down_proj.weight": "down.weight",
    "input_layernorm.weight": "embedding_norm",
    "hidden_norm.weight": "state_norm",
    "post_attention_layernorm.weight": "mlp_norm",
    "norm.weight": "final_norm",
    "lm_head.weight": "lm_head.weight",
}
_LAYER_PREFIXES = ("midlayer.", "layers.0.", "model.midlayer.", "model.layers.0.", "model.")
_IGNORED = ("d2t", "t2d", "embed_tokens.weight")


def save_head(head: Head, folder: Path, *, bits: int = 8) -> None:
    """Write a head in our own format.

    Args:
        bits: 8 (matrices as int8, symmetric, one scale per row) or 16 (float16).
    """
    from safetensors.torch import save

    tensors: dict[str, torch.Tensor] = {}
    for name, value in head.state_dict().items():
        value = value.detach().cpu()
        if name == "draft_to_target":
            tensors[name] = value.to(torch.int32)
        elif value.dim() == 2 and bits == 8 and name != "fc.weight":  # its columns differ too much in size
            scale = value.float().abs().amax(dim=1).clamp(min=1e-12) / 127
            tensors[name] = (value.float() / scale[:, None]).round().to(torch.int8)
            tensors[name + _SCALE] = scale
        else:
            tensors[name] = value.to(torch.float16 if value.dim() == 2 else torch.float32).contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WEIGHTS_FILE).write_bytes(save(tensors))
    text = json.dumps({"format": FORMAT, **asdict(head.config)}, indent=2)
    (folder / CONFIG_FILE).write_text(text + "\n")


def load_head(
    path: str | Path, *, target: TargetFacts, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> Head:
    """Read a head of any of the formats, and check that it was made for this target.

    Args:
        path: a folder, or the name of an embedded head (see `embedded_heads`).
    Raises:
        ModelError: it cannot be read, or was made for another target, hidden size or vocabulary (the field is named).
        UnsupportedError: it is of a kind that is not read here.
    """
    folder = find_head(path)
    if (folder / CONFIG_FILE).exists():
        config, tensors = _read_own(folder)
    elif (folder / "config.json").exists():
        config, tensors = _read_published(folder, target)
    else:
        raise ModelError(
            f"{folder} holds no draft head: neither {CONFIG_FILE} nor config.json is there",
            fix="make one with `dist-spec distill`, or give an EAGLE-3 folder",
        )
    check_target(config, target, name=str(path))
    head = Head(config, embedding=target.load_embedding().to(dtype))
    try:
        head.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelError(f"{folder}: {' '.join(str(error).split())}"[:400], fix="give an intact head") from error
    if not bool(((head.draft_to_target >= 0) & (head.draft_to_target < config.vocab_size)).all()):
        raise ModelError(f"{folder}: its map from draft to target ids leaves the vocabulary", fix="give an intact head")
    return head.to(device=device, dtype=dtype).eval().requires_grad_(False)


def read_head_config(path: str | Path, *, target: TargetFacts) -> HeadConfig:
    """The config alone, checked against the target. Raises as `load_head` does."""
    folder = find_head(path)
    config = _own_config(folder) if (folder / CONFIG_FILE).exists() else _published_config(folder, target)
    check_target(config, target, name=str(path))
    return config


def check_target(config: HeadConfig, target: TargetFacts, *, name: str) -> None:
    """Refuse a head that was made for another target.

    Raises:
        ModelError: names the first field that differs.
    """
    fields = {
        "target_hidden_size": (config.target_hidden_size, target.hidden_size),
        "target_layers": (config.target_layers, target.num_layers),
        "vocab_size": (config.vocab_size, target.vocab_size),
        "vocabulary": (config.vocabulary or target.vocabulary, target.vocabulary),
        "embedding_size": (config.embedding_size, target.hidden_size),
    }
    for field, (made_for, found) in fields.items():
        if made_for != found:
            raise ModelError(
                f"head {name} was made for {config.target_name or 'another target'}: "
                f"its {field} is {made_for}, that of {target.name} is {found}",
                fix=f"make a head for this target: dist-spec distill --target {target.name} --kind head",
            )
    if not config.feature_layers or not all(0 <= number < target.num_layers for number in config.feature_layers):
        raise ModelError(
            f"head {name} takes features of layers {list(config.feature_layers)}; {target.name} has {target.num_layers}",
            fix="give a head that was made for this target",
        )


def embedded_heads() -> dict[str, Path]:
    """Heads inside the package, by the name of their target."""
    root = Path(__file__).parent.parent / "data" / "heads"
    return {folder.name: folder for folder in sorted(root.glob("*")) if (folder / CONFIG_FILE).exists()}


def head_of(model: str | None, *, target: str) -> str:
    """The head that a drafter's entry means: the one it names, else the one shipped for its target.

    Raises:
        ModelError: it names none, and none is shipped for this target.
    """
    known = embedded_heads()
    if model is None and target not in known:
        raise ModelError(
            f"no head is shipped for {target} (for {', '.join(known) or 'no target'} there is)",
            fix=f"name the folder of one as its `model`; dist-spec distill --target {target} --kind head makes one",
        )
    return model or target


def find_head(path: str | Path) -> Path:
    """The folder of a head.

    Raises:
        ModelError: there is none of that name.
    """
    known = embedded_heads()
    if str(path) in known:
        return known[str(path)]
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ModelError(
            f"head {path} does not exist", fix=f"give a folder, or an embedded head ({', '.join(known) or 'none'})"
        )
    return folder


def _own_config(folder: Path) -> HeadConfig:
    try:
        values = json.loads((folder / CONFIG_FILE).read_text())
        version = values.pop("format", None)
        if version != FORMAT:
            raise ValueError(f"format {version}, not {FORMAT}")
        values["feature_layers"] = tuple(int(number) for number in values["feature_layers"])
        return HeadConfig(**values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"cannot read {folder / CONFIG_FILE}: {error}", fix="give an intact head") from error


def _read_own(folder: Path) -> tuple[HeadConfig, dict[str, torch.Tensor]]:
    from safetensors.torch import load_file

    config = _own_config(folder)
    try:
        stored = load_file(folder / WEIGHTS_FILE)
    except Exception as error:
        raise ModelError(f"cannot read {folder / WEIGHTS_FILE}: {error}", fix="give an intact head") from error
    tensors: dict[str, torch.Tensor] = {}
    for name, value in stored.items():
        if name.endswith(_SCALE):
            continue
        scale = stored.get(name + _SCALE)
        value = value.float() * scale[:, None] if scale is not None else value
        tensors[name] = value.long() if name == "draft_to_target" else value
    return config, tensors


def _published_config(folder: Path, target: TargetFacts) -> HeadConfig:
    try:
        whole: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {folder / 'config.json'}: {error}", fix="give an intact head") from error
    layer: Mapping[str, Any] = whole.get("transformer_layer_config") or whole
    if "draft_vocab_size" not in whole and "draft_vocab_size" not in layer:
        raise UnsupportedError(
            f"{folder} is no EAGLE-3 head: its config has no draft_vocab_size",
            fix="EAGLE-3 checkpoints of EAGLE, SpecForge, ModelOpt and speculators are read; EAGLE-1 and -2 are not",
        )
    if int(layer.get("num_hidden_layers", 1)) != 1:
        raise UnsupportedError(f"{folder} has {layer['num_hidden_layers']} layers", fix="heads of one layer are read")
    rope = layer.get("rope_parameters") or layer.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise UnsupportedError(f"{folder} scales its rotary embedding", fix="give a head without rope_scaling")
    try:
        return _published_fields(whole, layer, rope, target)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'} lacks or has a wrong {error}", fix="give an intact head") from error


def _published_fields(
    whole: Mapping[str, Any], layer: Mapping[str, Any], rope: Mapping[str, Any], target: TargetFacts
) -> HeadConfig:
    size, heads = int(layer["hidden_size"]), int(layer["num_attention_heads"])
    return HeadConfig(
        target_hidden_size=int(whole.get("target_hidden_size") or layer.get("target_hidden_size") or size),
        hidden_size=size,
        num_heads=heads,
        num_kv_heads=int(layer.get("num_key_value_heads") or heads),
        head_dim=int(layer.get("head_dim") or size // heads),
        intermediate_size=int(layer["intermediate_size"]),
        rope_theta=float(layer.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        rms_norm_eps=float(layer.get("rms_norm_eps", 1e-6)),
        embedding_size=size,
        vocab_size=int(whole.get("target_vocab_size") or layer.get("vocab_size") or whole["vocab_size"]),
        draft_vocab_size=int(whole.get("draft_vocab_size") or layer["draft_vocab_size"]),
        feature_layers=_feature_layers(whole, target.num_layers),
        target_name="",
        target_layers=target.num_layers,
        vocabulary="",
        num_steps=int(whole.get("num_steps", 7)),
        max_positions=int(layer.get("max_position_embeddings", 2048)),
        norm_before_residual=bool(whole.get("norm_before_residual", False)),
    )


def _feature_layers(whole: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """0-based layers whose outputs are meant."""
    of_speculators = whole.get("eagle_aux_hidden_state_layer_ids")
    of_modelopt = (whole.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if "speculators_model_type" not in whole and of_modelopt:
        return tuple(int(n) for n in of_modelopt)
    inputs_of = of_speculators or of_modelopt or (2, num_layers // 2, num_layers - 3)
    return tuple(int(n) - 1 for n in inputs_of)


def _read_published(folder: Path, target: TargetFacts) -> tuple[HeadConfig, dict[str, torch.Tensor]]:
    config = _published_config(folder, target)
    stored = _published_tensors(folder)
    tensors: dict[str, torch.Tensor] = {}
    for name, value in stored.items():
        short = name
        for prefix in _LAYER_PREFIXES:
            short = short.removeprefix(prefix)
        if short in _PUBLISHED:
            tensors[_PUBLISHED[short]] = value
        elif short not in _IGNORED:
            raise UnsupportedError(f"{folder} has a tensor that is not known here: {name}", fix="see the known formats")
    offsets = stored.get("d2t", stored.get("model.d2t"))
    ids = torch.arange(config.draft_vocab_size)
    if offsets is None and config.draft_vocab_size != config.vocab_size:
        raise ModelError(f"{folder} has no d2t, the map from draft to target ids", fix="give an intact head")
    if offsets is not None and offsets.shape != ids.shape:
        raise ModelError(f"{folder}: d2t has {offsets.numel()} entries, not {len(ids)}", fix="give an intact head")
    tensors["draft_to_target"] = ids if offsets is None else ids + offsets.long()
    return config, tensors


def _published_tensors(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    try:
        files = sorted(folder.glob("*.safetensors"))
        if files:
            return {name: value for file in files for name, value in load_file(file).items()}
        return dict(torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True))
    except Exception as error:
        raise ModelError(f"cannot read the weights in {folder}: {error}", fix="give an intact head") from error
