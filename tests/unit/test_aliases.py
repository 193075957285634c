"""Names that users of other systems know become ours, and contradictions are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dist_spec.commands.options import option_overrides, read_config
from dist_spec.config import Config, load_config, parse_config
from dist_spec.config.aliases import drafter_of, parse_speculative_config, resolve_aliases
from dist_spec.config.arguments import argument_overrides
from dist_spec.errors import ConfigError, UnsupportedError


def settings(**data: Any) -> Config:
    return parse_config({"target": {"model": "m"}, **data})


def arguments(**given: Any) -> Config:
    names = {"drafters": None, "speculative_config": None, "num_speculative_tokens": None}
    own = {name: given.pop(name, None) for name in names}
    return load_config(None, overrides=argument_overrides({"target": "m", **given}, **own))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"method": "ngram"}, {"kind": "ngram"}),
        ({"model": "[ngram]", "num_speculative_tokens": 3}, {"kind": "ngram", "num_draft_tokens": 3}),
        (
            {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
            {"kind": "ngram", "num_draft_tokens": 5, "max_ngram": 4},
        ),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 24}, {"kind": "suffix", "num_draft_tokens": 24}),
        (
            {"model": "x/y", "num_speculative_tokens": 4, "draft_tensor_parallel_size": 1, "max_model_len": 99},
            {"kind": "model", "model": "x/y", "num_draft_tokens": 4, "max_model_len": 99},
        ),
        (
            {"method": "eagle3", "model": "x/y", "num_speculative_tokens": 3},
            {"kind": "head", "model": "x/y", "num_draft_tokens": 3},
        ),
        ({"method": "draft_model", "model": "x/y", "quantization": None}, {"kind": "model", "model": "x/y"}),
    ],
)
def test_speculative_configurations(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert drafter_of(theirs) == parse_speculative_config(json.dumps(theirs)) == ours
    expected = settings(drafters=[ours])
    assert settings(speculative_config=theirs) == expected
    assert arguments(speculative_config=theirs) == expected
    options = option_overrides(target="m", speculative_config=json.dumps(theirs))
    assert load_config(None, overrides=options) == expected


@pytest.mark.parametrize("method", ["eagle", "medusa", "mtp", "mlp_speculator"])
def test_unknown_methods_are_refused_with_those_there_are(method: str) -> None:
    with pytest.raises(UnsupportedError, match=f"method {method} is not in this release") as caught:
        drafter_of({"method": method, "model": "x"})
    assert caught.value.fix is not None
    assert "ngram" in caught.value.fix
    assert "suffix" in caught.value.fix


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        ({}, "neither a method nor a model"),
        ({"method": "nrgam"}, "unknown method 'nrgam'"),
        ({"method": 3}, "unknown method 3"),
        ({"method": "draft_model"}, "needs a model"),
        ({"method": "ngram", "model": "x"}, "contradicts"),
        ({"method": "suffix", "num_speculative_tokens": 3, "suffix_decoding_max_tree_depth": 4}, "contradicts"),
        ({"method": "ngram", "disable_by_batch_size": 4}, "disable_by_batch_size"),
        ({"model": "x", "draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size: 2"),
        ([1], "must be a section"),
    ],
    ids=str,
)
def test_what_is_wrong_in_one_is_named(theirs: Any, named: str) -> None:
    with pytest.raises((ConfigError, UnsupportedError), match=named) as caught:
        drafter_of(theirs)
    assert caught.value.fix


def test_text_that_is_not_json() -> None:
    with pytest.raises(ConfigError, match="is not JSON"):
        parse_speculative_config("{method: ngram}")


@pytest.mark.parametrize(
    "data",
    [
        {"drafters": [{"kind": "ngram", "num_speculative_tokens": 5}, {"kind": "suffix", "num_speculative_tokens": 5}]},
        {"drafters": [{"kind": "ngram"}, {"kind": "suffix"}], "num_speculative_tokens": 5},
        {"drafters": [{"kind": "ngram"}, {"kind": "suffix"}], "speculation": {"num_speculative_tokens": 5}},
    ],
)
def test_the_number_of_tokens_may_stand_in_several_places(data: dict[str, Any]) -> None:
    before = json.dumps(data)
    assert [drafter.num_draft_tokens for drafter in settings(**data).drafters] == [5, 5]
    assert json.dumps(data) == before  # the caller's data is not touched


@pytest.mark.parametrize(
    "data",
    [
        {"drafters": [{"kind": "ngram", "num_speculative_tokens": 5, "num_draft_tokens": 5}]},
        {"drafters": [{"kind": "ngram", "num_draft_tokens": 5}], "num_speculative_tokens": 5},
        {"drafters": [{"kind": "ngram"}], "num_speculative_tokens": 5, "speculation": {"num_speculative_tokens": 5}},
        {"drafters": [{"kind": "ngram"}], "speculative_config": {"method": "ngram"}},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}, "num_speculative_tokens": 2},
    ],
)
def test_an_alias_beside_its_own_name_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(**data)
    assert caught.value.fix == "keep one of them"


def test_a_wrong_number_is_told_by_the_schema() -> None:
    with pytest.raises(ConfigError, match=r"drafters\.0\.num_draft_tokens"):
        settings(speculative_config={"method": "ngram", "num_speculative_tokens": "many"})
    assert resolve_aliases([1]) == [1]


def test_options_that_say_the_same_twice_are_refused() -> None:
    ngram = '{"method": "ngram", "num_speculative_tokens": 3}'
    for given in (
        {"num_draft_tokens": 4, "num_speculative_tokens": 4},
        {"drafters": ["ngram"], "speculative_config": ngram},
        {"num_speculative_tokens": 4, "speculative_config": ngram},
    ):
        with pytest.raises(ConfigError, match="say the same thing"):
            option_overrides(target="m", **given)  # type: ignore[arg-type]
    for given in (
        {"drafters": ["ngram"], "speculative_config": {"method": "ngram"}},
        {"drafters": [{"kind": "ngram", "num_draft_tokens": 3}], "num_speculative_tokens": 4},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}, "num_speculative_tokens": 4},
    ):
        with pytest.raises(ConfigError, match="say the same thing"):
            arguments(**given)


def test_options_win_over_a_file_under_whichever_name(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("target: {model: m}\ndrafters: [{kind: ngram, num_speculative_tokens: 3}]\n")
    assert read_config(file, None).drafters[0].num_draft_tokens == 3
    for given in ({"num_draft_tokens": 6}, {"num_speculative_tokens": 6}):
        config = load_config(file, overrides=option_overrides(**given))  # type: ignore[arg-type]
        assert config.drafters[0].num_draft_tokens == 6
    config = read_config(file, None, speculative_config='{"method": "suffix"}')
    assert [drafter.kind for drafter in config.drafters] == ["suffix"]


def test_arguments_are_sections_merged_into_a_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("target: {model: m, max_sequences: 2}\nspeculation: {budget: 4, verify_shape: chain}\n")
    none = {"speculative_config": None, "num_speculative_tokens": None}
    overrides = argument_overrides(
        {"target": {"dtype": "float32"}, "speculation": {"budget": 6}},
        drafters=["ngram", {"kind": "suffix"}, "x/y"],
        **none,
    )
    config = load_config(file, overrides=overrides)
    assert (config.target.model, config.target.dtype, config.target.max_sequences) == ("m", "float32", 2)
    assert (config.speculation.budget, config.speculation.verify_shape) == (6, "chain")
    assert [drafter.kind for drafter in config.drafters] == ["ngram", "suffix", "model"]
    with pytest.raises(ConfigError, match="is no list"):
        argument_overrides({}, drafters="ngram", **none)
    paths = argument_overrides({"target": Path("/m/t")}, drafters=[Path("/m/d")], **none)
    config = load_config(None, overrides=paths)
    assert config.target.model == "/m/t"
    assert config.drafters[0].model_dump()["model"] == "/m/d"
    for wrong in (5, [5], [None], Path("/m/d"), {"kind": "ngram"}):
        with pytest.raises(ConfigError, match="drafters: "):
            argument_overrides({}, drafters=wrong, **none)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"did you mean 'target\.dtype'"):
        arguments(dtype="float32")
