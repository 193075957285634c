"""What is misconfigured is not started again by a launcher that restarts what fails."""

from __future__ import annotations

import pytest

from dist_spec.errors import ConfigError, DistSpecError, ModelError, TransportError, UnsupportedError, WorkerError
from dist_spec.workers.elastic import _is_agent, not_again


def ended(error: DistSpecError, **environ: str) -> bool:
    """Whether the launcher was asked to end."""
    calls: list[None] = []
    with pytest.raises(type(error)), not_again(environ, end=lambda: calls.append(None)):
        raise error
    return bool(calls)


@pytest.mark.parametrize("kind", [ConfigError, ModelError, UnsupportedError])
@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "3"}, True),
        ({"TORCHELASTIC_RESTART_COUNT": "3", "TORCHELASTIC_MAX_RESTARTS": "3"}, False),
        ({"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0"}, False),
        ({}, False),
    ],
)
def test_what_the_user_must_mend_ends_a_launcher_that_would_try_again(
    kind: type[DistSpecError], environ: dict[str, str], expected: bool
) -> None:
    assert ended(kind("x"), **environ) is expected


@pytest.mark.parametrize("kind", [TransportError, WorkerError])
def test_what_may_be_better_next_time_is_tried_again(kind: type[DistSpecError]) -> None:
    assert not ended(kind("x"), TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_MAX_RESTARTS="3")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/venv/bin/python /venv/bin/torchrun --nproc-per-node 3 -m dist_spec.cli launch x.yaml", True),
        ("python -m torch.distributed.run --nproc-per-node 3 -m dist_spec.cli launch x.yaml", True),
        ("/venv/bin/python /venv/bin/accelerate launch --num_processes 3 -m dist_spec.cli launch x.yaml", True),
        ("/bin/bash ./wrapper.sh", False),
        ("python my_program.py", False),
    ],
)
def test_only_a_launcher_is_asked_to_end(command: str, expected: bool) -> None:
    assert _is_agent(command.split()) is expected
