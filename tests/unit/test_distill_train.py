"""Training: the same seed gives the same weights, an interruption changes nothing, and the loss falls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dist_spec.distill.batches import Corpus, Order
from dist_spec.distill.checkpoint import CHECKPOINT
from dist_spec.distill.ranks import OneProcess, Ranks
from dist_spec.distill.settings import TrainSettings
from dist_spec.distill.train import Training
from dist_spec.distill.unroll import Unrolled
from dist_spec.errors import ConfigError, ModelError
from dist_spec.models.head import Head
from tests.unit.distill_cases import tiny_head, tiny_recipe, tiny_shard

SETTINGS = TrainSettings(
    positions=700,
    num_steps=3,
    batch_size=3,
    num_chains=6,
    deep_chains=4,
    learning_rate=1e-2,
    warmup=5,
    ema=0.9,
    evaluate_every=140,
)


def corpus(*seeds: int) -> Corpus:
    made = Corpus(tiny_recipe())
    for number, seed in enumerate(seeds):
        made.add(number, tiny_shard(seed=seed))
    return made


def training(
    folder: Path,
    *,
    seed: int = 0,
    settings: TrainSettings = SETTINGS,
    head: Head | None = None,
    ranks: Ranks | None = None,
) -> Training:
    learner = Unrolled(
        head or tiny_head(seed=seed),
        num_steps=settings.num_steps,
        step_weight=settings.step_weight,
        deep_chains=settings.deep_chains,
    )
    return Training(
        learner,
        corpus=corpus(1, 2, 3),
        held_out=corpus(9),
        settings=settings,
        folder=folder,
        ranks=ranks or OneProcess(torch.device("cpu")),
    )


def weights(found: Training) -> dict[str, torch.Tensor]:
    return {**found.learner.trained.state_dict(), **{f"mean {name}": p for name, p in found.average.items()}}


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert torch.equal(value, b[name]), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A training that nothing interrupted."""
    found = training(tmp_path_factory.mktemp("whole"))
    assert sum(1 for _ in found.run()) > 20
    return found


def test_the_same_seed_gives_the_same_weights(whole: Training, tmp_path: Path) -> None:
    again = training(tmp_path / "b")
    list(again.run())
    assert_same(weights(whole), weights(again))
    other = training(tmp_path / "c", settings=replace(SETTINGS, seed=1))
    list(other.run())
    assert not torch.equal(weights(other)["fc.weight"], weights(whole)["fc.weight"])


def test_training_learns_a_text_that_can_be_learned(tmp_path: Path) -> None:
    settings = replace(SETTINGS, positions=3000, evaluate_every=3000, learning_rate=2e-2)
    found = training(tmp_path, settings=settings)
    before = found.measure()
    list(found.run())
    after = found.measure()
    # Ids below 10 are not in the draft vocabulary: a fifth cannot be guessed.
    assert min(after.agreement) > 0.6 > 0.2 > max(before.agreement)
    assert all(a < b / 2 for a, b in zip(after.cross_entropy, before.cross_entropy, strict=True))
    assert before.chain_length is not None
    assert after.chain_length is not None
    assert after.chain_length > 2.4 > before.chain_length


@pytest.mark.parametrize("saved", [True, False])
def test_an_interruption_changes_nothing(whole: Training, tmp_path: Path, saved: bool) -> None:
    """`saved`: Ctrl-C, a checkpoint is written. Else a kill: what came after the last checkpoint is done again."""
    part = training(tmp_path / "part")
    for progress in part.run():
        if progress.update == 17:
            if saved:
                part.save()
            break
    rest = training(tmp_path / "part", seed=5)
    assert rest.resume()
    assert (rest.progress.update == 17) == saved
    assert 0 < rest.progress.positions < SETTINGS.positions
    list(rest.run())
    assert_same(weights(whole), weights(rest))
    assert rest.progress.positions == whole.progress.positions
    assert [row["agreement"] for row in rest.progress.history] == [row["agreement"] for row in whole.progress.history]


def test_nothing_to_resume(tmp_path: Path) -> None:
    assert not training(tmp_path).resume()


def test_a_checkpoint_of_another_shape_is_refused(tmp_path: Path) -> None:
    found = training(tmp_path)
    next(iter(found.run()))
    found.save()
    with pytest.raises(ModelError, match="another shape"):
        training(tmp_path, head=tiny_head(intermediate_size=28)).resume()
    for steps in (2, 4):
        with pytest.raises(ConfigError, match="is one of 3 steps"):
            training(tmp_path, settings=replace(SETTINGS, num_steps=steps)).resume()
    (tmp_path / CHECKPOINT).write_bytes(b"torn")
    with pytest.raises(ModelError, match="cannot read the checkpoint"):
        training(tmp_path).resume()


def test_time_ends_a_training_too(tmp_path: Path) -> None:
    found = training(tmp_path, settings=replace(SETTINGS, positions=10**9, minutes=1e-6))
    assert sum(1 for _ in found.run()) <= 2
    assert (tmp_path / CHECKPOINT).exists()


def test_every_pass_takes_all_texts_in_another_order() -> None:
    texts = corpus(1, 2, 3)
    order = iter(Order(texts, batch_size=3, seed=0))
    passes = [[place for _ in range(4) for place in next(order)[0]] for _ in range(2)]
    assert [set(p) for p in passes] == [set(texts.places())] * 2
    assert passes[0] != passes[1]


def test_an_order_goes_on_where_it_stood() -> None:
    texts = corpus(1, 2, 3)
    order = Order(texts, batch_size=3, seed=0)
    source = iter(order)
    for _ in range(6):
        next(source)
    other = Order(texts, batch_size=3, seed=0)
    other.resume(order.state)
    expected, found = next(source), next(iter(other))
    assert expected[0] == found[0]
    assert torch.equal(torch.rand(3, generator=expected[1]), torch.rand(3, generator=found[1]))


def test_shards_that_appear_join_the_next_pass() -> None:
    texts = corpus(1)
    order = Order(texts, batch_size=4, seed=0)
    source = iter(order)
    next(source)
    texts.add(1, tiny_shard(seed=2))
    later = [place.shard for _ in range(2) for place in next(source)[0]]
    assert set(later) == {0, 1}
    assert order.state["shards"] == [0, 1]


def test_the_rate_rises_stays_and_falls() -> None:
    settings = TrainSettings(learning_rate=1.0, warmup=10, decay_share=0.25)
    assert settings.rate(update=0, progress=0.0) == pytest.approx(0.1)
    assert settings.rate(update=50, progress=0.5) == 1.0
    assert settings.rate(update=50, progress=0.875) == pytest.approx(0.5)
    assert settings.rate(update=50, progress=1.2) == 0.0
