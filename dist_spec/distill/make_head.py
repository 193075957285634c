"""From teacher data to a folder with a draft head, its curve and its card. It knows no command line
and shows nothing itself."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dist_spec.distill.batches import Corpus
from dist_spec.distill.cache import Cache, write_aside
from dist_spec.distill.checkpoint import CHECKPOINT, forget_checkpoint
from dist_spec.distill.evaluate import Evaluation
from dist_spec.distill.initial import (
    coverage_of,
    draft_vocabulary,
    feature_scale,
    head_config,
    new_head,
    vocabulary_size,
)
from dist_spec.distill.ranks import Ranks
from dist_spec.distill.settings import TrainSettings
from dist_spec.distill.train import Progress, Training
from dist_spec.distill.unroll import Unrolled
from dist_spec.errors import ConfigError
from dist_spec.models.head import Head, HeadConfig
from dist_spec.models.head_formats import load_head, save_head
from dist_spec.models.head_target import facts_of
from dist_spec.models.loading import LoadedModel

SETTINGS_FILE = "training.json"
CURVE_FILE = "curve.csv"
COVERAGE = 0.985
"""Share of the teacher's top-k mass that the draft vocabulary covers, unless its size is given."""


@dataclass(kw_only=True, slots=True)
class Made:
    """A finished (or interrupted) training."""

    head: Head
    training: Training
    evaluation: Evaluation
    coverage: float
    interrupted: bool


def make_head(
    target: LoadedModel,
    cache: Cache,
    *,
    corpora: tuple[Corpus, Corpus, Callable[[], None]],
    folder: Path,
    settings: TrainSettings,
    ranks: Ranks,
    draft_vocab_size: int | None = None,
    intermediate_size: int | None = None,
    start_from: str | Path | None = None,
    resume: bool = False,
    tell: Callable[[Progress, float], None] = lambda *_: None,
    stop: Callable[[], bool] = lambda: False,
) -> Made:
    """Train a head and write it to `folder`.

    Args:
        start_from: begin with the weights, the shape and the draft vocabulary of this head (see `load_head`).
        resume: go on from the checkpoint in `folder` (with its draft vocabulary); else an old one is replaced.
        tell: called after every update with the progress and the share that is done.
        stop: asked after every update whether to end early; what there is is kept, and can be resumed.
    Raises:
        ConfigError: `resume`, and the folder holds the training of another shape.
        ModelError: `start_from` cannot be read, or is of another target.
    """
    train, held_out, refresh = corpora
    start = _interrupted(folder, draft_vocab_size) if resume else None
    if not resume and ranks.rank == 0:
        forget_checkpoint(folder)
    old = None
    if not (folder / CHECKPOINT).exists():  # the first weights are not those of a checkpoint
        old = None if start_from is None else load_head(start_from, target=facts_of(target))
        if old is None and start is not None and start.config is not None:
            raise ConfigError(f"{folder} has no checkpoint yet", fix="give --start-from HEAD as before")
        start = start if old is None else _begun_with(old, train)
    start = start or _begun(target, train, draft_vocab_size)
    config = start.config or head_config(
        target,
        cache.recipe,
        draft_vocab_size=len(start.ids),
        intermediate_size=intermediate_size,
        num_steps=settings.num_steps,
    )
    head = new_head(target, replace(config, num_steps=settings.num_steps), ids=start.ids, seed=settings.seed)
    if old is not None:
        head.load_state_dict(old.state_dict())
    unrolled = Unrolled(
        head,
        num_steps=settings.num_steps,
        step_weight=settings.step_weight,
        deep_chains=settings.deep_chains,
        feature_scale=start.scale if start.scale is not None else _scale(train, head, wanted=settings.scale_features),
    )
    if old is not None:
        with torch.no_grad():  # its features were not scaled: the same function
            head.fc.weight.div_(unrolled.feature_scale)
    if start.scale is None:
        _note(replace(start, scale=unrolled.feature_scale), folder)
    training = Training(
        unrolled, corpus=train, held_out=held_out, settings=settings, folder=folder, ranks=ranks, refresh=refresh
    )
    if resume:
        training.resume()
    interrupted = training.carry_out(tell=tell, stop=stop)
    evaluation = training.measure(limit=len(held_out.places()))
    made = Made(head=head, training=training, evaluation=evaluation, coverage=start.coverage, interrupted=interrupted)
    if ranks.rank == 0:
        save_head(unrolled.with_weights(training.average).folded(), folder)
        write_curve(training.progress.history, folder / CURVE_FILE)
    return made


