"""The figures of a run: where its time went, what was accepted at which depth, times between tokens, calibration."""

from __future__ import annotations

import pytest

from dist_spec.bench.accounts import (
    acceptance_by_depth,
    calibrations,
    first_token_times,
    occupancy,
    quantile,
    ready_depths,
    request_shares,
    time_shares,
    token_gaps,
    transfers,
)
from dist_spec.bench.compare import Comparison
from dist_spec.bench.run import RunResult, merge_runs, stats_between
from dist_spec.core.counts import SessionCounts
from dist_spec.core.plan import PlanRow
from dist_spec.core.types import Sampling
from tests.unit.run_cases import forward_row, run, stream


def test_a_commit_of_k_tokens_stands_for_k_gaps() -> None:
    one = stream([(1.0, 2), (1.3, 3), (1.5, 1)])
    assert token_gaps([one]) == pytest.approx([0.1, 0.1, 0.1, 0.2])
    assert first_token_times([one, stream([])]) == [1.0]
    two = stream([(1.0, 1)])
    assert token_gaps([two]) == []
    assert sum(token_gaps([one])) == pytest.approx(0.5)  # gaps add up to the time after the first token


def test_decoding_is_timed_from_the_first_commit() -> None:
    queued = stream([(10.0, 2), (10.4, 3), (10.5, 1)])  # ten seconds of queue and prompt do not count
    once = stream([(20.0, 1)])
    ours = RunResult(streams=[queued, once, stream([])], wall_s=20.0)
    assert ours.decode_tokens_per_s == pytest.approx(4 / 0.5)
    assert RunResult(streams=[once], wall_s=20.0).decode_tokens_per_s == 0.0
    plain = RunResult(streams=[stream([(5.0, 1), (6.0, 4)])], wall_s=6.0)
    comparison = Comparison(jobs=[], runs={"speculative": [ours], "plain": [plain]})
    assert comparison.decode_ratio("plain") == pytest.approx(8.0 / 4.0)
    assert comparison.decode_ratio("off") is None
    comparison.runs["off"] = [RunResult(streams=[once], wall_s=20.0)]
    assert comparison.decode_ratio("off") is None


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([3.0], 0.99, 3.0), ([4.0, 1.0, 2.0, 3.0], 0.5, 2.0), (list(range(100)), 0.99, 98)],
)
def test_quantiles_are_values_that_occurred(values: list[float], share: float, expected: float | None) -> None:
    assert quantile(values, share) == expected


def test_every_second_is_forward_coordination_or_idle_by_cause() -> None:
    shares = time_shares(
        run(depths={0: (4, 4)}, forward_s=3.0, coordination_s=0.5, waits_s=0.25, queue_empty_s=0.25, outside_s=0.1)
    )
    assert (shares.forward_s, shares.coordination_s) == (3.0, 0.5)
    assert shares.idle_s == {"wait_pull": 0.25, "queue_empty": 0.25}
    assert shares.accounted_s == pytest.approx(shares.wall_s)
    assert shares.outside_s == pytest.approx(0.1)


def test_occupancy_of_every_device() -> None:
    result = run(depths={0: (1, 1)}, forward_s=3.0, coordination_s=1.0)
    result.stats |= {"drafter_a_busy_s": 2.0, "drafter_b.c_busy_s": 9.0}
    assert occupancy(result) == {"target": 0.75, "a": 0.5, "b.c": 1.0}


def test_shares_of_the_requests_time() -> None:
    stats = {"queue_s": 1.0, "ttft_s": 3.0, "decode_s": 5.0}
    result = RunResult(streams=[stream([(9.0, 1)], closed_s=10.0, stats=stats)], wall_s=10.0)
    shares = request_shares(result, detokenise_s=0.5)
    assert shares == pytest.approx({"queue": 0.1, "prefill": 0.2, "decode": 0.5, "detokenisation": 0.05, "rest": 0.15})
    assert sum(shares.values()) == pytest.approx(1.0)
    assert request_shares(RunResult(streams=[], wall_s=0.0)) == {}


def test_what_lies_before_the_first_request_is_not_idle_time_of_the_run() -> None:
    """The leader's totals say nothing of when a run began: that its requests tell, by its own clock."""
    first = stream([(1.0, 1)], stats={"opened_at_s": 107.0})
    after = {"clock_s": 110.0, "born_s": 100.0, "time_idle_s": 8.0, "time_forward_s": 2.0, "session_rows": 3.0}
    stats = stats_between({}, after, streams=[first])
    assert stats["time_idle_s"] == pytest.approx(1.0)  # 7 s before it, 1 s within
    assert stats["leader_wall_s"] == pytest.approx(3.0)
    later = {"clock_s": 130.0, "born_s": 100.0, "time_idle_s": 23.5, "time_forward_s": 6.5, "session_rows": 10.0}
    second = stream([(1.0, 1)], stats={"opened_at_s": 125.0})
    stats = stats_between(after, later, streams=[second])
    assert stats["time_idle_s"] == pytest.approx(0.5)
    assert stats["leader_wall_s"] == pytest.approx(5.0)
    assert (stats["session_rows"], stats["time_forward_s"]) == (7.0, 4.5)


