"""Tiny seeded random models for tests: the same id gives the same weights in every process. No files are involved.

`random:llama?seed=1&layers=2&hidden=64&heads=4&kv_heads=2&head_dim=16&ffn=128&vocab=259&window=8&max_len=512`
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from dist_spec.errors import ModelError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text")
BYTE_VOCAB = 259
"""256 bytes, then <bos>, <eos>, <pad>."""
BOS_ID, EOS_ID, PAD_ID = 256, 257, 258

_DEFAULTS = {
    "seed": 0,
    "layers": 2,
    "hidden": 64,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "ffn": 128,
    "vocab": BYTE_VOCAB,
    "window": 0,
    "max_len": 2048,
}


def parse_random(spec: str) -> tuple[str, dict[str, int]]:
    """Split `FAMILY?key=value&...` into the family and all settings (defaults filled in).

    Raises:
        ModelError: unknown family or key, or a value that is no whole number or out of range.
    """
    family, _, query = spec.partition("?")
    if family not in FAMILIES:
        raise ModelError(f"unknown random model family {family!r}", fix=f"use one of {', '.join(FAMILIES)}")
    settings = dict(_DEFAULTS)
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in settings:
            raise ModelError(f"unknown setting {key!r} of a random model", fix=f"known are {', '.join(_DEFAULTS)}")
        if not value.isdecimal():
            raise ModelError(f"setting {key}={value!r} of a random model must be a whole number", fix=f"e.g. {key}=4")
        if int(value) == 0 and key not in ("seed", "window"):
            raise ModelError(f"setting {key}=0 of a random model must be positive", fix=f"e.g. {key}={_DEFAULTS[key]}")
        settings[key] = int(value)
    if settings["vocab"] < BYTE_VOCAB:
        raise ModelError(f"vocab={settings['vocab']} is below {BYTE_VOCAB}", fix="its tokenizer has all bytes + 3 ids")
    return family, settings


def build_random(spec: str) -> Any:
    """The (float32, CPU) transformers model of `spec`, and nothing of the global random state changed."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    family, given = parse_random(spec)
    keys: dict[str, Any] = {
        "num_hidden_layers": given["layers"],
        "hidden_size": given["hidden"],
        "num_attention_heads": given["heads"],
        "num_key_value_heads": given["kv_heads"],
        "head_dim": given["head_dim"],
        "intermediate_size": given["ffn"],
        "vocab_size": given["vocab"],
        "max_position_embeddings": given["max_len"],
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        # Far from uniform on purpose: near-ties would make every comparison of argmax values a coin toss.
        "initializer_range": 0.25,
        "tie_word_embeddings": family.startswith("gemma"),
    }
    keys.update(_window_keys(family, given))
    try:
        config = AutoConfig.for_model(family, **keys)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(given["seed"])
            return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    except Exception as error:
        text = " ".join(str(error).split())
        raise ModelError(f"random model {spec!r}: {text}", fix="choose settings that fit together") from error


def _window_keys(family: str, given: dict[str, int]) -> dict[str, Any]:
    window, layers = given["window"], given["layers"]
    if not window:
        if family.startswith("gemma"):
            return {"layer_types": ["full_attention"] * layers}
        return {"sliding_window": None}
    kinds = ["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(layers)]
    match family:
        case "llama":
            raise ModelError("llama has no sliding window", fix="use mistral, qwen2, qwen3, gemma2 or gemma3_text")
        case "mistral":
            return {"sliding_window": window}
        case "qwen2" | "qwen3":
            return {"sliding_window": window, "use_sliding_window": True, "layer_types": kinds}
        case _:
            return {"sliding_window": window, "layer_types": kinds}


def byte_tokenizer() -> Any:
    """A `tokenizers.Tokenizer` whose id b is the byte b, then <bos>, <eos>, <pad>; built in memory."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocab = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<bos>", "<eos>", "<pad>")])
    return tokenizer


def byte_symbols() -> list[str]:
    """The printable stand-in of each byte used by byte-level BPE: visible Latin-1 stays, the rest moves up to 256+."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in visible else chr(next(spare)) for byte in range(256)]
