"""The simulated cluster against the idealised event simulation of each published method (docs/benchmarks.md)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dist_spec.sim.table import B_VALUES, METHODS, Method, cell, main

TOLERANCE = 0.04

# Tokens/s of the idealised simulation, means over three runs (two for the last column) of 4,000 to 30,000 tokens each.
# One figure per value of b where the second guess matters.
REFERENCE: dict[tuple[float, float], dict[str, tuple[float, ...]]] = {
    (0.8, 0.0): {
        "sync chain": (119,),
        "sync tree": (157, 165),
        "optimistic": (133,),
        "fan_out/pull": (192, 206),
        "best_first/push": (217, 230),
    },
    (0.8, 5.0): {
        "sync chain": (91,),
        "sync tree": (118, 124),
        "optimistic": (113,),
        "fan_out/pull": (134, 142),
        "best_first/push": (182, 193),
    },
    (0.87, 0.0): {
        "sync chain": (144,),
        "sync tree": (171, 179),
        "optimistic": (171,),
        "fan_out/pull": (238, 251),
        "best_first/push": (258, 272),
    },
    (0.87, 0.5): {
        "sync chain": (140,),
        "sync tree": (166, 174),
        "optimistic": (168,),
        "fan_out/pull": (233, 247),
        "best_first/push": (255, 269),
    },
    (0.87, 5.0): {
        "sync chain": (114,),
        "sync tree": (132, 138),
        "optimistic": (145,),
        "fan_out/pull": (169, 177),
        "best_first/push": (220, 233),
    },
}
BY_NAME = {method.name: method for method in METHODS}


def measured(name: str, *, a: float, latency_ms: float, b: float, tokens: int, depths: Sequence[int] = ()) -> float:
    method = BY_NAME[name]
    if depths:
        method = Method(name=name, depths=depths, with_b=method.with_b)
    return cell(method, a=a, b=b, latency_ms=latency_ms, tokens=tokens, seeds=(1,)).tokens_per_s


def test_plain_decoding_is_one_token_per_verification() -> None:
    for latency_ms in (0.0, 5.0):
        speed = measured("plain", a=0.8, latency_ms=latency_ms, b=0.5, tokens=200)
        assert speed == pytest.approx(1e3 / 18.3, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "a", "latency_ms", "which_b", "depths"),
    [
        ("sync chain", 0.8, 0.0, 0, (5, 6)),
        ("sync chain", 0.87, 5.0, 0, (7, 8)),
        ("sync tree", 0.8, 0.0, 0, (4,)),
        ("optimistic", 0.8, 5.0, 0, ()),
        ("optimistic", 0.87, 0.0, 0, ()),
        ("fan_out/pull", 0.8, 0.0, 1, (6,)),
        ("fan_out/pull", 0.87, 5.0, 0, (7,)),
        ("best_first/push", 0.8, 0.0, 0, ()),
        ("best_first/push", 0.87, 5.0, 1, ()),
    ],
)
def test_figures_of_every_method(name: str, a: float, latency_ms: float, which_b: int, depths: tuple[int, ...]) -> None:
    """At the draft lengths that are best there; the whole table is a long test."""
    expected = REFERENCE[a, latency_ms][name][which_b]
    speed = measured(name, a=a, latency_ms=latency_ms, b=B_VALUES[which_b], tokens=6000, depths=depths)
    assert speed == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("a", "latency_ms"), list(REFERENCE))
@pytest.mark.parametrize("name", [method.name for method in METHODS if method.name != "plain"])
def test_the_whole_table(name: str, a: float, latency_ms: float) -> None:
    for b, expected in zip(B_VALUES, REFERENCE[a, latency_ms][name], strict=False):
        speed = measured(name, a=a, latency_ms=latency_ms, b=b, tokens=8000)
        assert speed == pytest.approx(expected, rel=TOLERANCE), f"b = {b}"


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--tokens", "30", "--rows", ".8/0"])
    printed = capsys.readouterr().out
    assert all(method.name in printed for method in METHODS)
    assert "(K" in printed
