"""Some layers of a model as a model of its own: the same numbers as one built of these layers, in every family and path."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dist_spec.commands.footprint import model_footprint
from dist_spec.config import parse_config
from dist_spec.core.settings import Speculation
from dist_spec.drafters.base import Drafter
from dist_spec.drafters.build import build_drafter
from dist_spec.drafters.model import ModelDrafter
from dist_spec.errors import ConfigError, ModelError
from dist_spec.models.loading import LoadedModel, load_model
from dist_spec.models.random_models import build_random
from dist_spec.models.runner import ModelRunner
from dist_spec.models.student import early_exit, spread_layers
from tests.integration.local_cluster import LocalCluster, prompts_of
from tests.integration.test_equality import TARGET, model, plain_texts, samplings
from tests.unit.model_cases import FAMILIES, ids, row, stock_logits

LAYERS = (0, 3, 4)


def spec(family: str, layers: int) -> str:
    return f"random:{family}{'&' if '?' in family else '?'}seed=4&layers={layers}"


def fresh(name: str) -> LoadedModel:
    """Not a shared one: it is changed."""
    return load_model(name, dtype="float32", device="cpu")


def built_of(family: str, kept: tuple[int, ...]) -> LoadedModel:
    """A model made with as many layers, which then get the weights (and windows) of those that are kept."""
    whole, short = build_random(spec(family, 6).removeprefix("random:")), fresh(spec(family, len(kept)))
    weights = whole.state_dict()
    for place, number in enumerate(kept):
        for name in short.model.model.layers[place].state_dict():
            weights[f"model.layers.{place}.{name}"] = whole.state_dict()[f"model.layers.{number}.{name}"]
    short.model.load_state_dict({name: weights[name] for name in short.model.state_dict()})
    return short


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_are_those_of_a_model_of_these_layers(family: str, lean: bool) -> None:
    # Windows alternate by layer where there are any: here in the order in which a model of three layers has them.
    kept = LAYERS
    loaded = early_exit(fresh(spec(family, 6)), kept)
    text = ids(14)
    expected = stock_logits(built_of(family, kept), text)
    runner = ModelRunner(loaded, num_blocks=8, block_size=8, batch_invariant=False, lean=lean)
    logits = runner.forward([row(range(8), 0, text[:9])])
    torch.testing.assert_close(logits, expected[:9], atol=2e-3, rtol=2e-3)
    logits = runner.forward([row(range(8), 9, text[9:])])
    torch.testing.assert_close(logits, expected[9:], atol=2e-3, rtol=2e-3)
    assert runner.packed.cache.storage.shape[0] == len(kept)
    assert loaded.num_parameters < fresh(spec(family, 6)).num_parameters


def test_windows_go_with_their_layers() -> None:
    loaded = early_exit(fresh("random:qwen3?window=6&layers=4&seed=4"), (1, 2))
    assert loaded.config.layer_types == ["full_attention", "sliding_attention"]
    text, whole = ids(20), fresh("random:qwen3?window=6&layers=4&seed=4")
    whole.model.model.layers = torch.nn.ModuleList([whole.model.model.layers[1], whole.model.model.layers[2]])
    whole.config.num_hidden_layers, whole.config.layer_types = 2, ["full_attention", "sliding_attention"]
    runner = ModelRunner(loaded, num_blocks=8, block_size=8, batch_invariant=True)
    torch.testing.assert_close(
        runner.forward([row(range(8), 0, text)]), stock_logits(whole, text), atol=2e-3, rtol=2e-3
    )


def test_all_layers_are_the_target_itself_and_every_draft_is_accepted() -> None:
    def whole() -> Drafter:
        loaded = early_exit(fresh(TARGET), (0, 1))
        return ModelDrafter(loaded, max_context=512, batch_invariant=True)

    settings = Speculation(growth="optimistic", verify_shape="chain", num_draft_tokens=6)
    cluster = LocalCluster(model(TARGET), settings, drafters=[whole], seed=4)
    [stream] = cluster.run(prompts_of(1), samplings(0.0, 1))
    assert stream.tokens == plain_texts(0.0, 1)[0]
    assert cluster.counts.verified == cluster.counts.accepted > 10


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_stays_that_of_the_target(temperature: float) -> None:
    def exiting() -> Drafter:
        return entry_drafter(layers=[0])

    cluster = LocalCluster(model(TARGET), Speculation(), drafters=[exiting], seed=3)
    streams = cluster.run(prompts_of(4), samplings(temperature, 4))
    assert [stream.tokens for stream in streams] == plain_texts(temperature, 4)
    assert cluster.counts.verified > 0


def entry_drafter(**changes: Any) -> Drafter:
    entry = {"kind": "model", "model": TARGET, "dtype": "float32", "max_model_len": 512, **changes}
    [drafter] = parse_config({"target": {"model": TARGET}, "drafters": [entry]}).drafters
    return build_drafter(drafter).drafter


def test_layers_that_are_not_there_are_refused() -> None:
    with pytest.raises(ModelError, match="has 2 layers") as caught:
        entry_drafter(layers=[0, 7])
    assert "from 0 to 1" in (caught.value.fix or "")
    for layers in ([1, 0], [0, 0]):
        with pytest.raises(ConfigError, match="do not ascend"):
            entry_drafter(layers=layers)
    with pytest.raises(ConfigError, match=r"drafters\.0\.layers"):
        entry_drafter(layers=[])
    with pytest.raises(ConfigError, match=r"drafters\.0\.layers"):
        entry_drafter(layers=[-1])


def test_only_the_whole_model_counts_as_the_target_itself() -> None:
    data = {"target": {"model": "m"}, "drafters": [{"kind": "model", "model": "m"}]}
    whole, part = parse_config(data), parse_config({**data, "drafters": [{**data["drafters"][0], "layers": [0, 1]}]})
    assert whole.drafters[0].is_model_of(whole.target)
    assert not part.drafters[0].is_model_of(part.target)


def test_memory_is_that_of_the_layers_that_run() -> None:
    def needed(layers: tuple[int, ...] | None) -> tuple[int, int]:
        found = model_footprint(
            spec("llama", 6), dtype="float32", max_model_len=64, max_sequences=1, kv_block_size=16, layers=layers
        )
        return found.kv_bytes, found.weights_bytes

    assert needed(LAYERS)[0] * 2 == needed(None)[0]
    assert needed(LAYERS)[1] < needed(None)[1]
    with pytest.raises(ModelError, match="has 6 layers"):
        needed((6,))


def test_layers_spread_from_the_first_to_the_last() -> None:
    assert spread_layers(4, num_layers=30) == (0, 10, 19, 29)
    assert spread_layers(1, num_layers=3) == (0,)
    assert spread_layers(3, num_layers=3) == (0, 1, 2)
    with pytest.raises(ModelError, match="5 layers of a model that has 3"):
        spread_layers(5, num_layers=3)