def test_a_total_that_fell_began_anew() -> None:
    """A drafter that was started again tells what it did since; nothing in a report is negative."""
    before = {"drafter_a_busy_s": 5.0, "drafter_a_nodes": 100.0, "drafter_b_nodes": 7.0, "handling_ms_median": 2.0}
    after = {"drafter_a_busy_s": 0.5, "drafter_a_nodes": 30.0, "drafter_b_nodes": 9.0, "handling_ms_median": 1.0}
    assert stats_between(before, after, streams=[]) == {
        "drafter_a_busy_s": 0.5,
        "drafter_a_nodes": 30.0,
        "drafter_b_nodes": 2.0,
        "handling_ms_median": 1.0,
    }


def test_runs_add_up_but_medians_do_not() -> None:
    parts = [run(depths={0: (2, 2), 3: (1, 4)}, forward_s=1.0, coordination_s=0.5) for _ in range(3)]
    for number, part in enumerate(parts):
        part.stats["coordination_ms_median"] = float(number)
    whole = merge_runs(parts)
    assert whole.stats["coordination_ms_median"] == 1.0
    assert whole.stats["session_rows"] == 9
    assert (whole.num_tokens, whole.wall_s) == (18, pytest.approx(4.5))


def test_nodes_are_counted_by_their_depth_in_the_tree() -> None:
    """Two branches below the head, one of them two deep, the first accepted to its end; then a plain step."""
    counts = SessionCounts()
    tree = PlanRow(
        key=("r", 0),
        forward=forward_row(parents=[-1, -1, 0, 2]),
        sampling=Sampling(),
        noise_index=0,
        final=True,
        ready_depth=3,
        depths=(1, 1, 2, 3),
        base_length=1,
    )
    counts.row(tree, num_accepted=2, num_kept=3)
    counts.row(tree, num_accepted=0, num_kept=1)
    plain = PlanRow(
        key=("r", 0),
        forward=forward_row(parents=[]),
        sampling=Sampling(),
        noise_index=3,
        final=True,
        ready_depth=0,
        base_length=4,
    )
    counts.row(plain, num_accepted=0, num_kept=1)
    assert counts.tree_depths == {1: [2, 4, 1], 2: [2, 2, 1], 3: [2, 2, 0]}
    stats = {
        f"tree_{depth}_{name}": float(value)
        for depth, row in counts.tree_depths.items()
        for name, value in zip(("rows", "verified", "accepted"), row, strict=True)
    }
    assert [(row.depth, row.verified, row.accepted, row.acceptance) for row in acceptance_by_depth(stats)] == [
        (1, 4, 1, 0.5),
        (2, 2, 1, 0.5),
        (3, 2, 0, 0.0),
    ]
    assert sum(row.accepted for row in acceptance_by_depth(stats)) == counts.accepted
    assert sum(row.verified for row in acceptance_by_depth(stats)) == counts.verified


def test_ready_depths_are_in_order_and_empty_ones_left_out() -> None:
    stats = {
        "depth_10_rows": 2.0,
        "depth_10_tokens": 9.0,
        "depth_2_rows": 4.0,
        "depth_2_tokens": 6.0,
        "depth_3_rows": 0.0,
    }
    assert ready_depths(stats) == [(2, 4, 6), (10, 2, 9)]


def test_calibration_error_weighs_every_sample_alike() -> None:
    stats = {
        "calibration_ngram0_2_count": 300.0,
        "calibration_ngram0_2_predicted": 60.0,
        "calibration_ngram0_2_observed": 90.0,
        "calibration_ngram0_7_count": 100.0,
        "calibration_ngram0_7_predicted": 70.0,
        "calibration_ngram0_7_observed": 30.0,
        "calibration_path_1_count": 0.0,
        "calibration_path_1_predicted": 0.0,
        "calibration_path_1_observed": 0.0,
    }
    found = calibrations(stats)
    assert found["ngram0"].bins == [(300, pytest.approx(0.2), 0.3), (100, pytest.approx(0.7), 0.3)]
    assert found["ngram0"].error == pytest.approx((300 * 0.1 + 100 * 0.4) / 400)
    assert found["ngram0"].worst(least=200) == pytest.approx(0.1)
    assert (found["path"].error, found["path"].worst()) == (None, None)


def test_the_ledger_by_link_and_kind() -> None:
    stats = {
        "link_a_b_in_propose_messages": 3.0,
        "link_a_b_in_propose_bytes": 90.0,
        "link_a_b_in_propose_hidden_s": 0.25,
        "link_c_out_commit_messages": 0.0,
        "link_*_in_propose_messages": 0.0,
        "link_*_in_propose_exposed_s": 0.5,
    }
    rows = transfers(stats)
    assert [(row["peer"], row["direction"], row["kind"], row["messages"], row["bytes"]) for row in rows] == [
        ("a_b", "in", "propose", 3, 90),
        ("*", "in", "propose", 0, 0),
    ]
    assert (rows[0]["hidden_s"], rows[1]["exposed_s"]) == (0.25, 0.5)
    stats["link_*_in_propose_exposed_s"] = 0.0  # it was waited for in earlier runs only
    assert [row["peer"] for row in transfers(stats)] == ["a_b"]