@dataclass(frozen=True, kw_only=True, slots=True)
class _Start:
    """What a training was begun with, besides its seed: it must stay the same when the training is resumed.

    Attributes:
        config: the shape of the head it was begun with; None: what `head_config` says.
    """

    ids: torch.Tensor
    coverage: float
    scale: torch.Tensor | None
    config: HeadConfig | None = None


def _interrupted(folder: Path, size: int | None) -> _Start | None:
    """The start of the training that the folder holds; None if it holds none."""
    file = folder / SETTINGS_FILE
    if not file.exists():
        return None
    values = json.loads(file.read_text())
    if "draft_to_target" not in values:
        raise ConfigError(f"{folder} holds the training of a student", fix="give --kind student, or another --out")
    if size is not None and size != len(values["draft_to_target"]):
        raise ConfigError(
            f"{folder} holds a training with {len(values['draft_to_target'])} draft ids, asked for are {size}",
            fix="leave out --draft-vocab when resuming",
        )
    scale, config = values["feature_scale"], values.get("head")
    return _Start(
        ids=torch.tensor(values["draft_to_target"]),
        coverage=float(values["coverage"]),
        scale=None if scale is None else torch.tensor(scale),
        config=None if config is None else HeadConfig(**{**config, "feature_layers": tuple(config["feature_layers"])}),
    )


def _begun_with(head: Head, train: Corpus) -> _Start:
    ids = head.draft_to_target
    coverage = coverage_of(ids, train.shards.values(), vocab_size=head.config.vocab_size)
    return _Start(ids=ids, coverage=coverage, scale=None, config=head.config)


def _begun(target: LoadedModel, train: Corpus, size: int | None) -> _Start:
    shards = list(train.shards.values())
    if size is None:
        size = vocabulary_size(shards, vocab_size=target.vocab_size, coverage=COVERAGE)
    ids, coverage = draft_vocabulary(shards, vocab_size=target.vocab_size, size=size, always=target.tokenizer.eos_ids)
    return _Start(ids=ids, coverage=coverage, scale=None)


def _scale(train: Corpus, head: Head, *, wanted: bool) -> torch.Tensor:
    return feature_scale(train.shards.values(), head) if wanted else torch.ones(head.config.feature_size)


def _note(start: _Start, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    scale = None if start.scale is None else start.scale.tolist()
    values: dict[str, Any] = {
        "coverage": start.coverage,
        "draft_to_target": start.ids.tolist(),
        "feature_scale": scale,
        "head": None if start.config is None else asdict(start.config),
    }
    write_aside(folder / SETTINGS_FILE, json.dumps(values).encode())


def write_curve(history: list[dict[str, object]], file: Path) -> None:
    """The evaluations of a training as CSV, one row each; agreement and cross entropy by step."""
    with file.open("w", newline="") as handle:
        steps = range(len(history[0]["agreement"]) if history else 0)  # type: ignore[arg-type]
        names = ["update", "positions", "seconds", "shards", "rate", "loss", "chain_length"]
        writer = csv.writer(handle)
        writer.writerow(
            names
            + [f"agreement_{j + 1}" for j in steps]
            + [f"train_agreement_{j + 1}" for j in steps]
            + [f"cross_entropy_{j + 1}" for j in steps]
        )
        for row in history:
            lists = [row[name] for name in ("agreement", "train_agreement", "cross_entropy")]
            writer.writerow([row[name] for name in names] + [v for values in lists for v in values])  # type: ignore[attr-defined]
