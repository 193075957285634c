"""Settings: what is accepted, what is refused, and how helpfully."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_spec.config import Config, load_config, parse_config
from dist_spec.errors import ConfigError, DistSpecError, UnsupportedError

FOLDER = Path(__file__).parents[2] / "configs"
CONFIGS = sorted(path for path in FOLDER.rglob("*.yaml") if path.parent.name != "launchers")  # those are not ours
NGRAM = {"kind": "ngram"}
MODEL = {"kind": "model", "model": "m"}
SCRIPTED = {"kind": "scripted", "text_file": "t"}


def settings(**sections: Any) -> dict[str, Any]:
    return {"target": {"model": "m"}, **sections}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_example_loads_and_survives_a_round_trip(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    copy = tmp_path / "copy.yaml"
    copy.write_text(config.to_yaml(), encoding="utf-8")
    assert load_config(copy) == config


def test_there_are_examples() -> None:
    assert {path.name for path in CONFIGS} >= {"laptop.yaml", "plain.yaml", "two_gpu.yaml", "two_drafters.yaml"}


def test_defaults() -> None:
    config = parse_config(settings(drafters=[NGRAM, MODEL, SCRIPTED, {"kind": "plugin", "target": "a.b:C"}]))
    assert [drafter.name for drafter in config.drafters] == ["ngram0", "model1", "scripted2", "plugin3"]
    speculation = config.speculation
    switches = (speculation.growth, speculation.delivery, speculation.verify_shape, speculation.on_miss)
    assert switches == ("best_first", "push", "tree", "plain")
    assert config.target.batch_invariant
    assert not config.target.trust_remote_code
    assert not parse_config({"target": {"model": "m", "device": "cuda:0"}}).target.batch_invariant


@pytest.mark.parametrize(
    ("data", "place", "help_"),
    [
        (settings(speculatoin={}), "speculatoin", "'speculation'"),
        (settings(speculation={"budgt": 3}), "speculation.budgt", "'budget'"),
        (settings(drafters=[NGRAM, {**MODEL, "widht": 3}]), "drafters.1.widht", "'width'"),
        (settings(drafters=[{**MODEL, "link": {"tensor": "zmq"}}]), "drafters.0.link.tensor", "'tensors'"),
        (settings(temperature=1.0), "temperature", "'sampling.temperature'"),
        (settings(drafters=[{"kind": "ngran"}]), "drafters.0.kind", "'ngram'"),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest_known_one(data: dict[str, Any], place: str, help_: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(data, source="file.yaml")
    assert caught.value.message.startswith(f"file.yaml: {place}: unknown")
    assert f"did you mean {help_}" in caught.value.message
    assert caught.value.fix


@pytest.mark.parametrize(
    ("data", "message", "fix"),
    [
        ({}, "target: missing", "--set target=..."),
        ({"target": {}}, "target.model: missing", "--set target.model=..."),
        ({"target": {"model": 3}}, "target.model: should be a text, got 3 (a number)", "target.model"),
        (
            settings(speculation={"budget": "4"}),
            "speculation.budget: should be a whole number, got '4' (a text)",
            "budget",
        ),
        (settings(speculation={"budget": 1.5}), "speculation.budget: should be a whole number", "budget"),
        (settings(speculation={"budget": -1}), "speculation.budget: should be greater than or equal to 0", "budget"),
        (settings(speculation={"growth": "nne"}), "speculation.growth: 'nne' is not allowed", "'best_first'"),
        (settings(speculation=[]), "speculation: should be a section", "speculation"),
        ({"target": "m"}, "target: should be a section", "target"),
        (settings(drafters="ngram"), "drafters: should be a list", "drafters"),
        (settings(drafters=["ngram"]), "drafters.0: should be a section", "drafters.0"),
        (settings(drafters=[{"name": "x"}]), "drafters.0: it has no kind", "model, head, ngram"),
        (settings(drafters=[{"kind": ["x"]}]), "drafters.0.kind", "model, head, ngram"),
        ({"target": {"model": "m", "device": "gpu"}}, "target.device: 'gpu'", "cpu or cuda:0"),
        ({"target": {"model": "m", "cores": [0, "x"]}}, "target.cores.1: should be a whole number", "target.cores.1"),
        ({"target": {"model": "m", "trust_remote_code": "yes"}}, "should be true or false", "trust_remote_code"),
        (settings(transport={"bind": "127.0.0.1"}), "transport.bind: '127.0.0.1'", "tcp://HOST:PORT"),
        (settings(drafters=[{**NGRAM, "name": "a b"}]), "drafters.0.name", "letters"),
        (settings(drafters=[{"kind": "plugin", "target": "x"}]), "drafters.0.target", "module:Class"),
        (settings(sampling={"temperature": float("nan")}), "sampling.temperature", "sampling.temperature"),
        ([], "should be a section", "settings"),
        ({**settings(), 3: 4}, "3: keys should be texts", "3"),
    ],
)
def test_wrong_values_are_refused_with_place_and_fix(data: Any, message: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(data)
    assert message in caught.value.message
    assert fix in (caught.value.fix or "")


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match="2 settings are wrong") as caught:
        parse_config(settings(speculation={"budget": "4", "growth": "x"}))
    assert "speculation.budget" in caught.value.message
    assert "speculation.growth" in caught.value.message


@pytest.mark.parametrize(
    ("sections", "message", "fix"),
    [
        ({"speculation": {"growth": "none"}}, "growth: none", "delivery: pull"),
        ({"speculation": {"growth": "fan_out"}}, "growth: fan_out", "delivery: pull"),
        ({"speculation": {"on_miss": "draft"}}, "on_miss: draft", "delivery: pull"),
        ({"verification": {"rule": "greedy"}, "sampling": {"temperature": 0.8}}, "rule: greedy", "rule: auto"),
        ({"drafters": [{**NGRAM, "name": "x"}, {**MODEL, "name": "x"}]}, "2 drafters are called 'x'", "another"),
        ({"drafters": [{**NGRAM, "name": "target"}]}, "reserved", "another name"),
        ({"drafters": [{**NGRAM, "placement": "leader", "cores": [0]}]}, "drafters.0.cores", "placement: process"),
        ({"drafters": [{**NGRAM, "link": {"messages": "collective"}}]}, "messages: collective", "tensors: collective"),
        ({"drafters": [{**NGRAM, "link": {"backend": "gloo"}}]}, "link.backend: gloo", "remove"),
        ({"drafters": [{**MODEL, "link": {"tensors": "collective", "backend": "nccl"}}]}, "two GPUs", "gloo, or auto"),
        (
            {"drafters": [{**NGRAM, "placement": "leader", "link": {"tensors": "collective"}}]},
            "needs no link",
            "remove drafters.0.link",
        ),
        ({"transport": {"bind": "tcp://0.0.0.0:5555"}}, "open to other hosts", "allow_plaintext"),
        ({"transport": {"bind": "tcp://127.0.0.1:70000"}}, "no port 70000", "65535"),
        ({"transport": {"heartbeat_s": 2.0, "dead_after_s": 1.0}}, "dead_after_s", "6 or more"),
    ],
)
def test_contradictions_are_refused_with_a_way_out(sections: dict[str, Any], message: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(settings(**sections))
    assert message in caught.value.message
    assert fix in (caught.value.fix or "")


@pytest.mark.parametrize(
    "speculation",
    [
        {"growth": "none", "delivery": "pull", "verify_shape": "chain"},
        {"growth": "optimistic", "delivery": "pull", "verify_shape": "chain"},
        {"growth": "fan_out", "delivery": "pull", "verify_shape": "chain", "on_miss": "draft"},
        {"growth": "best_first", "delivery": "push", "on_miss": "wait"},
    ],
    ids=["synchronous", "PEARL", "SSD", "streamed"],
)
def test_the_published_methods_are_settings(speculation: dict[str, Any]) -> None:
    parse_config(settings(speculation=speculation))


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"sampling": {"n": 5}}, "sampling.n"),
        ({"sampling": {"grammar": "x"}}, "sampling.grammar"),
        ({"verification": {"rule": "block"}}, "verification.rule: block"),
        ({"verification": {"rule": "traversal"}}, "verification.rule: traversal"),
        ({"drafters": [{"kind": "eagle"}]}, "drafters.0.kind: eagle"),
        ({"drafters": [{**MODEL, "lora": "x"}]}, "drafters.0.lora"),
        ({"drafters": [{**MODEL, "dtype": "fp8"}]}, "drafters.0.dtype: fp8"),
        ({"target": {"model": "m", "device": "cuda:0", "batch_invariant": True}}, "batch_invariant"),
        (
            {"drafters": [{**MODEL, "link": {"tensors": "collective"}}], "telemetry": {"record": "run"}},
            "telemetry.record with drafters.0.link.tensors: collective",
        ),
    ],
)
def test_what_is_not_here_yet_is_refused_by_name(sections: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match="not in this release") as caught:
        parse_config(settings(**sections))
    assert named in caught.value.message
    assert caught.value.fix


def test_any_value_can_be_set() -> None:
    config = load_config(
        None,
        sets=[
            "target.model=m",
            "drafters.0.kind=ngram",
            "drafters.0.num_draft_tokens=6",
            "speculation.max_wait_s=1e-3",
        ],
    )
    assert config.drafters[0].num_draft_tokens == 6
    assert config.speculation.max_wait_s == 1e-3


def test_options_and_sets_win_over_the_file_in_this_order(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "target: {model: a}\ndrafters: [{kind: ngram}, {kind: ngram}]\nspeculation: {budget: 1}", encoding="utf-8"
    )
    overrides = [("target.model", "b"), ("speculation.budget", 2), ("drafters.*.num_draft_tokens", 3)]
    config = load_config(path, sets=["speculation.budget=3"], overrides=overrides)
    assert (config.target.model, config.speculation.budget) == ("b", 3)
    assert [drafter.num_draft_tokens for drafter in config.drafters] == [3, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budget", "not of the form place=value"),
        ("a..b=1", "not of the form place=value"),
        ("speculation.budget=[", "not YAML"),
        ("sampling.stop=2020-13-45", "not YAML"),
        ("sampling.stop=" + "[" * 5000, "not YAML"),
        ("drafters.7.kind=ngram", "'7' is no item of the list"),
        ("drafters.x.kind=ngram", "'x' is no item of the list"),
        ("target.model.x=1", "what stands before 'x' has no keys"),
        ("speculation.budgt=1", "did you mean 'budget'"),
    ],
)
def test_bad_sets_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, sets=["target.model=m", "drafters=[]", text])
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"target: {model: m", "not valid YAML"),
        (b"target: {model: m}\ntarget: {model: n}", "'target' is there twice"),
        (b"- 1", "must hold key: value pairs"),
        (b"\xff\xfe\x00", "not text in UTF-8"),
        (b"target: !!python/object:os.system {}", "not valid YAML"),
        (b"", "target: missing"),
        (b"a: " + b"[" * 5000, "not valid YAML"),
        (b"a: 2020-13-45", "not valid YAML"),
        (b"a: " + b"9" * 5000, "not valid YAML"),
    ],
)
def test_unreadable_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(path) in caught.value.message
    assert message in caught.value.message


def test_a_missing_file_is_refused_with_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "there.yaml").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="no such file") as caught:
        load_config(tmp_path / "their.yaml")
    assert "there.yaml" in (caught.value.fix or "")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_no_target_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="no target model"):
        load_config(None)


def test_unknown_drafter_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="no drafter is called 'x'") as caught:
        parse_config(settings(drafters=[NGRAM])).drafter("x")
    assert "ngram0" in (caught.value.fix or "")


scalars = st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=4)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
keys = st.sampled_from([*Config.model_fields, "model", "kind", "name", "budget", "x"])


@given(st.dictionaries(keys, values | st.dictionaries(keys, values, max_size=3), max_size=4))
def test_no_data_causes_anything_but_our_errors(data: dict[str, Any]) -> None:
    try:
        parse_config(data)
    except DistSpecError as caught:
        message = caught.message
    else:
        message = "accepted"
    assert message


@given(st.text(max_size=30))
def test_no_set_causes_anything_but_our_errors(text: str) -> None:
    with suppress(DistSpecError):  # a text may be a setting: constants of the code base are tried too
        load_config(None, sets=[text])


def test_several_drafters_may_live_inside_the_leader() -> None:
    inside = [{"kind": kind, "name": kind, "placement": "leader"} for kind in ("ngram", "suffix")]
    config = parse_config({"target": {"model": "m"}, "drafters": inside})
    assert [drafter.name for drafter in config.drafters] == ["ngram", "suffix"]
    assert config.process_drafters == ()
    with pytest.raises(ConfigError, match="are called 'ngram'"):
        parse_config({"target": {"model": "m"}, "drafters": [inside[0], inside[0]]})
