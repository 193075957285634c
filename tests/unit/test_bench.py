"""The job behind `generate`, without processes: variants, streaming, stop strings, and what is refused before it starts."""

from __future__ import annotations

import socket
import tempfile
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dist_spec.bench.compare import CONTROLS, VARIANTS, variant_config
from dist_spec.bench.deployment import Deployment
from dist_spec.bench.generate import Options, generate
from dist_spec.bench.printer import TextPrinter
from dist_spec.bench.run import Job, run_jobs
from dist_spec.config import Config, parse_config
from dist_spec.core.messages import Close, Commit, Message, Open, Ping
from dist_spec.core.prefix import Prefix
from dist_spec.core.types import Sampling
from dist_spec.errors import ConfigError, DistSpecError, RequestError, TransportError, UnsupportedError
from dist_spec.models.tokenizer import load_tokenizer
from dist_spec.server.client import Client
from dist_spec.transports.base import LEADER

TINY = "random:llama?seed=1"
PROMPT = (1, 2, 3)
BLOCKS = ((10, 11), (12, 13, 14), (15,))


def configured(**sections: Any) -> Config:
    target = {"model": TINY, "dtype": "float32", **sections.pop("target", {})}
    return parse_config({"target": target, "drafters": [{"kind": "ngram"}], **sections})


class Leader:
    """A transport whose other end answers a request with all its commits and the end at once."""

    def __init__(self) -> None:
        self.waiting: list[Message] = [Ping(num_drafters=1)]

    def send(self, peer: str, message: Message) -> None:
        if isinstance(message, Open):
            prefix = Prefix(list(PROMPT))
            for block in BLOCKS:
                self.waiting.append(
                    Commit(
                        request=message.request,
                        generation=0,
                        base_length=len(prefix),
                        base_digest=prefix.digest,
                        tokens=np.array(block, np.int32),
                    )
                )
                prefix.extend(block)
            self.waiting.append(Close(request=message.request, generation=0, reason="length"))

    def receive(self, timeout_s: float) -> list[tuple[str, Message]]:
        arrived, self.waiting = self.waiting, []
        return [(LEADER, message) for message in arrived]

    def close(self) -> None: ...


def test_commits_that_arrive_together_are_passed_on_once_and_in_order() -> None:
    deployment = SimpleNamespace(client=Client(cast(Any, Leader()), name="f"), check=lambda: None, tag="", shared=False)
    shown: list[int] = []
    result = run_jobs(
        cast(Deployment, deployment),
        [Job(prompt=PROMPT, sampling=Sampling(max_tokens=6))],
        concurrency=1,
        name="r",
        on_tokens=lambda index, tokens, kinds: shown.extend(tokens),
    )
    assert shown == result.streams[0].tokens == [token for block in BLOCKS for token in block]


