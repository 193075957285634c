"""The decisions file: what the session tells, with domain, entropy and time taken."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from dist_spec.telemetry.decisions import DecisionWriter, domain_of, entropy


def test_steps_that_left_no_record_lend_their_seconds_to_no_other(tmp_path: Path) -> None:
    """Steps 3 and 4 read parts of a prompt: what lies between the records of 2 and 5 is not what step 5 took."""
    busy = iter([1.0, 1.5, 9.0, 9.25])
    writer = DecisionWriter(tmp_path / "d.jsonl", busy_s=lambda: next(busy))
    for step in (1, 2, 5, 6):
        writer.row({"step": step, "request": "r", "generation": 0})
    writer.close()
    records = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    assert [record["actual_s"] for record in records] == [None, 0.5, None, 0.25]


def test_records_carry_domain_entropy_and_the_seconds_of_their_step(tmp_path: Path) -> None:
    busy = iter([10.0, 10.5, 12.0])
    writer = DecisionWriter(tmp_path / "d.jsonl", busy_s=lambda: next(busy))
    writer.logits(("code:x-0", 0), np.zeros(8, np.float32), temperature=0.0)
    for step, request in ((1, "code:x-0"), (1, "plain"), (2, "code:x-0"), (3, "plain")):
        writer.row(
            {
                "step": step,
                "request": request,
                "generation": 0,
                "scores": np.array([-0.5], np.float32),
                "budget": np.int64(4),
                "margin": math.nan,
            }
        )
    writer.close()
    records = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    assert writer.num_records == len(records) == 4
    assert [record["domain"] for record in records] == ["code", "", "code", ""]
    assert [record["actual_s"] for record in records] == [None, None, 0.5, 1.5]
    assert [record["entropy"] for record in records] == [pytest.approx(math.log(8)), None, None, None]
    assert (records[0]["scores"], records[0]["budget"], records[0]["margin"]) == ([-0.5], 4, None)


@pytest.mark.parametrize(("name", "domain"), [("code:t0-0-3", "code"), ("t0-0-3", ""), ("a:b:c", "a"), (":x", "")])
def test_a_request_carries_its_domain_in_front_of_its_name(name: str, domain: str) -> None:
    assert domain_of(name) == domain


def test_entropy() -> None:
    assert entropy(np.array([0.0, -np.inf, 0.0]), temperature=1.0) == pytest.approx(math.log(2))
    assert entropy(np.array([1000.0, 0.0]), temperature=1.0) == pytest.approx(0.0, abs=1e-9)
    logits = np.array([1.0, 2.0, 4.0])
    probs = np.exp(logits / 0.5) / np.exp(logits / 0.5).sum()
    assert entropy(logits, temperature=0.5) == pytest.approx(-(probs * np.log(probs)).sum())
