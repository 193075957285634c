"""What the leader answers to its peers' messages, heartbeats included. Sans-I/O; it commits nothing (law 1), chooses nothing
to verify, and knows no sockets or clocks."""

from __future__ import annotations

import numpy as np

from dist_spec.core.counts import SessionCounts
from dist_spec.core.features import FeatureStream
from dist_spec.core.live import Live
from dist_spec.core.membership import Membership
from dist_spec.core.messages import READ, Bye, Close, Commit, Forget, Hello, Message, Need, Open, Ping, Propose
from dist_spec.core.mirrors import Mirrors
from dist_spec.core.requests import Outgoing, Requests
from dist_spec.core.vocabulary import refusal
from dist_spec.core.waiting import Waiting


class Conversation:
    """The leader's side of every message.

    Attributes:
        forgotten: a frontend asked to forget what ended requests left behind; whoever heeds it sets it back.
    """

    def __init__(
        self,
        requests: Requests,
        *,
        membership: Membership,
        mirrors: Mirrors,
        waiting: Waiting,
        counts: SessionCounts,
        features: FeatureStream,
    ) -> None:
        self.requests = requests
        self.membership = membership
        self.mirrors = mirrors
        self.waiting = waiting
        self.counts = counts
        self.features = features
        self.forgotten = False
        self._shares: dict[str, tuple[int, int]] = {}

    def receive(self, peer: str, message: Message, *, now: float) -> list[Outgoing]:
        """Take in one message; returns what to send."""
        out: list[Outgoing] = []
        if self.membership.heard(peer, now=now) and not isinstance(message, Hello):
            self.features.tell_again(peer)
            self.requests.knows_nothing(peer)
            out += self._joined(peer, now=now)
        match message:
            case Hello():
                return self._hello(peer, message, now=now)
            case Bye():
                return self.lost(peer)
            case _ if peer not in self.membership.members:
                return [(peer, Bye(reason="unknown peer: say hello first"))]
            case Open() if self.membership.members[peer].role == "frontend":
                out += self.requests.open(message, peer=peer, now=now)
            case Propose():
                out += self._propose(peer, message, now=now)
            case Need():
                out += self._need(peer, message)
            case Close() if message.reason == READ:
                self.requests.unread.read((message.request, message.generation), peer=peer)
            case Close():
                live = self.requests.live.get((message.request, message.generation))
                if live is not None and live.owner == peer:
                    out += self.requests.close(live.sequence.key, reason="abort")
            case Ping():
                self.membership.pinged(peer, message, now=now)
            case Forget() if self.membership.members[peer].role == "frontend":
                self.forgotten = True
                out += [(drafter, message) for drafter in self.membership.drafters()]
            case _:
                pass  # only the target commits (law 1)
        return out

    def _hello(self, peer: str, hello: Hello, *, now: float) -> list[Outgoing]:
        facts = self.requests.facts
        no = (
            refusal(hello, facts.vocabulary, facts.vocabulary_tokens)
            or self._one_too_many(peer, hello)
            or self.features.refusal(peer, hello)
        )
        if no is not None:
            return [(peer, no)]
        # Who greets again may have lost everything (a restart) or nothing (it only missed our pings). A drafter is told
        # everything anew; a frontend's requests go on: tokens that it does not expect are no harm to it.
        self.requests.knows_nothing(peer)
        self.membership.join(peer, hello, now=now)
        self.features.join(peer, hello)
        told = self._joined(peer, now=now)
        # The pong tells a frontend that the leader is up; a drafter learns it from what it is told of.
        return [(peer, self._ping(peer, now=now)), *told]

    def _joined(self, peer: str, *, now: float) -> list[Outgoing]:
        """A drafter is there (again): it may serve from here on."""
        if self.membership.members[peer].role == "drafter":
            self.requests.assignment.joined(peer, now=now)
        return self.settle(now=now)

    def settle(self, *, now: float) -> list[Outgoing]:
        """What drafters must be told since the last time: requests that they serve, and whose branches are whose."""
        asked = self.requests.assignment.num_updates
        out = self.requests.settle(now=now)
        for peer, message in out:
            if isinstance(message, Open):  # it knows nothing of this request, or nothing any more
                self.features.tell_again(peer, (message.request, message.generation))
        if asked == self.requests.assignment.num_updates:
            return out
        shares = {peer: self.requests.assignment.share(peer) for peer in self.membership.drafters()}
        changed = [peer for peer, share in shares.items() if self._shares.get(peer, (0, 1)) != share]
        self._shares = shares
        return [*((peer, self._ping(peer, now=now)) for peer in changed), *out]

    def _one_too_many(self, peer: str, hello: Hello) -> Bye | None:
        """Law 5: of two drafters' draws for one position the first counts, and which that is may depend on them."""
        others = [self.membership.members[one].name for one in self.membership.drafters() if one != peer]
        if not self._weighs or hello.role != "drafter" or not others:
            return None
        return Bye(
            reason=f"its verification rule takes the drafts of one drafter, and {others[0]} is attached", fatal=True
        )

    @property
    def _weighs(self) -> bool:
        return self.mirrors.settings.blind and self.mirrors.settings.budget > 0

    def _need(self, peer: str, need: Need) -> list[Outgoing]:
        live = self.requests.live.get((need.request, need.generation))
        drafts = self.membership.members[peer].role == "drafter"
        if (
            live is None
            or not live.running
            or (drafts and not self.requests.assignment.serves(peer, live.sequence.key))
        ):
            return self._unknown(peer, need)
        prefix = live.sequence.prefix
        if not 0 < need.have_length <= len(prefix):
            self.features.tell_again(peer)
            return [(peer, live.opening(ask=peer in live.asked))]
        commit = Commit(
            request=need.request,
            generation=need.generation,
            base_length=need.have_length,
            base_digest=prefix.digests[need.have_length],
            tokens=np.array(prefix.tokens[need.have_length :], np.int32),
            ask=peer in live.asked,
        )
        return [(peer, commit)]

    def _unknown(self, peer: str, message: Need | Propose) -> list[Outgoing]:
        """A drafter may forget this request; a frontend is told of an end by its reason, or tells the request again."""
        if self.membership.members[peer].role != "drafter":
            return []
        return [(peer, Close(request=message.request, generation=message.generation, reason="unknown"))]

    def _propose(self, peer: str, proposal: Propose, *, now: float) -> list[Outgoing]:
        live: Live | None = self.requests.live.get((proposal.request, proposal.generation))
        if live is None:
            return self._unknown(peer, proposal)
        member = self.membership.members[peer]
        member.proposals += 1
        self.counts.proposals += 1
        sampled = live.sequence.sampling.temperature > 0.0
        if self._weighs and sampled and member.kind in ("model", "head") and len(proposal.tokens) and not proposal.laws:
            # Law 6: a draw that is weighed as if it had been the only possibility shifts the law of the text.
            self.lost(peer)
            return [(peer, Bye(reason="its verification rule needs the law that a token was drawn from", fatal=True))]
        new = self.mirrors.propose(live, proposal, drafter=member.name)
        if new < 0:
            return []
        member.useful_nodes += new
        if new > 0:
            live.fed.add(peer)
        if proposal.base_length == len(live.sequence.prefix):
            self.waiting.answered(live, peer, now=now)
        return []

    def lost(self, peer: str) -> list[Outgoing]:
        """A peer is gone: nobody waits for it; a frontend's requests end with it."""
        self.requests.unread.left(peer)
        if self.membership.leave(peer) is None:
            return []
        self.features.leave(peer)
        self.requests.knows_nothing(peer)
        self.requests.assignment.left(peer)
        owned = [key for key, live in self.requests.live.items() if live.owner == peer]
        return [sent for key in owned for sent in self.requests.close(key, reason="abort")]

    def garbage(self, peer: str) -> list[Outgoing]:
        """A peer sent something that is no message: it is dropped and counted, and nothing else is touched."""
        self.counts.garbage += 1
        member = self.membership.members.get(peer)
        if member is not None:
            member.garbage += 1
        return []

    def tick(self, *, now: float) -> list[Outgoing]:
        """Heartbeats and silence; call now and then."""
        out: list[Outgoing] = []
        for peer in self.membership.silenced(now=now):
            self.requests.knows_nothing(peer)
            if self.membership.members[peer].role == "frontend":
                out += self.lost(peer)
        for peer in self.membership.forget(now=now):
            self.features.leave(peer)
            self.requests.assignment.left(peer)
        out += self.settle(now=now)
        return [*out, *((peer, self._ping(peer, now=now)) for peer in self.membership.due_pings(now=now))]

    def _ping(self, peer: str, *, now: float) -> Ping:
        index, count = self.requests.assignment.share(peer)
        return Ping(
            progress=self.counts.steps,
            num_drafters=len(self.membership.drafters()),
            sent_s=now,
            echo_s=self.membership.echo_s(peer, now=now),
            share_index=index,
            share_count=count,
        )
