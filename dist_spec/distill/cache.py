"""The folder of teacher data: shards of token ids, hidden features and top-k probabilities, and the recipe they follow.

It knows neither models nor training. A shard appears under its name only when it is whole (written aside, then renamed), and
one that is torn all the same (a disk that filled up, a copy that broke off) counts as missing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from dist_spec.errors import ConfigError

MANIFEST = "manifest.json"
SPLITS = ("train", "held_out")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """All that the data depends on: the same recipe gives the same shards.

    Attributes:
        target: the model id the data is from; `vocabulary` the digest of its token map.
        feature_layers, feature_size, top_k: what is kept of each token.
        prompts: digest of what the prompts come from: the built-in templates, or a user's file.
        per_shard: prompts in a shard.
        temperatures: every prompt is continued at one of them (see `temperature`).
        max_new_tokens: tokens generated per prompt at most.
    """

    target: str
    vocabulary: str
    feature_layers: tuple[int, ...]
    feature_size: int
    top_k: int
    prompts: str
    per_shard: int
    temperatures: tuple[float, ...]
    max_new_tokens: int
    dtype: str
    seed: int

    def temperature(self, prompt: int) -> float:
        """The temperature of a prompt's continuation: drawn by its number, so that it has nothing to do with the domain,
        which goes in turn."""
        drawn = hashlib.blake2b(f"temperature {self.seed} {prompt}".encode(), digest_size=4).digest()
        return self.temperatures[int.from_bytes(drawn, "little") % len(self.temperatures)]


@dataclass(kw_only=True, slots=True)
class Shard:
    """Some sequences, one after the other.

    Attributes:
        tokens: (n,) int32.
        features: (n, feature_size) float16, after reading the token.
        top_ids, top_probs: (n, k) int32 and float16: the teacher's law of the next token, likeliest first; zeros where
            it was not asked (inside of prompts).
        offsets: (m + 1,) int64: sequence i is tokens[offsets[i] : offsets[i + 1]].
        prompt_lengths: (m,) int64.
        domains: (m,) int64, indices into `domain_names`.
    """

    tokens: torch.Tensor
    features: torch.Tensor
    top_ids: torch.Tensor
    top_probs: torch.Tensor
    offsets: torch.Tensor
    prompt_lengths: torch.Tensor
    domains: torch.Tensor
    domain_names: tuple[str, ...] = ()

    @property
    def num_sequences(self) -> int:
        return len(self.prompt_lengths)

    @property
    def num_generated(self) -> int:
        """Positions with a teacher's law."""
        return len(self.tokens) - int(self.prompt_lengths.sum()) + self.num_sequences


def joined(parts: Sequence[Shard]) -> Shard:
    """One shard of the sequences of all parts, in order; their domains have the same names."""
    ends = torch.cat([part.offsets.diff() for part in parts]).cumsum(0)
    tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in _TENSORS if name != "offsets"}
    return Shard(**tensors, offsets=torch.cat([ends.new_zeros(1), ends]), domain_names=parts[0].domain_names)


class Cache:
    """Shards on disk.

    Args:
        folder: made if missing.
        recipe: what the shards in it must follow.
    Raises:
        ConfigError: the folder holds data of another recipe (the differing field is named), or cannot be written.
    """

    def __init__(self, folder: Path, *, recipe: Recipe) -> None:
        self.folder, self.recipe = folder, recipe
        try:
            folder.mkdir(parents=True, exist_ok=True)
            found = read_recipe(folder)
            if found is None:
                write_aside(folder / MANIFEST, (json.dumps(asdict(recipe), indent=2) + "\n").encode())
        except OSError as error:
            raise ConfigError(f"cannot write the folder {folder}: {error}", fix="choose another folder") from error
        if found is not None and found != recipe:
            _refuse(folder, found, recipe)

    def has(self, split: str, number: int) -> bool:
        """Whether that shard is there and whole."""
        return _is_whole(self.path(split, number))

    def path(self, split: str, number: int) -> Path:
        return self.folder / f"{split}-{number:05d}.safetensors"

    def numbers(self, split: str) -> list[int]:
        """Numbers of the whole shards of a split, ascending."""
        files = sorted(self.folder.glob(f"{split}-?????.safetensors"))
        return [int(file.stem.rpartition("-")[2]) for file in files if _is_whole(file)]

    def write(self, split: str, number: int, shard: Shard) -> None:
        """Make shard `number` of a split appear, whole."""
        from safetensors.torch import save

        tensors = {name: getattr(shard, name).contiguous() for name in _TENSORS}
        write_aside(self.path(split, number), save(tensors, {"domains": json.dumps(shard.domain_names)}))

    def read(self, split: str, number: int) -> Shard:
        """A shard whose tensors are mapped from the file: only what is looked at is read."""
        return read_shard(self.path(split, number))

    def __iter__(self) -> Iterator[tuple[int, Shard]]:
        for number in self.numbers("train"):
            yield number, self.read("train", number)


_TENSORS = ("tokens", "features", "top_ids", "top_probs", "offsets", "prompt_lengths", "domains")


def read_shard(file: Path) -> Shard:
    """See `Cache.read`."""
    from safetensors import safe_open

    with safe_open(file, "pt") as handle:
        names = json.loads(handle.metadata()["domains"])
        tensors = {name: handle.get_tensor(name) for name in _TENSORS}
    return Shard(**tensors, domain_names=tuple(names))


def read_recipe(folder: Path) -> Recipe | None:
    """The recipe of a cache folder; None if it has none yet.

    Raises:
        ConfigError: its manifest is broken.
    """
    file = folder / MANIFEST
    if not file.exists():
        return None
    try:
        values = json.loads(file.read_text())
        recipe = Recipe(**values)
        return replace(recipe, feature_layers=tuple(recipe.feature_layers), temperatures=tuple(recipe.temperatures))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{file} is broken: {error}", fix="delete the folder, or choose another one") from error


def _refuse(folder: Path, found: Recipe, wanted: Recipe) -> None:
    name = next(n for n in asdict(wanted) if getattr(found, n) != getattr(wanted, n))
    raise ConfigError(
        f"{folder} holds data with {name} = {getattr(found, name)}, asked for is {getattr(wanted, name)}",
        fix="choose another --cache folder, or the same settings",
    )


def _is_whole(file: Path) -> bool:
    """The header says how long a safetensors file is; a shorter one is torn."""
    try:
        with file.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            header = json.loads(handle.read(length))
        end = max(value["data_offsets"][1] for name, value in header.items() if name != "__metadata__")
        return file.stat().st_size == 8 + length + end
    except (OSError, ValueError, KeyError, TypeError, MemoryError, OverflowError):
        return False


def write_aside(file: Path, data: bytes) -> None:
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    with aside.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    aside.replace(file)