@pytest.mark.parametrize("colour", [True, False])
@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(
    ("text", "reason", "shown"),
    [
        ("one END", "stop", "one "),
        ("one END two", "length", "one END two"),  # as with `min_tokens`: it ended nothing
        ("one END two END", "stop", "one END two "),
        ("one EN", "length", "one EN"),
    ],
)
def test_what_is_printed_stops_before_the_stop_string_that_ended_it(
    text: str, reason: str, shown: str, live: bool, colour: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = load_tokenizer(TINY)
    tokens = tokenizer.encode(text)
    printer = TextPrinter(tokenizer, texts=["p"], live=live, quiet=False, stops=["END"], colour=colour)
    for token in tokens:
        printer.show(0, [token])
    result = cast(Any, SimpleNamespace(streams=[SimpleNamespace(tokens=tokens, kinds=[], reason=reason)]))
    printer.finish(result)
    assert capsys.readouterr().out == f"{shown}\n"
    assert printer.outputs(cast(Any, SimpleNamespace(runs={"speculative": [result]}))) == [shown]


@pytest.mark.parametrize("variant", [*VARIANTS[1:], *CONTROLS])
def test_only_the_configuration_as_given_takes_its_port_and_its_record(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dist_spec.bench.compare.available_cores", lambda: [0, 1])
    config = configured(
        drafters=[
            {"kind": "plugin", "target": "a:B", "options": {"x": None}},
            {"kind": "ngram", "placement": "leader"},
        ],
        transport={"bind": "tcp://127.0.0.1:5555"},
        telemetry={"record": "r.jsonl", "trace": "t.json", "decisions": "d.jsonl"},
    )
    assert variant_config(config, "speculative") == config
    other = variant_config(config, variant, vocab_size=100)
    assert other is not None
    assert other.transport.bind == "tcp://127.0.0.1:0"
    telemetry = other.telemetry
    assert (telemetry.record, telemetry.trace, telemetry.decisions) == (None, None, None)
    if variant == "ready":
        assert other.drafters[0] == config.drafters[0]
        assert len(other.process_drafters) == 2
    elif variant == "off":
        assert (other.drafters, other.speculation.budget) == (config.drafters, 0)
    elif variant == "random_drafter":
        assert [drafter.name for drafter in other.drafters] == ["random"]
    else:
        assert other.drafters == ()


@pytest.mark.parametrize(
    ("config", "options", "kind", "named"),
    [
        ({}, {"json_file": Path("/nowhere/out.json")}, ConfigError, "--json: /nowhere/out.json"),
        ({}, {"json_file": Path("/")}, ConfigError, "--json: /"),
        ({"telemetry": {"record": "/nowhere/run"}}, {}, ConfigError, "telemetry.record: /nowhere/run"),
        ({"telemetry": {"trace": "/nowhere/run"}}, {}, ConfigError, "telemetry.trace: /nowhere/run"),
        ({"telemetry": {"decisions": "/nowhere/run"}}, {}, ConfigError, "telemetry.decisions: /nowhere/run"),
        ({}, {"builtin": 1}, RequestError, "exclude each other"),
        ({}, {"compare_hf": True}, RequestError, "a model in a folder"),
        ({"sampling": {"temperature": 1.0}}, {"compare_hf": True}, RequestError, "greedy decoding only"),
        ({"target": {"device": "cuda:0"}}, {"compare_hf": True}, UnsupportedError, "the CPU only"),
    ],
)
def test_what_cannot_end_well_is_refused_before_anything_starts(
    config: dict[str, Any],
    options: dict[str, Any],
    kind: type[DistSpecError],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a deployment was started")

    monkeypatch.setattr("dist_spec.bench.generate.Deployment", refuse)
    with pytest.raises(kind, match=named) as caught:
        generate(configured(**config), prompts=["hi"], options=Options(chat=False, quiet=True, **options))
    assert caught.value.fix


def test_a_frontend_pings_as_often_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a leader with a short `dead_after_s` ends its requests, and everything is begun anew again and again."""
    deployment = Deployment("test", configured(transport={"heartbeat_s": 0.1, "dead_after_s": 0.3}))
    client, now, pings = deployment.client, 100.0, []
    try:
        monkeypatch.setattr("dist_spec.server.client.monotonic", lambda: now)
        monkeypatch.setattr(client.transport, "send", lambda peer, message: pings.append((now, message)))
        monkeypatch.setattr(client.transport, "receive", lambda timeout_s: [(LEADER, Ping())])
        for _ in range(40):
            client.poll(timeout_s=0.0)
            now += 0.025
    finally:
        monkeypatch.undo()
        deployment.__exit__(None, None, None)
    times = [at for at, message in pings if isinstance(message, Ping)]
    assert len(times) == 10
    assert max(later - at for at, later in pairwise(times)) < 0.15


@pytest.mark.parametrize("domain", ["a:b", "x" * 65])
def test_a_domain_is_a_short_label(domain: str) -> None:
    with pytest.raises(RequestError, match="--domain"):
        generate(configured(), prompts=["hi"], options=Options(chat=False, quiet=True, domain=domain))


def test_a_deployment_that_cannot_be_made_leaves_no_folder_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TransportError, match="in use"):
            Deployment("test", configured(transport={"bind": address}))
    with pytest.raises(ConfigError, match="no core 7777"):
        Deployment("test", configured(target={"cores": [7777]}))
    with pytest.raises(ConfigError, match=r"telemetry\.trace: /nowhere"):
        Deployment("test", configured(telemetry={"trace": "/nowhere/t.json"}))
    assert not list(tmp_path.iterdir())


def test_a_deployment_leaves_no_folder_behind_even_when_its_end_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = Deployment("test", configured())
    assert (deployment.folder / "config.yaml").is_file()

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(deployment.supervisor, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        deployment.__exit__(None, None, None)
    assert not deployment.folder.exists()
