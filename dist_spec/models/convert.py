"""Converts a GGUF file once into a folder of safetensors; knows nothing of caches, ids or who asked.

Weights are stored as float32: dequantised values (scale * integer + offset) are exact there and in nothing smaller.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from dist_spec.errors import ModelError
from dist_spec.models.source import Progress


def convert_gguf(file: Path, *, target: Path, progress: Progress | None = None) -> None:
    """Write `target` (a folder) from the GGUF `file`; the folder appears complete or not at all.

    Raises:
        ModelError: the file cannot be read, or the disk is full.
    """
    say = progress or (lambda _: None)
    say(f"converting {file.name} to safetensors in {target} (once; about 20 seconds)")
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        model = _read(file, say)
        say(f"writing {sum(p.numel() for p in model.parameters()) * 4 / 1e6:.0f} MB")
        model.save_pretrained(scratch)
        _tokenizer(file).save_pretrained(scratch)
        os.chmod(scratch, 0o755)
        os.replace(scratch, target)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"cannot convert {file}: {error}", fix="check that it is an intact GGUF of a known family"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    say(f"converted {file.name}")


def _read(file: Path, say: Progress) -> Any:
    if _missing("gguf"):
        raise ModelError(f"reading {file.name} needs the package gguf", fix="pip install gguf")
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    say("dequantising")
    with contextlib.redirect_stderr(io.StringIO()):  # the reader's own progress bar cannot be turned off otherwise
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # The weights are plain numbers by now, but transformers still marks the model as quantised and refuses to save it.
    model.hf_quantizer = None
    for name in ("is_quantized", "quantization_method"):
        if name in vars(model):
            delattr(model, name)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


def _tokenizer(file: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


def _missing(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is None
