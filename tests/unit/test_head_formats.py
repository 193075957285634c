"""Files of heads: our own, published layouts, and the refusal of a head that was made for something else."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dist_spec.errors import ModelError, UnsupportedError
from dist_spec.models.head import Head
from dist_spec.models.head_formats import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    embedded_heads,
    head_of,
    load_head,
    read_head_config,
    save_head,
)
from dist_spec.models.head_target import TargetFacts, facts_of, target_facts
from dist_spec.models.loading import load_model
from tests.unit.distill_cases import VOCAB, tiny_head

TARGET = "random:llama?layers=6&hidden=32&seed=3"


def facts(head: Head, **changes: Any) -> TargetFacts:
    config = head.config
    values: dict[str, Any] = {
        "name": "tiny",
        "hidden_size": config.target_hidden_size,
        "num_layers": config.target_layers,
        "vocab_size": config.vocab_size,
        "vocabulary": config.vocabulary,
        "load_embedding": lambda: head.embedding,
    }
    return TargetFacts(**{**values, **changes})


def outputs(head: Head) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1, 5, head.config.feature_size, generator=generator)
    tokens = torch.randint(0, VOCAB, (1, 5), generator=generator)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q + v.repeat_interleave(q.shape[2] // v.shape[2], dim=2)).flatten(2)

    return head.logits(head(head.fuse(features), tokens, torch.arange(5)[None], attend))


def test_sixteen_bits_come_back_nearly(tmp_path: Path) -> None:
    head = tiny_head()
    save_head(head, tmp_path, bits=16)
    found = load_head(tmp_path, target=facts(head))
    assert found.config == head.config
    torch.testing.assert_close(outputs(found), outputs(head), rtol=5e-3, atol=5e-3)
    assert torch.equal(found.draft_to_target, head.draft_to_target)


def test_eight_bits_are_half_the_size_and_close(tmp_path: Path) -> None:
    head = tiny_head(hidden_size=64, intermediate_size=256, draft_vocab_size=45)
    save_head(head, tmp_path / "8")
    save_head(head, tmp_path / "16", bits=16)
    found = load_head(tmp_path / "8", target=facts(head))
    sizes = [(tmp_path / name / WEIGHTS_FILE).stat().st_size for name in ("8", "16")]
    assert sizes[0] < 0.6 * sizes[1]
    wanted = outputs(head).detach()
    assert float((outputs(found) - wanted).norm() / wanted.norm()) < 0.02
    # A row's largest weight decides its scale: no weight is off by more than half a step.
    largest = head.fc.weight.abs().amax(dim=1, keepdim=True)
    assert bool(((found.fc.weight - head.fc.weight).abs() <= largest / 127 * 0.51).all())


def test_the_embedding_is_not_stored(tmp_path: Path) -> None:
    save_head(tiny_head(), tmp_path)
    other = torch.ones(VOCAB, 8)
    found = load_head(tmp_path, target=facts(tiny_head(), load_embedding=lambda: other))
    assert torch.equal(found.embedding, other)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("target_hidden_size", {"hidden_size": 9}),
        ("target_layers", {"num_layers": 4}),
        ("vocab_size", {"vocab_size": 51}),
        ("vocabulary", {"vocabulary": "abd"}),
    ],
)
def test_a_head_for_another_target_is_refused_by_field(tmp_path: Path, field: str, changes: dict[str, Any]) -> None:
    head = tiny_head()
    save_head(head, tmp_path)
    for read in (load_head, read_head_config):
        with pytest.raises(ModelError, match=f"its {field} is .*that of tiny is .*") as caught:
            read(tmp_path, target=facts(head, **changes))
        assert "dist-spec distill" in str(caught.value.fix)


def test_an_entry_that_names_no_head_means_the_one_shipped_for_its_target() -> None:
    shipped = next(iter(embedded_heads()), None)
    assert head_of("some/folder", target="other") == "some/folder"
    if shipped is not None:
        assert head_of(None, target=shipped) == shipped
    with pytest.raises(ModelError, match="no head is shipped for other"):
        head_of(None, target="other")


def test_a_torn_head_is_refused(tmp_path: Path) -> None:
    head = tiny_head()
    save_head(head, tmp_path)
    (tmp_path / WEIGHTS_FILE).write_bytes((tmp_path / WEIGHTS_FILE).read_bytes()[:200])
    with pytest.raises(ModelError, match="cannot read"):
        load_head(tmp_path, target=facts(head))
    values = json.loads((tmp_path / CONFIG_FILE).read_text())
    (tmp_path / CONFIG_FILE).write_text(json.dumps({**values, "format": 9}))
    with pytest.raises(ModelError, match="format 9"):
        load_head(tmp_path, target=facts(head))
    with pytest.raises(ModelError, match="does not exist"):
        load_head(tmp_path / "nothing", target=facts(head))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="holds no draft head"):
        load_head(tmp_path / "empty", target=facts(head))


@pytest.mark.parametrize(
    "changes",
    [
        {"feature_layers": []},
        {"feature_layers": [-1, 0]},
        {"feature_layers": [0, 99]},
        {"feature_layers": ["low"]},
        {"feature_layers": None},
        {"more": 1},
        None,
    ],
)
def test_a_config_that_makes_no_sense_is_refused(tmp_path: Path, changes: dict[str, Any] | None) -> None:
    head = tiny_head()
    save_head(head, tmp_path)
    values = json.loads((tmp_path / CONFIG_FILE).read_text())
    (tmp_path / CONFIG_FILE).write_text(json.dumps([values] if changes is None else {**values, **changes}))
    for read in (load_head, read_head_config):
        with pytest.raises(ModelError):
            read(tmp_path, target=facts(head))


@pytest.mark.parametrize("wrong", [-1, VOCAB])
def test_a_map_that_leaves_the_vocabulary_is_refused(tmp_path: Path, wrong: int) -> None:
    head = square_head()
    head.draft_to_target[3] = wrong
    save_head(head, tmp_path / "own")
    good = {"draft_vocab_size": head.config.draft_vocab_size, **layer_config(head)}
    state = published_state(head)
    for folder in ("own", "published"):
        if folder == "published":
            write_published(state, tmp_path / folder, good)
        with pytest.raises(ModelError, match="leaves the vocabulary"):
            load_head(tmp_path / folder, target=facts(head))
    write_published({**state, "d2t": state["d2t"][:-1]}, tmp_path / "short", good)
    with pytest.raises(ModelError, match="d2t has 39 entries, not 40"):
        load_head(tmp_path / "short", target=facts(head))


NAMES = {
    "fc.weight": "fc.weight",
    "q.weight": "L.self_attn.q_proj.weight",
    "k.weight": "L.self_attn.k_proj.weight",
    "v.weight": "L.self_attn.v_proj.weight",
    "o.weight": "L.self_attn.o_proj.weight",
    "gate.weight": "L.mlp.gate_proj.weight",
    "up.weight": "L.mlp.up_proj.weight",
    "down.weight": "L.mlp.down_proj.weight",
    "embedding_norm": "L.input_layernorm.weight",
    "state_norm": "L.hidden_norm.weight",
    "mlp_norm": "L.post_attention_layernorm.weight",
    "final_norm": "norm.weight",
    "lm_head.weight": "lm_head.weight",
}


def published_state(head: Head, *, layer: str = "midlayer.") -> dict[str, torch.Tensor]:
    """A head's tensors as others name them: the map as offsets, and what we do not need beside it."""
    state = head.state_dict()
    tensors = {theirs.replace("L.", layer): state[ours].clone() for ours, theirs in NAMES.items()}
    ids = head.draft_to_target
    tensors["d2t"] = ids - torch.arange(len(ids))
    known = torch.zeros(head.config.vocab_size, dtype=torch.bool)
    known[ids.clamp(0, len(known) - 1)] = True
    tensors["t2d"] = known
    return tensors


