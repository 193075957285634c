"""From teacher data to a model folder with a student, its curve and its card. It knows no command line and shows nothing
itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dist_spec.distill.batches import Corpus
from dist_spec.distill.cache import Cache, write_aside
from dist_spec.distill.checkpoint import forget_checkpoint
from dist_spec.distill.evaluate import Evaluation
from dist_spec.distill.make_head import CURVE_FILE, SETTINGS_FILE, write_curve
from dist_spec.distill.ranks import Ranks
from dist_spec.distill.settings import TrainSettings
from dist_spec.distill.student import Studied, new_student
from dist_spec.distill.train import Progress, Training
from dist_spec.errors import ConfigError
from dist_spec.models.loading import LoadedModel
from dist_spec.models.random_models import byte_tokenizer
from dist_spec.models.source import resolve
from dist_spec.models.student import spread_layers

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


@dataclass(kw_only=True, slots=True)
class MadeStudent:
    """A finished (or interrupted) training; `layers` are the target's that the student began as."""

    student: Any
    layers: tuple[int, ...]
    training: Training
    evaluation: Evaluation
    interrupted: bool


def make_student(
    target: LoadedModel,
    cache: Cache,
    *,
    corpora: tuple[Corpus, Corpus, Callable[[], None]],
    folder: Path,
    settings: TrainSettings,
    ranks: Ranks,
    num_layers: int,
    resume: bool = False,
    tell: Callable[[Progress, float], None] = lambda *_: None,
    stop: Callable[[], bool] = lambda: False,
) -> MadeStudent:
    """Train a student of `num_layers` layers and write it to `folder` as an ordinary model folder.

    Args:
        resume: go on from the checkpoint in `folder`; else an old one is replaced.
        tell, stop: see `Training.carry_out`.
    Raises:
        ConfigError: `resume`, and the folder holds the training of another student.
        ModelError: the target has fewer layers.
        UnsupportedError: layers cannot be taken out of it.
    """
    train, held_out, refresh = corpora
    layers = spread_layers(num_layers, num_layers=int(target.config.num_hidden_layers))
    if not resume and ranks.rank == 0:
        forget_checkpoint(folder)
    _note_layers(folder, layers, resume=resume)
    dtype = str(target.dtype).removeprefix("torch.")
    student = new_student(target.name, layers=layers, dtype=dtype, device=str(target.device))
    studied = Studied(student, num_steps=settings.num_steps)
    # Every position counts: a student's forward judges them all.
    whole = replace(settings, num_chains=cache.recipe.max_new_tokens, deep_chains=cache.recipe.max_new_tokens)
    training = Training(
        studied, corpus=train, held_out=held_out, settings=whole, folder=folder, ranks=ranks, refresh=refresh
    )
    if resume:
        training.resume()
    interrupted = training.carry_out(tell=tell, stop=stop)
    evaluation = training.measure(limit=len(held_out.places()))
    if ranks.rank == 0:
        save_student(studied.with_weights(training.average).student, folder, target=target)
        write_curve(training.progress.history, folder / CURVE_FILE)
    return MadeStudent(
        student=student, layers=layers, training=training, evaluation=evaluation, interrupted=interrupted
    )


def save_student(student: Any, folder: Path, *, target: LoadedModel) -> None:
    """Write a student in the target's dtype, with the target's tokenizer, as a folder that transformers (and `kind: model`)
    load."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder.mkdir(parents=True, exist_ok=True)
    student.set_attn_implementation("eager")
    student.to(target.dtype).save_pretrained(folder, safe_serialization=True)
    source = resolve(target.name, cache_dir=target.cache_dir)
    if source.folder is None:  # a random model: its tokenizer is made in memory
        write_aside(folder / "tokenizer.json", byte_tokenizer().to_str().encode())
        return
    for name in _TOKENIZER_FILES:
        if (source.folder / name).exists():
            shutil.copyfile(source.folder / name, folder / name)


def _note_layers(folder: Path, layers: Sequence[int], *, resume: bool) -> None:
    file = folder / SETTINGS_FILE
    if resume and file.exists():
        before = json.loads(file.read_text()).get("layers")
        if before != list(layers):
            raise ConfigError(
                f"{folder} holds the training of {f'layers {before}' if before else 'a head'}, asked for are {list(layers)}",
                fix="give the same --kind and --layers, or another --out",
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_aside(file, json.dumps({"layers": list(layers)}).encode())
