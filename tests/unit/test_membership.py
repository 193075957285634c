"""Who is there and who still makes progress; law 10's bookkeeping."""

from __future__ import annotations

from dist_spec.core.membership import Membership
from dist_spec.core.messages import Hello


def members() -> Membership:
    found = Membership(heartbeat_s=1.0, dead_after_s=5.0)
    found.join("d", Hello(role="drafter", name="d", kind="ngram", step_s=0.5), now=0.0)
    found.join("f", Hello(role="frontend", name="f"), now=0.0)
    return found


def test_only_drafters_are_sent_drafting_work() -> None:
    found = members()
    assert found.drafters() == ["d"]
    assert found.answering() == ["d"]
    assert (found.members["d"].kind, found.members["d"].step_s) == ("ngram", 0.5)


def test_silence_is_noticed_once_and_ended_by_any_word() -> None:
    found = members()
    found.heard("f", now=5.0)
    assert found.silenced(now=5.0) == []
    assert found.silenced(now=5.1) == ["d"]
    assert found.silenced(now=6.0) == []
    assert found.drafters() == []
    assert found.heard("d", now=7.0)  # it must be told everything anew
    assert not found.heard("d", now=7.1)
    assert found.drafters() == ["d"]


def test_a_late_drafter_is_sent_commits_but_not_waited_for() -> None:
    found = members()
    found.members["d"].late = True
    assert found.drafters() == ["d"]
    assert found.answering() == []
    assert not found.heard("d", now=1.0)
    assert found.answering() == ["d"]


def test_pings_are_due_every_heartbeat_for_everyone() -> None:
    found = members()
    assert found.due_pings(now=0.9) == []
    assert found.due_pings(now=1.0) == ["d", "f"]
    assert found.due_pings(now=1.5) == []
    found.silenced(now=10.0)
    assert found.due_pings(now=10.0) == ["d", "f"]  # it tells a returning peer that the leader lives


def test_strangers() -> None:
    found = members()
    assert not found.heard("x", now=1.0)
    assert found.leave("x") is None
    assert found.leave("d") is not None
    assert found.drafters() == []


def test_peers_silent_for_very_long_are_forgotten_and_asked_to_greet() -> None:
    found = members()
    found.silenced(now=10.0)
    assert found.forget(now=299.0) == []
    assert set(found.members) == {"d", "f"}
    found.heard("f", now=299.0)
    assert found.forget(now=301.0) == ["d"]
    assert set(found.members) == {"f"}
    assert not found.heard("d", now=302.0)
