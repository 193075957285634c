"""Keeping in touch with the leader, from the connecting side."""

from __future__ import annotations

from itertools import pairwise

from dist_spec.core.attachment import Attachment
from dist_spec.core.messages import Bye, Hello, Ping

HELLO = Hello(role="drafter", name="d")


def make() -> Attachment:
    attachment = Attachment(HELLO, heartbeat_s=1.0)
    assert attachment.start(now=0.0) == [HELLO]
    return attachment


def test_a_ping_goes_out_every_heartbeat_with_its_figures() -> None:
    attachment = make()
    attachment.heard(Ping(), now=0.5)
    attachment.progress, attachment.busy_s = 7, 0.25
    assert attachment.tick(now=1.0) == [Ping(progress=7, busy_s=0.25, sent_s=1.0)]
    assert attachment.tick(now=1.9) == []
    attachment.heard(Ping(), now=1.9)
    assert attachment.tick(now=2.0) == [Ping(progress=7, busy_s=0.25, sent_s=2.0)]
    assert attachment.quiet_s(now=3.0) == 3.0 - 1.9


def test_a_leader_that_is_not_heard_is_greeted_again_but_not_at_every_tick() -> None:
    attachment = make()
    seen = [attachment.tick(now=step / 4) for step in range(1, 40)]
    greetings = [step / 4 for step, sent in enumerate(seen, 1) if HELLO in sent]
    assert greetings[0] > 3.0
    assert all(later - earlier >= 1.0 for earlier, later in pairwise(greetings))
    assert len(greetings) >= 5


def test_a_leader_that_does_not_know_us_is_greeted_at_once() -> None:
    attachment = make()
    assert attachment.heard(Bye(reason="unknown peer"), now=0.1) == [HELLO]
    assert attachment.heard(Bye(reason="another tokenizer", fatal=True), now=0.2) == []
    assert attachment.heard(Ping(), now=0.3) == []


def test_other_traffic_puts_off_a_repeated_greeting() -> None:
    attachment = make()
    attachment.sent(now=3.4)
    assert HELLO not in attachment.tick(now=3.5)
    assert HELLO in attachment.tick(now=4.5)


def test_the_answer_to_the_greeting_tells_the_round_trip_until_a_ping_does() -> None:
    attachment = make()
    attachment.heard(Ping(sent_s=9.0), now=0.01)
    assert attachment.round_trip_s == 0.01
    attachment.heard(Ping(sent_s=9.5), now=0.6)  # another ping of the leader's own: no answer to anything
    assert attachment.round_trip_s == 0.01
    attachment.heard(Ping(sent_s=10.0, echo_s=1.0), now=1.004)
    assert abs(attachment.round_trip_s - 0.004) < 1e-9