def published(head: Head, folder: Path, *, layer: str, config: dict[str, Any], pickled: bool = False) -> None:
    write_published(published_state(head, layer=layer), folder, config, pickled=pickled)


def write_published(
    tensors: dict[str, torch.Tensor], folder: Path, config: dict[str, Any], *, pickled: bool = False
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def layer_config(head: Head) -> dict[str, Any]:
    config = head.config
    return {
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "rope_theta": 5000.0,
        "rms_norm_eps": 1e-6,
        "vocab_size": config.vocab_size,
        "num_hidden_layers": 1,
        "max_position_embeddings": 256,
    }


def square_head(**changes: Any) -> Head:
    return tiny_head(hidden_size=8, target_layers=12, rope_theta=5000.0, **changes)


@pytest.mark.parametrize("pickled", [False, True])
def test_the_layout_of_eagle(tmp_path: Path, pickled: bool) -> None:
    head = square_head()
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": head.config.draft_vocab_size,
        **layer_config(head),
    }
    published(head, tmp_path, layer="midlayer.", config=config, pickled=pickled)
    found = load_head(tmp_path, target=facts(head))
    # Inputs of layers 2, 6 and 9 are the outputs of the layers before them.
    assert found.config.feature_layers == (1, 5, 8)
    assert not found.config.norm_before_residual
    assert torch.equal(found.draft_to_target, head.draft_to_target)
    torch.testing.assert_close(outputs(found), outputs(head))


