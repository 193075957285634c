"""Who is connected to the leader, and whether they still make progress (law 10). No sockets: time is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from dist_spec.core.messages import Hello, Ping

LOOKUP_KINDS = frozenset({"ngram", "suffix"})
"""Drafters so cheap that there is nothing to share out between two of them."""

_FORGET_AFTER = 60
"""Silences after which a peer counts as gone for good: peers that come under ever new names must not fill the memory."""


@dataclass(kw_only=True, slots=True)
class Member:
    """One peer.

    Attributes:
        heard_s, pinged_s: when a message last came from it, and when it was last pinged.
        silent: nothing was heard for too long; it gets nothing until it speaks again, then everything anew.
        late: it missed the deadline of an answer; it is not waited for again until it speaks.
        clock_s, clock_heard_s: its own clock in its last ping, and when that came.
        round_trip_s: of the last answered ping (0: none yet).
        step_s: busy seconds per draft step, as it said when it greeted and as its pings show since (0: not known).
        progress: draft steps taken, as of its last ping.
        proposals, useful_nodes, accepted, garbage, busy_s: what it contributed and how long it drafted.
    """

    name: str
    role: str
    kind: str = ""
    step_s: float = 0.0
    heard_s: float = 0.0
    pinged_s: float = 0.0
    silent: bool = False
    late: bool = False
    clock_s: float = 0.0
    clock_heard_s: float = 0.0
    round_trip_s: float = 0.0
    proposals: int = 0
    useful_nodes: int = 0
    accepted: int = 0
    progress: int = 0
    garbage: int = 0
    busy_s: float = 0.0


class Membership:
    """The leader's list of peers.

    Args:
        heartbeat_s: every peer gets a Ping this often.
        dead_after_s: a peer not heard for this long counts as silent.
    """

    def __init__(self, *, heartbeat_s: float = 1.0, dead_after_s: float = 5.0) -> None:
        self.heartbeat_s = heartbeat_s
        self.dead_after_s = dead_after_s
        self.members: dict[str, Member] = {}

    def join(self, peer: str, hello: Hello, *, now: float) -> Member:
        member = Member(
            name=hello.name, role=hello.role, kind=hello.kind, step_s=hello.step_s, heard_s=now, pinged_s=now
        )
        self.members[peer] = member
        return member

    def leave(self, peer: str) -> Member | None:
        return self.members.pop(peer, None)

    def heard(self, peer: str, *, now: float) -> bool:
        """Note traffic from a peer; True if it had been silent and must be told everything anew."""
        member = self.members.get(peer)
        if member is None:
            return False
        revived, member.silent, member.late, member.heard_s = member.silent, False, False, now
        return revived

    def drafters(self) -> list[str]:
        """Drafters worth sending to."""
        return [peer for peer, m in self.members.items() if m.role == "drafter" and not m.silent]

    def answering(self) -> list[str]:
        """Drafters worth asking and waiting for."""
        return [peer for peer, m in self.members.items() if m.role == "drafter" and not m.silent and not m.late]

    def pinged(self, peer: str, ping: Ping, *, now: float) -> None:
        """A ping came from a peer: its clock, how long messages travel, what it did."""
        member = self.members[peer]
        steps, busy_s = ping.progress - member.progress, ping.busy_s - member.busy_s
        if steps > 0 and busy_s > 0:
            step_s = busy_s / steps
            member.step_s = (member.step_s + step_s) / 2 if member.step_s else step_s
        member.busy_s, member.progress = ping.busy_s, ping.progress
        member.clock_s, member.clock_heard_s = ping.sent_s, now
        if ping.echo_s > 0.0:
            member.round_trip_s = max(now - ping.echo_s, 0.0)

    def echo_s(self, peer: str, *, now: float) -> float:
        """The peer's own clock as it should be now, without the way here (see `Ping.echo_s`); 0 when none was heard."""
        member = self.members[peer]
        return member.clock_s + (now - member.clock_heard_s) if member.clock_s else 0.0

    def silenced(self, *, now: float) -> list[str]:
        """Mark peers that have been quiet for too long; returns those newly marked."""
        quiet = [p for p, m in self.members.items() if not m.silent and now - m.heard_s > self.dead_after_s]
        for peer in quiet:
            self.members[peer].silent = True
        return quiet

    def forget(self, *, now: float) -> list[str]:
        """Drop peers that have been silent for very long and return them; one that comes back after all is asked to greet
        anew."""
        gone_after_s = _FORGET_AFTER * self.dead_after_s
        gone = [p for p, m in self.members.items() if m.silent and now - m.heard_s > gone_after_s]
        for peer in gone:
            del self.members[peer]
        return gone

    def due_pings(self, *, now: float) -> list[str]:
        """Peers whose last ping is a heartbeat ago. Silent ones are pinged too: it tells a returning peer that the
        leader lives, and costs a few bytes."""
        due = [p for p, m in self.members.items() if now - m.pinged_s >= self.heartbeat_s]
        for peer in due:
            self.members[peer].pinged_s = now
        return due
