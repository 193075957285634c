"""The table to pick from, the gap between forced and live, and the report: arithmetic by hand."""

from __future__ import annotations

import json

import pytest

from dist_spec.bench.score.expected import Seconds, choices
from dist_spec.bench.score.forced import Spot
from dist_spec.bench.score.gap import explain
from dist_spec.bench.score.live import MEANINGS, LiveRun, live_config
from dist_spec.bench.score.ranks import Trail
from dist_spec.bench.score.report import Scored, report_of, whole_report
from dist_spec.bench.score.show import show_all
from dist_spec.config import parse_config
from dist_spec.core.control.costs import VerifyCost
from tests.unit.run_cases import run


def trail(*ranks: int) -> Trail:
    return Trail(ranks=ranks, known=4)


TEXTS = [[trail(1, 1, 2, 1), trail(1, 2, 0), trail(2, 1, 1, 1), trail(0), trail(1, 1, 1, 1)]] * 2


def seconds(*, draft_s: float = 0.001, verify_s: float = 0.010, per_node_s: float = 0.0005) -> Seconds:
    return Seconds(
        target_token_s=verify_s,
        draft_token_s=draft_s,
        draft_first_s=2 * draft_s,
        draft_wide_s=3 * draft_s,
        width=5,
        verify=VerifyCost.of(lambda rows, nodes: verify_s + per_node_s * nodes, max_rows=1, max_nodes=64),
    )


def test_a_chain_of_the_table_by_hand() -> None:
    [row] = choices(TEXTS, seconds(), chains=(2,), trees=())
    length = 1 + 3 / 5 + 2 / 5
    assert row.length == pytest.approx(length)
    assert row.verify_s == pytest.approx(0.011)
    assert row.draft_s == pytest.approx(0.003)
    assert row.ahead == pytest.approx(length / 0.011)
    assert row.asked == pytest.approx(length / 0.014)
    assert row.speedup_ahead == pytest.approx(row.ahead * 0.010)


def test_drafting_token_by_token_bounds_what_is_drafted_ahead() -> None:
    [row] = choices(TEXTS, seconds(draft_s=0.02), chains=(2,), trees=())
    assert row.ahead == pytest.approx(50.0)
    [row] = choices(TEXTS, seconds(draft_s=0.02), chains=(2,), trees=(), one_by_one=False)
    assert row.ahead > 100.0


def test_the_table_grows_with_its_sizes() -> None:
    rows = choices(TEXTS, seconds(), chains=(1, 2, 3, 4), trees=(1, 2, 4, 64))
    for shape in ("chain", "tree"):
        mine = [row for row in rows if row.shape == shape]
        for column in ("nodes", "depth", "length", "verify_s", "draft_s"):
            values = [getattr(row, column) for row in mine]
            assert values == sorted(values), (shape, column)
    chain = {row.nodes: row.length for row in rows if row.shape == "chain"}
    assert all(row.length >= chain[row.nodes] for row in rows if row.shape == "tree" and row.nodes in chain)
    assert rows[-1].nodes < 64  # no more paths than there are


def test_where_no_guess_is_ever_right_there_is_no_tree_to_choose() -> None:
    never = [[Trail(ranks=(0,), known=4)] * 40]
    rows = choices(never, seconds(), chains=(1, 4))
    assert [(row.shape, row.nodes, row.length) for row in rows] == [("chain", 1, 1.0), ("chain", 4, 1.0)]


def test_the_gap_by_hand_and_its_parts_add_up() -> None:
    texts = [[trail(1, 1, 1, 1), trail(1, 0), trail(0), trail(1, 0), trail(0)]]
    found = explain(texts, depth=2, live=1.6, ready_depths=[(0, 5, 5), (1, 3, 6), (2, 2, 5)])
    # Verifications start at 0 (two accepted) and 3 (one accepted): expected 1 + 1.5; with one at hand 1 + 1.
    assert found.teacher_forced == pytest.approx(1 + 3 / 5 + 1 / 5)
    assert found.start_positions == pytest.approx(2.5 - 1.8)
    assert found.no_tree == pytest.approx(0.5 * 1.5)
    assert found.shallow == pytest.approx(0.3 * 0.5)
    assert (found.ready_share, found.full_share) == (pytest.approx(0.5), pytest.approx(0.2))
    parts = found.teacher_forced + found.start_positions - found.no_tree - found.shallow + found.rest
    assert parts == pytest.approx(found.live)