def test_the_layout_of_modelopt(tmp_path: Path) -> None:
    head = square_head()
    config = {
        "draft_vocab_size": head.config.draft_vocab_size,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 9], "use_aux_hidden_state": True},
        **layer_config(head),
    }
    published(head, tmp_path, layer="midlayer.", config=config)
    assert load_head(tmp_path, target=facts(head)).config.feature_layers == (1, 4, 9)


def test_the_layout_of_speculators(tmp_path: Path) -> None:
    head = square_head(norm_before_residual=True)
    config = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer_config(head),
        "draft_vocab_size": head.config.draft_vocab_size,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [2, 6, 10],
    }
    published(head, tmp_path, layer="layers.0.", config=config)
    found = load_head(tmp_path, target=facts(head))
    assert found.config.feature_layers == (1, 5, 9)
    assert found.config.norm_before_residual
    torch.testing.assert_close(outputs(found), outputs(head))
    plain = Head(replace(head.config, norm_before_residual=False), embedding=head.embedding)
    plain.load_state_dict(head.state_dict())
    assert not torch.allclose(outputs(found), outputs(plain), rtol=1e-2)


def test_what_is_not_read_is_refused_by_name(tmp_path: Path) -> None:
    head = square_head()
    good = {"draft_vocab_size": head.config.draft_vocab_size, **layer_config(head)}
    for config, words in (
        ({k: v for k, v in good.items() if k != "draft_vocab_size"}, "no EAGLE-3 head"),
        ({**good, "num_hidden_layers": 2}, "2 layers"),
        ({**good, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "scales its rotary"),
    ):
        published(head, tmp_path, layer="midlayer.", config=config)
        with pytest.raises(UnsupportedError, match=words):
            load_head(tmp_path, target=facts(head))
    published(head, tmp_path, layer="midlayer.", config={**good, "hidden_size": "wide"})
    with pytest.raises(ModelError, match=r"config\.json"):
        load_head(tmp_path, target=facts(head))
    published(head, tmp_path, layer="otherlayer.", config=good)
    with pytest.raises(UnsupportedError, match="otherlayer"):
        load_head(tmp_path, target=facts(head))


def test_facts_are_the_same_loaded_or_not() -> None:
    loaded = load_model(TARGET, dtype="float32", device="cpu")
    by_files, by_model = target_facts(TARGET), facts_of(loaded)
    assert torch.equal(by_files.load_embedding(), by_model.load_embedding())
    for name in ("name", "hidden_size", "num_layers", "vocab_size", "vocabulary"):
        assert getattr(by_files, name) == getattr(by_model, name)
    assert (by_files.hidden_size, by_files.num_layers) == (32, 6)


def test_facts_of_a_folder_read_the_embedding_alone(tmp_path: Path) -> None:
    loaded = load_model(TARGET, dtype="float32", device="cpu")
    from dist_spec.models.random_models import byte_tokenizer

    loaded.model.save_pretrained(tmp_path)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    found = target_facts(str(tmp_path))
    assert torch.equal(found.load_embedding(), facts_of(loaded).load_embedding())
    assert found.vocabulary == facts_of(loaded).vocabulary


def test_the_config_is_written_whole(tmp_path: Path) -> None:
    head = tiny_head()
    save_head(head, tmp_path)
    values = json.loads((tmp_path / CONFIG_FILE).read_text())
    assert set(values) == {"format", *asdict(head.config)}


def test_the_embedded_head_is_small_and_whole() -> None:
    folder = embedded_heads()["smollm2"]
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 15e6
    values = json.loads((folder / CONFIG_FILE).read_text())
    assert (values["target_name"], values["feature_layers"]) == ("smollm2", [2, 15, 27])
    with safe_open(folder / WEIGHTS_FILE, "pt") as handle:
        assert handle.get_slice("lm_head.weight").get_shape() == [values["draft_vocab_size"], values["hidden_size"]]
        ids = handle.get_tensor("draft_to_target")
    assert bool((ids.diff() > 0).all())
    assert int(ids[-1]) < values["vocab_size"]
