"""How a training begins: anew, never on the weights of the one before, and not where it could not be kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dist_spec.distill.cache import Cache
from dist_spec.distill.checkpoint import CHECKPOINT
from dist_spec.distill.collect import Prompts, make_recipe, make_shard
from dist_spec.distill.fill import corpora
from dist_spec.distill.make_head import SETTINGS_FILE, Made, make_head
from dist_spec.distill.make_student import make_student
from dist_spec.distill.ranks import OneProcess
from dist_spec.distill.settings import TrainSettings
from dist_spec.distill.teacher import Teacher
from dist_spec.errors import ConfigError, ModelError
from dist_spec.models.head_formats import load_head
from dist_spec.models.head_target import facts_of
from dist_spec.models.loading import LoadedModel, load_model
from tests.unit.test_cli import Run, dist_spec

__all__ = ["dist_spec"]  # the fixture

TARGET = "random:llama?layers=4&hidden=32"
SETTINGS = TrainSettings(positions=40, num_steps=2, batch_size=2, num_chains=4, deep_chains=2)


def taught(tmp_path: Path) -> tuple[LoadedModel, Cache]:
    """A target and a little of its text."""
    target = load_model(TARGET, dtype="float32", device="cpu")
    prompts = Prompts(None, seed=0)
    cache = Cache(tmp_path / "cache", recipe=make_recipe(target, prompts=prompts, per_shard=4, max_new_tokens=8))
    teacher = Teacher(target, feature_layers=cache.recipe.feature_layers)
    for split in ("train", "held_out"):
        make_shard(teacher, cache, prompts, split, 0)
    return target, cache


class Killed(BaseException):
    pass


def killed(*_: object) -> None:
    raise Killed


@pytest.mark.parametrize("kind", ["head", "student"])
def test_a_training_killed_at_once_leaves_nothing_of_the_one_before(tmp_path: Path, kind: str) -> None:
    target, cache = taught(tmp_path)
    folder = tmp_path / "out"
    ranks = OneProcess(torch.device("cpu"))
    common = {"corpora": corpora(cache), "folder": folder, "settings": SETTINGS, "ranks": ranks}

    def make(**options: object) -> None:
        if kind == "head":
            make_head(target, cache, draft_vocab_size=40, **common, **options)  # type: ignore[arg-type]
        else:
            make_student(target, cache, num_layers=2, **common, **options)  # type: ignore[arg-type]

    make()
    assert (folder / CHECKPOINT).exists()
    with pytest.raises(Killed):
        make(tell=killed)
    assert (folder / SETTINGS_FILE).exists()
    assert not (folder / CHECKPOINT).exists()
    make(resume=True)
    assert (folder / CHECKPOINT).exists()


@pytest.mark.parametrize("scaled", [False, True])
def test_a_training_starts_from_the_weights_of_a_head(tmp_path: Path, scaled: bool) -> None:
    target, cache = taught(tmp_path)
    common = {"corpora": corpora(cache), "ranks": OneProcess(torch.device("cpu"))}
    first = make_head(target, cache, draft_vocab_size=40, folder=tmp_path / "first", settings=SETTINGS, **common)  # type: ignore[arg-type]
    still = replace(SETTINGS, learning_rate=0.0, scale_features=scaled, num_steps=3, weight_decay=0.0)
    second = tmp_path / "second"

    def make(**options: object) -> Made:
        return make_head(target, cache, folder=second, settings=still, **common, **options)  # type: ignore[arg-type]

    with pytest.raises(Killed):
        make(start_from=tmp_path / "first", tell=killed)
    with pytest.raises(ConfigError, match="has no checkpoint yet") as caught:
        make(resume=True)
    assert "--start-from" in (caught.value.fix or "")
    make(start_from=tmp_path / "first", resume=True)
    facts = facts_of(target)
    old, new = (load_head(tmp_path / name, target=facts) for name in ("first", "second"))
    assert new.config == replace(old.config, num_steps=3)
    for (name, before), after in zip(old.state_dict().items(), new.state_dict().values(), strict=True):
        assert torch.allclose(before, after, atol=1e-2 * float(before.abs().max())), name  # twice rounded to 8 bits
    assert make(resume=True).coverage == pytest.approx(first.coverage)


def test_a_head_of_another_target_is_no_start(tmp_path: Path) -> None:
    target, cache = taught(tmp_path)
    with pytest.raises(ModelError, match="was made for smollm2"):
        make_head(
            target,
            cache,
            corpora=corpora(cache),
            folder=tmp_path / "out",
            settings=SETTINGS,
            ranks=OneProcess(torch.device("cpu")),
            start_from="smollm2",
        )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--start-from", "smollm2"), "head smollm2 was made for smollm2"),
        (("--start-from", "nowhere"), "head nowhere does not exist"),
        (("--start-from", "smollm2", "--kind", "student"), "--kind student makes no head"),
        (("--start-from", "smollm2", "--draft-vocab", "64"), "leave out --draft-vocab"),
        (("--device", "abacus"), "unknown device 'abacus'"),
        (("--device", "cuda:99"), "cuda:99 does not exist"),
        (("--out", "FILE/out"), "FILE/out cannot be made"),
        (("--out", "FILE"), "FILE is a file"),
    ],
)
def test_what_cannot_work_is_refused_before_text_is_written(
    dist_spec: Run, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    (tmp_path / "FILE").write_text("")
    given = [one.replace("FILE", str(tmp_path / "FILE")) for one in arguments]
    where = () if "--out" in given else ("--out", str(tmp_path / "out"))
    outcome = dist_spec("distill", "--target", TARGET, "--cache", str(tmp_path / "cache"), *where, *given)
    assert outcome.code == 2
    assert named.replace("FILE", str(tmp_path / "FILE")) in " ".join(outcome.err.split())
    assert "fix" in outcome.err
    assert not (tmp_path / "cache").exists()


def test_every_rank_needs_a_sequence(tmp_path: Path) -> None:
    from tests.unit.test_distill_train import training

    ranks = OneProcess(torch.device("cpu"))
    ranks.size = 4
    with pytest.raises(ConfigError, match="leaves some of 4 ranks without a sequence"):
        training(tmp_path, ranks=ranks)
