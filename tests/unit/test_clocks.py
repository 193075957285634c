"""Time under way, from clocks that are the same, or another host's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_spec.transports.clocks import PeerClock, stamp

OFFSETS = st.floats(-1e6, 1e6).filter(lambda offset: 5.0 < offset % 4294.967296 < 4290.0)
TIMES = st.lists(st.floats(0.0, 5.0), min_size=1, max_size=20)


@given(st.floats(0, 1e6), TIMES)
def test_one_clock_gives_the_time_itself(start: float, times: list[float]) -> None:
    clock = PeerClock()
    clock.under_way_s(stamp(start), now=start + 0.001)
    for spent in times:
        assert clock.under_way_s(stamp(start), now=start + 0.001 + spent) == pytest.approx(0.001 + spent, abs=5e-6)
    assert clock.one_way_s == pytest.approx(0.001, abs=5e-6)


@given(OFFSETS, TIMES)
def test_of_two_clocks_the_quickest_message_tells_the_difference(offset: float, times: list[float]) -> None:
    clock = PeerClock()
    clock.round_trip(0.04)
    clock.round_trip(0.02)
    clock.round_trip(-1.0)  # a clock that was set, or a lie
    quickest = 0.25
    clock.under_way_s(stamp(100.0 + offset), now=100.0 + quickest)
    for spent in times:
        found = clock.under_way_s(stamp(101.0 + offset), now=101.0 + quickest + spent)
        assert found == pytest.approx(spent + 0.01, abs=5e-6), "the quickest counts for half the quickest round trip"
    assert clock.one_way_s == pytest.approx(0.01)


@given(OFFSETS, TIMES)
def test_time_under_way_is_never_negative(offset: float, times: list[float]) -> None:
    clock = PeerClock()
    assert all(clock.under_way_s(stamp(offset), now=spent) >= 0 for spent in times)


def test_clocks_may_drift() -> None:
    """A sender's clock that loses 50 microseconds a second looks 0.18 s slow after an hour; the old minimum goes."""
    clock = PeerClock()
    for second in range(3600):
        now = float(second)
        found = clock.under_way_s(stamp(5000.0 + now * (1 - 5e-5)), now=now + 0.001)
        assert found < 0.004


def test_the_clock_may_wrap() -> None:
    clock = PeerClock()
    before = 2**32 * 1e-6 - 0.5
    assert clock.under_way_s(stamp(before), now=before + 0.25) == pytest.approx(0.25, abs=5e-6)
    assert clock.under_way_s(stamp(before), now=before + 1.0) == pytest.approx(1.0, abs=5e-6)
    assert clock.under_way_s(stamp(before + 1.0), now=before + 1.25) == pytest.approx(0.25, abs=5e-6)


def test_a_successor_on_another_host_has_another_clock() -> None:
    """And one on this host the same: what the link needs at least is not forgotten."""
    clock = PeerClock()
    clock.under_way_s(stamp(100.0), now=100.001)
    clock.greeted()
    assert clock.under_way_s(stamp(200.0), now=200.25) == pytest.approx(0.25, abs=5e-6)
    assert clock.one_way_s == pytest.approx(0.001, abs=5e-6)
    clock.greeted()
    assert clock.under_way_s(stamp(9999.0), now=300.0) == 0.0
    assert clock.under_way_s(stamp(9999.0), now=300.5) == pytest.approx(0.5, abs=5e-6)
    assert clock.one_way_s == 0.0
