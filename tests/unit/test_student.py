"""A student: it learns, is the same for the same seed, goes on after an interruption, and is an ordinary model folder."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch

from dist_spec.bench.deployment import Deployment
from dist_spec.config import parse_config
from dist_spec.core.settings import Speculation
from dist_spec.distill.batches import Batch, Corpus
from dist_spec.distill.cache import Cache, Recipe
from dist_spec.distill.collect import vocabulary_digest
from dist_spec.distill.fill import corpora
from dist_spec.distill.generate import Opening, write_text
from dist_spec.distill.make_student import MadeStudent, make_student
from dist_spec.distill.ranks import OneProcess
from dist_spec.distill.settings import TrainSettings
from dist_spec.distill.student import Studied, new_student
from dist_spec.distill.student_card import student_card
from dist_spec.distill.teacher import Teacher
from dist_spec.drafters.build import build_drafter
from dist_spec.errors import ConfigError, ModelError
from dist_spec.models.loading import LoadedModel, load_model
from dist_spec.models.tokenizer import load_tokenizer
from tests.integration.local_cluster import LocalCluster, prompts_of
from tests.integration.test_equality import model, plain_texts, samplings

# The target of the equality tests.
TARGET = "random:llama?seed=5&hidden=48"
SETTINGS = TrainSettings(
    positions=4000, batch_size=4, num_steps=2, learning_rate=3e-3, warmup=2, evaluate_every=1500, ema=0.9
)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@cache
def target() -> LoadedModel:
    return load_model(TARGET, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """A few texts of the target itself, made as `dist-spec distill` makes them."""
    recipe = Recipe(
        target=TARGET,
        vocabulary=vocabulary_digest(load_tokenizer(TARGET)),
        feature_layers=(0, 1),
        feature_size=96,
        top_k=8,
        prompts="tests",
        per_shard=16,
        temperatures=(0.0, 1.0),
        max_new_tokens=24,
        dtype="float32",
        seed=0,
    )
    found = Cache(tmp_path_factory.mktemp("data"), recipe=recipe)
    teacher = Teacher(load_model(TARGET, dtype="float32", device="cpu"), feature_layers=(0, 1))
    for number, split in enumerate(("train", "train", "held_out")):
        openings = [
            Opening(tokens=[7 * i + j for j in range(4 + i % 3)], temperature=recipe.temperature(i)) for i in range(16)
        ]
        shard = write_text(teacher, openings, max_new_tokens=24, top_k=8, seed=number, domain_names=("chat",))
        found.write(split, number, shard)
    return found


def made(data: Cache, folder: Path, *, stop_after: int | None = None, **changes: object) -> MadeStudent:
    updates = [0]

    def stop() -> bool:
        updates[0] += 1
        return updates[0] == stop_after

    arguments: dict[str, object] = {"num_layers": 1, "settings": SETTINGS, "stop": stop, **changes}
    ranks = OneProcess(torch.device("cpu"))
    return make_student(target(), data, corpora=corpora(data), folder=folder, ranks=ranks, **arguments)  # type: ignore[arg-type]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def batch_of(data: Cache, *, num_chains: int, num_steps: int = 2) -> Batch:
    corpus = Corpus(data.recipe)
    corpus.add(0, data.read("train", 0))
    generator = torch.Generator().manual_seed(0)
    return corpus.batch(corpus.places()[:5], num_chains=num_chains, num_steps=num_steps, generator=generator)


def loss_of(student: object, data: Cache) -> float:
    return float(Studied(student, num_steps=1)(batch_of(data, num_chains=24, num_steps=1)).loss.detach())


@pytest.mark.parametrize("num_chains", [3, 24])
def test_the_loss_is_the_cross_entropy_to_the_laws_of_the_text(data: Cache, num_chains: int) -> None:
    student = new_student(TARGET, layers=(0,), dtype="float32", device="cpu")
    batch = batch_of(data, num_chains=num_chains)
    outcome = Studied(student, num_steps=2)(batch)
    shard, total, count = data.read("train", 0), 0.0, 0
    for row in range(5):
        first, end = int(shard.offsets[row]), int(shard.offsets[row + 1])
        logits = student(input_ids=shard.tokens[None, first:end].long()).logits[0].detach()
        for chain in range(num_chains):
            for step in range(2):
                place = int(batch.starts[row, chain]) + 1 + step
                if not batch.valid[step, row, chain]:
                    assert not outcome.agreed[step, row, chain]
                    continue
                ids, probs = shard.top_ids[first + place].long(), shard.top_probs[first + place].float()
                assert bool(outcome.agreed[step, row, chain]) == (int(logits[place].argmax()) == int(ids[0]))
                if step == 0:
                    total -= float((probs * logits[place].log_softmax(-1)[ids]).sum())
                    count += 1
    assert float(outcome.loss.detach()) == pytest.approx(total / count, rel=1e-4)


def test_all_layers_agree_with_the_teacher_from_the_start(data: Cache) -> None:
    student = new_student(TARGET, layers=(0, 1), dtype="float32", device="cpu")
    batch = batch_of(data, num_chains=24)
    agreed = Studied(student, num_steps=2)(batch).agreed
    assert agreed.sum() >= 0.98 * batch.valid.sum()


def test_embedding_and_head_stay_the_targets(data: Cache, tmp_path: Path) -> None:
    made(data, tmp_path)
    kept, before = weights(tmp_path), target().model.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        torch.testing.assert_close(kept[name], before[name], atol=0, rtol=0)
    assert not torch.equal(kept["model.layers.0.mlp.up_proj.weight"], before["model.layers.0.mlp.up_proj.weight"])


def test_it_learns_and_one_seed_gives_the_same_weights(data: Cache, tmp_path: Path) -> None:
    first = made(data, tmp_path / "a")
    second = made(data, tmp_path / "b")
    learned = load_model(str(tmp_path / "a"), dtype="float32", device="cpu").model
    begun = new_student(TARGET, layers=(0,), dtype="float32", device="cpu")
    assert loss_of(learned, data) < 0.8 * loss_of(begun, data)  # neither gets below the entropy of the laws
    assert first.evaluation.agreement == second.evaluation.agreement
    one, other = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(one[name], other[name]) for name in one)
    card = student_card(first, recipe=data.recipe, settings=SETTINGS, command="dist-spec distill", tokens=5)
    assert f"{first.evaluation.agreement[0]:.3f}" in card
    assert (tmp_path / "a" / "curve.csv").read_text().count("\n") == len(first.training.progress.history) + 1


def test_an_interrupted_one_goes_on_to_the_same_weights(data: Cache, tmp_path: Path) -> None:
    whole = made(data, tmp_path / "whole")
    part = made(data, tmp_path / "part", stop_after=7)
    assert part.interrupted
    assert part.training.progress.update == 7
    resumed = made(data, tmp_path / "part", resume=True)
    assert resumed.training.progress.update == whole.training.progress.update
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "part")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_folder_is_a_model_that_drafts_and_the_text_stays(data: Cache, tmp_path: Path) -> None:
    made(data, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 1
    assert load_tokenizer(str(tmp_path)).vocabulary_hashes() == load_tokenizer(TARGET).vocabulary_hashes()
    entry = {"kind": "model", "model": str(tmp_path), "dtype": "float32", "max_model_len": 512}
    [settings] = parse_config({"target": {"model": TARGET}, "drafters": [entry]}).drafters
    built = build_drafter(settings)
    cluster = LocalCluster(model(TARGET), Speculation(), drafters=[lambda: built.drafter], seed=3)
    streams = cluster.run(prompts_of(4), samplings(0.0, 4))
    assert [stream.tokens for stream in streams] == plain_texts(0.0, 4)
    assert cluster.counts.accepted > 0


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["student", "early exit"])
def test_two_processes_write_the_targets_text(data: Cache, tmp_path: Path, drafter: str) -> None:
    if drafter == "student":
        made(data, tmp_path / "student")
    part = {"model": str(tmp_path / "student")} if drafter == "student" else {"model": TARGET, "layers": [0]}
    config = parse_config(
        {
            "target": {"model": TARGET, "dtype": "float32", "max_model_len": 512, "threads": 1},
            "drafters": [{"kind": "model", "name": "small", "dtype": "float32", "threads": 1, **part}],
            # The target is so quick that it would be done before the first guess.
            "speculation": {"budget": 8, "on_miss": "wait", "max_wait_s": 0.05},
        }
    )
    with Deployment("small", config) as deployment:
        deployment.wait_ready()
        prompts, asked = prompts_of(2), samplings(0.8, 2)
        streams = [
            deployment.client.open(f"r{i}", prompt=prompt, sampling=sampling)
            for i, (prompt, sampling) in enumerate(zip(prompts, asked, strict=True))
        ]
        while deployment.client.streams:
            deployment.client.poll(timeout_s=0.05)
            deployment.check()
    assert [stream.tokens for stream in streams] == plain_texts(0.8, 2)
    assert sum(int(stream.stats["verified"]) for stream in streams) > 0


def test_another_student_or_a_head_in_the_folder_is_not_gone_on_with(data: Cache, tmp_path: Path) -> None:
    made(data, tmp_path, stop_after=2)
    with pytest.raises(ConfigError, match="asked for are"):
        made(data, tmp_path, num_layers=2, resume=True)
    (tmp_path / "training.json").write_text('{"draft_to_target": [1]}')
    with pytest.raises(ConfigError, match="a head"):
        made(data, tmp_path, resume=True)
    with pytest.raises(ModelError, match="3 layers of a model that has 2"):
        made(data, tmp_path, num_layers=3)
