"""The job behind `generate`, without processes: variants, streaming, stop strings, and what is refused before it starts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dist_spec.bench.compare import VARIANTS, variant_config
from dist_spec.bench.deployment import Deployment
from dist_spec.bench.generate import generate
from dist_spec.bench.run import Job, run_jobs
from dist_spec.bench.show import StopFilter, TextPrinter, cut_at_stop
from dist_spec.config import Config, parse_config
from dist_spec.core.messages import Close, Commit, Message, Open, Ping
from dist_spec.core.prefix import Prefix
from dist_spec.core.types import Sampling
from dist_spec.errors import ConfigError, DistSpecError, RequestError, UnsupportedError
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
    deployment = SimpleNamespace(client=Client(cast(Any, Leader()), name="f"), check=lambda: None)
    shown: list[int] = []
    result = run_jobs(
        cast(Deployment, deployment),
        [Job(prompt=PROMPT, sampling=Sampling(max_tokens=6))],
        concurrency=1,
        name="r",
        on_tokens=lambda index, tokens: shown.extend(tokens),
    )
    assert shown == result.streams[0].tokens == [token for block in BLOCKS for token in block]


@pytest.mark.parametrize("stops", [(), ("STOP",), ("xy", "yz"), ("b", "abc"), ("a",)])
@pytest.mark.parametrize("text", ["", "a", "one STOP two", "STO", "xxyz", "ab", "aab", "no end in sight"])
@pytest.mark.parametrize("size", [1, 2, 100])
def test_streamed_text_ends_before_a_stop_string(text: str, stops: tuple[str, ...], size: int) -> None:
    until_stop = StopFilter(stops)
    shown = "".join(until_stop.push(text[at : at + size]) for at in range(0, len(text), size)) + until_stop.flush()
    if size < 100:  # the first stop string to be complete ends the text, whichever begins first
        first = min(
            (text[: end + 1] for end in range(len(text)) if _ends(text[: end + 1], stops)), key=len, default=text
        )
        assert shown == cut_at_stop(first, stops)
    else:
        assert shown == cut_at_stop(text, stops)


def _ends(text: str, stops: tuple[str, ...]) -> bool:
    return any(stop in text for stop in stops)


@pytest.mark.parametrize("live", [True, False])
def test_what_is_printed_stops_before_the_stop_string(live: bool, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = load_tokenizer(TINY)
    tokens = tokenizer.encode("one END two")
    printer = TextPrinter(tokenizer, texts=["p"], live=live, quiet=False, stops=["END"])
    for token in tokens:
        printer.show(0, [token])
    printer.finish(cast(Any, SimpleNamespace(streams=[SimpleNamespace(tokens=tokens)])))
    assert capsys.readouterr().out == "one \n"


@pytest.mark.parametrize("variant", VARIANTS[1:])
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
        telemetry={"record": "r.jsonl"},
    )
    assert variant_config(config, "speculative") == config
    other = variant_config(config, variant)
    assert other is not None
    assert other.transport.bind == "tcp://127.0.0.1:0"
    assert other.telemetry.record is None
    if variant == "ready":
        assert other.drafters[0] == config.drafters[0]
        assert len(other.process_drafters) == 2
    else:
        assert other.drafters == ()


@pytest.mark.parametrize(
    ("config", "options", "kind", "named"),
    [
        ({}, {"json_file": Path("/nowhere/out.json")}, ConfigError, "--json: /nowhere/out.json"),
        ({}, {"json_file": Path("/")}, ConfigError, "--json: /"),
        ({"telemetry": {"record": "/nowhere/run"}}, {}, ConfigError, "telemetry.record: /nowhere/run"),
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
        generate(
            configured(**config),
            prompts=["hi"],
            chat=False,
            stats=False,
            compare_plain=False,
            quiet=True,
            **{"json_file": None, **options},
        )
    assert caught.value.fix


def test_a_deployment_leaves_no_folder_behind_even_when_its_end_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = Deployment("test", configured())
    assert (deployment.folder / "config.yaml").is_file()

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(deployment.supervisor, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        deployment.__exit__(None, None, None)
    assert not deployment.folder.exists()
