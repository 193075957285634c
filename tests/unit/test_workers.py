"""Steps and settings of the processes that need neither a model nor a socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_spec.config import Config, parse_config
from dist_spec.core.messages import Open
from dist_spec.core.plan import Plan
from dist_spec.core.types import Sampling
from dist_spec.drafters.ngram import NgramDrafter
from dist_spec.errors import ConfigError, ProtocolError, WorkerError
from dist_spec.sim.devices import ScriptedTarget
from dist_spec.transports.inproc import InprocHub
from dist_spec.workers import draft_app
from dist_spec.workers.files import ProcessFiles
from dist_spec.workers.settings import speculation_of
from dist_spec.workers.target import TargetWorker
from dist_spec.workers.up_app import run_up
from tests.unit.session_cases import ints, target_session


def test_a_name_used_again_at_once_is_another_request_to_the_local_drafter() -> None:
    texts = [[1, 2, 3, 4] * 30, [2, 4, 1, 3] * 15]
    current = texts[0]
    worker = TargetWorker(
        target_session(),
        backend=ScriptedTarget(lambda key: current),
        transport=InprocHub().leader(),
        local={"ngram": NgramDrafter()},
    )
    for current, prompt in zip(texts, (60, 9), strict=True):
        message = Open(
            request="r", generation=0, prompt=ints(current[:prompt]), sampling=Sampling(max_tokens=20, ignore_eos=True)
        )
        assert worker.open(message, now=0.0) == []
        steps = 0
        while isinstance(plan := worker.begin(now=0.0), Plan):
            worker.finish(plan, now=0.0)
            steps += 1
        assert steps < 20  # guesses were right


@pytest.mark.parametrize("name", ["record", "trace", "decisions"])
def test_a_file_without_a_place_is_refused_before_the_work(name: str, tmp_path: Path) -> None:
    """By every process that would write it, and by whoever starts them."""
    data = {"target": {"model": "random:llama"}, "telemetry": {name: str(tmp_path / "nowhere" / "file")}}
    config = parse_config(data)
    with pytest.raises(ConfigError, match=rf"telemetry\.{name}: .* cannot be written") as caught:
        ProcessFiles(config.telemetry, machine="leader")
    assert caught.value.fix
    with pytest.raises(ConfigError, match=rf"telemetry\.{name}"):
        run_up(config, bind="tcp://127.0.0.1:0", stopping=lambda: True)
    data["telemetry"] = {name: str(tmp_path / "file")}
    ProcessFiles(parse_config(data).telemetry, machine="leader").save()


@pytest.mark.parametrize(("drafters", "depth"), [([8], 24), ([8, 12], 36), ([], 16)])
def test_the_leader_reckons_with_the_deepest_tree_of_any_drafter(drafters: list[int], depth: int) -> None:
    entries = [{"kind": "ngram", "num_draft_tokens": number} for number in drafters]
    config = Config.model_validate({"target": {"model": "m"}, "drafters": entries})
    assert speculation_of(config).num_draft_tokens == depth
    for entry in config.drafters:
        assert speculation_of(config, entry).num_draft_tokens <= depth


def test_a_drafter_that_fails_while_drafting_is_no_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2 would end the whole deployment; law 2: a broken drafter is plain decoding."""

    def fail(*args: object, **kwargs: object) -> None:
        raise ProtocolError("tokens: a token id lies outside", fix="mend it")

    monkeypatch.setattr(draft_app, "run_draft_loop", fail)
    config = Config.model_validate({"target": {"model": "m"}, "drafters": [{"kind": "ngram", "name": "n"}]})
    with pytest.raises(WorkerError, match="drafter n: tokens") as caught:
        draft_app.run_draft(config, name="n", connect=f"ipc://{tmp_path}/none", stopping=lambda: False)
    assert (caught.value.exit_code, caught.value.fix) == (1, "mend it")
