"""Places lent to requests: the one unused for longest gives way, never one in use."""

from __future__ import annotations

from dist_spec.drafters.lending import Lending

A, B, C = ("a", 0), ("b", 0), ("c", 0)


def test_the_one_unused_for_longest_gives_way_but_none_in_use():
    lending = Lending([1, 2])
    assert lending.lend(A, in_use={A}) == (2, True)
    assert lending.lend(B, in_use={B}) == (1, True)
    assert lending.lend(A, in_use={A}) == (2, False)
    assert lending.lend(C, in_use={A, B, C}) is None
    assert lending.lend(C, in_use={C}) == (1, True)
    assert lending.get(B) is None
    assert lending.get(A) == 2


def test_what_is_taken_back_is_lent_again_once():
    lending = Lending(["place"])
    assert lending.lend(A, in_use=()) == ("place", True)
    assert lending.take_back(A) == "place"
    assert lending.take_back(A) is None
    assert lending.lend(B, in_use={B}) == ("place", True)
    assert lending.lend(C, in_use={B, C}) is None
