"""Requests' short names: both ends find the same ones, and no confusion of names ever reaches a session."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_spec.core.messages import Bye, Close, Commit, Hello, Need, Ping
from dist_spec.transports import names as names_module
from dist_spec.transports.names import Names, handle_of


def commit(request: str, generation: int = 0) -> Commit:
    tokens = np.zeros(1, np.int32)
    return Commit(request=request, generation=generation, base_length=1, base_digest=1, tokens=tokens)


def knowing(*requests: str, limit: int = 99) -> Names:
    """An end whose peer "d0" spoke of these requests."""
    names = Names(limit=limit)
    for request in requests:
        names.incoming(commit(request), peer="d0")
    return names


def same_handle() -> tuple[str, str]:
    """Two names with one handle: such a hash is linear, so a pair can be made."""
    seen: dict[int, str] = {}
    for number in range(1 << 18):
        name = f"{number:x}-{number * 2654435761 % 2**32:08x}"
        other = seen.setdefault(handle_of((name, 0)), name)
        if other != name:
            return other, name
    raise AssertionError("no pair among them")


@given(st.text(), st.integers(0, 2**63 - 1))
def test_a_handle_is_a_function_of_the_name(request: str, generation: int) -> None:
    assert 0 <= handle_of((request, generation)) < 2**32
    assert handle_of((request, generation)) == handle_of((request, generation))
    assert handle_of((request, generation)) != handle_of((request, generation + 1))


def test_only_who_spoke_of_a_request_is_sent_its_handle() -> None:
    names = knowing("a")
    assert names.outgoing(commit("a"), peer="d0") == handle_of(("a", 0))
    assert names.outgoing(commit("a"), peer="d1") is None
    assert names.outgoing(commit("a", 1), peer="d0") is None
    assert names.outgoing(commit("b"), peer="d0") is None
    assert names.outgoing(Need(request="a", generation=0, have_length=0), peer="d0") is None
    assert names.outgoing(Ping(), peer="d0") is None


def test_a_greeting_or_a_goodbye_ends_what_a_peer_knew() -> None:
    for message in (Hello(role="drafter", name="d0"), Bye()):
        names = knowing("a")
        names.incoming(message, peer="d1")
        assert names.outgoing(commit("a"), peer="d0") is not None
        names.incoming(message, peer="d0")
        assert names.outgoing(commit("a"), peer="d0") is None
        assert names.resolve(handle_of(("a", 0))) == ("a", 0), "this end still knows it"


def test_what_this_end_told_it_understands() -> None:
    names = Names()
    names.outgoing(commit("a"), peer="d0")
    assert names.resolve(handle_of(("a", 0))) == ("a", 0)


def test_two_names_with_one_handle_go_by_their_names() -> None:
    first, second = same_handle()
    names = knowing(first, second)
    assert names.outgoing(commit(first), peer="d0") is None
    assert names.outgoing(commit(second), peer="d0") is None
    handle = handle_of((first, 0))
    assert names.resolve(handle) == (f"#{handle:08x}", 0), "unclear is unknown"


def test_an_unknown_handle_is_resolved_where_it_is_known() -> None:
    names = knowing("a")
    called = f"#{handle_of(('a', 0)):08x}"
    for message in (
        Need(request=called, generation=0, have_length=7),
        Close(request=called, generation=0, reason="unknown"),
    ):
        got = names.incoming(message, peer="d0")
        assert isinstance(got, Need | Close)
        assert got.request == "a"
    elsewhere = Need(request="#00000001", generation=0, have_length=0)
    assert names.incoming(elsewhere, peer="d0") == elsewhere


def test_names_that_look_like_handles_are_names() -> None:
    for request in ("#", "#nothing", "#0000000g", "#00000001", "#+0000001"):
        names = knowing(request)
        need = Need(request=request, generation=5, have_length=0)
        assert names.incoming(need, peer="d0") == need
        assert names.outgoing(commit(request), peer="d0") is None


def test_only_the_latest_requests_are_remembered() -> None:
    names = knowing("a", "b", limit=2)
    names.outgoing(commit("a"), peer="d0")
    names.incoming(commit("c"), peer="d0")
    assert [name for name in "abc" if names.resolve(handle_of((name, 0))) == (name, 0)] == ["a", "c"]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=40))
def test_a_handle_stands_for_the_only_one_of_its_names_that_is_remembered(spoken: list[tuple[str, bool]]) -> None:
    """Whatever was forgotten and came back in between, with handles so short that half of them are shared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names_module, "handle_of", lambda name: ord(name[0]) % 3)
        names, remembered = Names(limit=4), list[str]()
        for request, comes in spoken:
            remembered = [*(one for one in remembered if one != request), request][-4:]
            if comes:
                names.incoming(commit(request), peer="d0")
            else:
                names.outgoing(commit(request), peer="d0")
            for handle in range(3):
                alike = [one for one in remembered if ord(one) % 3 == handle]
                assert names.resolve(handle) == ((alike[0], 0) if len(alike) == 1 else (f"#{handle:08x}", 0))
