"""A drafter's step: receive, pick leaves, expand them, publish. The loop around it (and the simulator) keeps time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dist_spec.core.attachment import Attachment
from dist_spec.core.draft_session import DraftBatch, DraftSession
from dist_spec.core.messages import Bye, Message
from dist_spec.core.types import Expansion
from dist_spec.drafters.base import Drafter, ExpandRow, Featured, Remembering
from dist_spec.errors import ProtocolError
from dist_spec.transports.base import LEADER, Transport
from dist_spec.workers.record import Recorder


class DraftWorker:
    """Session, drafter and transport put together.

    receive -> begin (pick leaves) -> [one draft step] -> finish (expand, publish)
    """

    def __init__(
        self,
        session: DraftSession,
        *,
        drafter: Drafter,
        transport: Transport,
        attachment: Attachment,
        recorder: Recorder | None = None,
    ) -> None:
        self.session = session
        self.drafter = drafter
        self.transport = transport
        self.attachment = attachment
        self.recorder = recorder

    def start(self, *, now: float) -> None:
        if self.recorder is not None:
            self.recorder.started(now=now)
        self._send(self.attachment.start(now=now), now=now)

    def receive(self, *, clock: Callable[[], float], timeout_s: float = 0.0) -> int:
        """Take in what has arrived (waiting up to `timeout_s`); returns how many messages. Garbage is dropped."""
        received = self.transport.receive(timeout_s)
        now = clock()
        for peer, message in received:
            if self.recorder is not None:
                self.recorder.received(peer, message, now=now)
            if isinstance(message, ProtocolError):
                continue
            self._send(self.attachment.heard(message, now=now), now=now)
            self.session.pace.link_s = self.attachment.round_trip_s / 2
            self._send(self.session.receive(message, now=now), now=now)
        for key in self.session.take_closed():
            self.drafter.close(key)
        self._hand_over_features()
        if self.session.forgotten:
            self.session.forgotten = False
            forget(self.drafter)
        return len(received)

    def _hand_over_features(self) -> None:
        placed = self.session.take_features()
        if placed and isinstance(self.drafter, Featured):
            for key, first_position, rows in placed:
                self.drafter.features(key, first_position, rows)

    def begin(self, *, now: float) -> DraftBatch | None:
        """Pick the leaves of the next draft step; None: nothing useful to do before a message arrives."""
        batch = self.session.next_batch(now=now)
        if self.recorder is not None:
            if batch is None:
                self.recorder.rested(now=now)
            else:
                self.recorder.drafted(batch, now=now)
        return batch

    def finish(self, batch: DraftBatch, *, now: float, hold: bool = False) -> None:
        """Expand the leaves and publish what is new (with `hold`: not before `flush`)."""
        self.take(batch, self.drafter.expand(expand_rows(batch)), now=now, hold=hold)

    def take(
        self, batch: DraftBatch, expansions: Sequence[Sequence[Expansion]], *, now: float, hold: bool = False
    ) -> None:
        """Take in what the leaves were expanded to (see `finish`)."""
        self.attachment.progress += 1
        self._send(self.session.expanded(batch, expansions, hold=hold), now=now)
        if self.recorder is not None:
            self.recorder.expanded(self.session.num_drafted, hold=hold, now=now)

    def flush(self, *, now: float) -> None:
        """Publish what was held back."""
        self._send(self.session.flush(), now=now)
        if self.recorder is not None:
            self.recorder.flushed(now=now)

    def tick(self, *, now: float, busy_s: float = 0.0) -> None:
        """Heartbeat; `busy_s` is the time spent drafting so far."""
        if self.recorder is not None:
            self.recorder.ticked(now=now, busy_s=busy_s)
        self.attachment.busy_s = busy_s
        self._send(self.attachment.tick(now=now), now=now)
        self._send(self.session.tick(now=now), now=now)

    def leave(self, *, now: float) -> None:
        """Say goodbye; the leader need not find out by silence."""
        self._send([Bye(reason="leaving")], now=now)
        if self.recorder is not None:
            self.recorder.left(now=now)

    def _send(self, messages: Sequence[Message], *, now: float) -> None:
        for message in messages:
            self.attachment.sent(now=now)
            self.transport.send(LEADER, message)


def forget(drafter: Drafter) -> None:
    """Have a drafter forget what ended requests left behind, if it keeps any of it."""
    if isinstance(drafter, Remembering):
        drafter.forget()


def expand_rows(batch: DraftBatch) -> list[ExpandRow]:
    """The batch as a drafter sees it."""
    return [
        ExpandRow(
            key=draft.key,
            history=draft.prefix.tokens,
            history_slots=draft.slots,
            prompt_length=draft.prompt_length,
            generated_offset=draft.generated_offset,
            sampling=draft.sampling,
            tree=draft.tree,
            leaves=leaves,
            width=batch.width,
            digest=draft.prefix.digest,
        )
        for draft, leaves in zip(batch.drafts, batch.leaves, strict=True)
    ]