def test_where_there_is_nothing_to_guess_nothing_comes_late() -> None:
    silent = Trail(ranks=(0,), known=4, silent=True)
    texts = [[silent, trail(1, 1, 1, 1), trail(1, 0), trail(0), silent, trail(1, 1, 1, 0), trail(0), trail(0)]]
    # Starts: 0 and 4 (silent), 1 and 5 (two accepted): half of the verifications have nothing.
    found = explain(texts, depth=2, live=2.0, ready_depths=[(0, 2, 2), (2, 2, 6)])
    assert (found.silent_share, found.no_tree, found.rest) == (0.5, 0.0, pytest.approx(0.0))
    late = explain(texts, depth=2, live=1.5, ready_depths=[(0, 3, 3), (2, 1, 3)])
    assert late.no_tree == pytest.approx(0.25 * 2)
    assert late.rest == pytest.approx(0.0)


def test_a_run_that_never_had_a_tree_lost_it_all() -> None:
    found = explain(TEXTS, depth=2, live=1.0, ready_depths=[])
    assert found.ready_share == 0.0
    assert found.rest == pytest.approx(0.0)


def scored() -> Scored:
    spots = [[Spot(trail=one, guesses=(1, 2)) for one in text] for text in TEXTS]
    live = LiveRun(mode="synchronous", by_domain={"chat": run(depths={0: (1, 1), 2: (3, 7)}, forward_s=1.0)})
    return Scored(temperature=0.0, spots={"chat": spots}, live={"synchronous": live})


def test_the_report_has_its_documented_keys_and_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    table = choices(TEXTS, seconds(), chains=(1, 2, 4), trees=(4,))
    one = report_of(scored(), num_draft_tokens=2, depth=4, table=table)
    report = whole_report({"target": "t", "num_draft_tokens": 2}, seconds(), [one])
    assert json.loads(json.dumps(report)) == report
    assert {"acceptance_length", "live", "chain", "table", "cost", "runs", "temperature"} <= report.keys()
    assert report["acceptance_length"] == report["live"]["synchronous"]["acceptance_length"] == 8 / 4
    assert report["chain"]["acceptance_length"] == pytest.approx(1 + 3 / 5 + 2 / 5)
    assert report["cost"]["ratio"] == pytest.approx(0.1)
    assert one["domains"]["chat"]["live"] == {"synchronous": 2.0}
    assert one["domains"]["chat"]["num_positions"] == 10
    assert one["after_a_miss"]["observed"]["next_guesses"] == pytest.approx([0.5, 0.5, 0.5])
    assert one["live"]["synchronous"]["gap"]["depth"] == 2
    assert [row["nodes"] for row in report["table"]][:3] == [1, 2, 4]
    show_all(Console(width=200), report)
    shown = capsys.readouterr().out
    assert "chain of 2: 2.000 tokens per verification" in shown
    assert "10.0%" in shown


def test_without_a_live_run_the_headline_is_walked() -> None:
    one = scored()
    one.live = {}
    report = report_of(one, num_draft_tokens=2, depth=4, table=[])
    assert report["acceptance_length"] == report["chain"]["walked_length"]
    assert report["acceptance_from"].startswith("teacher-forced")


@pytest.mark.parametrize("mode", [*MEANINGS])
def test_live_runs_have_this_drafter_alone_and_a_fixed_chain(mode: str) -> None:
    config = parse_config(
        {
            "target": {"model": "random:llama"},
            "drafters": [{"kind": "suffix", "placement": "leader"}, {"kind": "ngram"}],
            "verification": {"rule": "auto"},
            "telemetry": {"trace": "t.json"},
            "transport": {"bind": "tcp://127.0.0.1:5555"},
        }
    )
    made = live_config(config, config.drafters[0], mode, depth=3)  # type: ignore[arg-type]
    assert (made.telemetry.trace, made.transport.bind) == (None, "tcp://127.0.0.1:0")
    if mode == "plain":
        assert made.drafters == ()
        return
    assert [(one.kind, one.placement) for one in made.drafters] == [("suffix", "process")]
    speculation = made.speculation
    if mode == "configured":
        assert speculation == config.speculation
        return
    assert (speculation.verify_shape, speculation.budget) == ("chain", 3)
    expected = ("none", "pull") if mode == "synchronous" else ("optimistic", "push")
    assert (speculation.growth, speculation.delivery) == expected
