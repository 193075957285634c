"""A frontend's connection to the leader: opens requests and yields what is committed. It knows token ids, not text.

A request outlives its leader: told again with the tokens committed so far, the next leader goes on with it. As noise is a
function of (seed, position, token), its text is the one that the first would have given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from time import monotonic
from typing import Literal, TypeAlias

import numpy as np

from dist_spec.core.attachment import Attachment
from dist_spec.core.messages import (
    DRAINING,
    NO_FLOOR,
    READ,
    Bye,
    Close,
    Commit,
    Forget,
    Hello,
    Message,
    Need,
    Open,
    Ping,
)
from dist_spec.core.prefix import Prefix
from dist_spec.core.types import Sampling
from dist_spec.core.vocabulary import first_difference
from dist_spec.errors import ProtocolError, TokenizerMismatchError, TransportError
from dist_spec.transports.base import LEADER, Transport

TokenKind: TypeAlias = Literal["accepted", "recovered", "bonus", "plain", "unknown"]
"""Where a token came from: drafted and accepted; put in the place of a drafted one; after a branch that was accepted whole;
without a draft to judge; or not known, as its message was lost and the text told again."""

_REFUSED_AGAIN_S = 0.5
"""A request that an ending target gave back is told again after this long: by then another may listen there."""
_FEW_HEARTBEATS = 3
"""A leader heard again after so many may be another one, which knows nothing of us."""


@dataclass(kw_only=True, slots=True)
class Stream:
    """One request as the frontend knows it.

    Attributes:
        tokens: committed so far, in order.
        kinds: parallel to `tokens`: where each token came from.
        times: when each commit arrived, (monotonic seconds, number of tokens); what came late came in order all the same.
        margins: parallel to `tokens` as far as the target reports them (NaN: not for this one).
        logprobs: the same for the log probability of each token, where the request asked for them.
        top_logprobs: parallel to `logprobs`: (id, log probability) of the most likely tokens, best first.
        reason: why it ended ("" while it runs).
        refused_s, refused_last_s: since when, and when last, an ending target would not have it (0: none did).
        aborted: nobody wants the rest; it lasts until a target says so too.
    """

    request: str
    generation: int
    prefix: Prefix
    sampling: Sampling
    opened_s: float
    heard_s: float
    prompt_length: int
    tokens: list[int] = field(default_factory=list)
    kinds: list[TokenKind] = field(default_factory=list)
    times: list[tuple[float, int]] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    reason: str = ""
    closed_s: float = 0.0
    refused_s: float = 0.0
    refused_last_s: float = 0.0
    aborted: bool = False
    stats: dict[str, float] = field(default_factory=dict)

    def take(self, commit: Commit, *, now: float) -> int | None:
        """Append what is new in a commit (repeats are harmless); returns how many tokens that was, None when the commit
        does not follow what was received (something was lost)."""
        known = len(self.prefix) - commit.base_length
        if known < 0 or not self.prefix.matches(commit.base_length, commit.base_digest):
            return None
        fresh = commit.tokens.tolist()[known:]
        self.prefix.extend(fresh)
        self.tokens.extend(fresh)
        self.kinds.extend(_kinds(commit)[known:])
        missing = len(self.tokens) - len(fresh)  # what was lost and told again came without margins and probabilities
        if len(commit.margins):
            self.margins.extend([nan] * (missing - len(self.margins)))
            self.margins.extend(commit.margins.tolist()[known:])
        if len(commit.logprobs):
            self.logprobs.extend([nan] * (missing - len(self.logprobs)))
            self.logprobs.extend(commit.logprobs.tolist()[known:])
            self.top_logprobs.extend([()] * (missing - len(self.top_logprobs)))
            self.top_logprobs.extend(_top_logprobs(commit)[known:])
        self.heard_s = now
        if fresh:
            self.times.append((now, len(fresh)))
        return len(fresh)

    def refused(self, *, now: float) -> float:
        """An ending target gave it back; returns for how long no other took it."""
        if now - self.refused_last_s > 4 * _REFUSED_AGAIN_S:
            self.refused_s = now
        self.refused_last_s = self.heard_s = now
        return now - self.refused_s

    def due(self, *, now: float, repeat_s: float) -> bool:
        """Whether it is time to tell it again."""
        return now - self.heard_s > (_REFUSED_AGAIN_S if self.heard_s == self.refused_last_s else repeat_s)

    def opening(self) -> Open:
        """The request as it stands: a leader that knows it ignores this, one that does not goes on from here."""
        tokens = self.prefix.tokens
        return Open(
            request=self.request,
            generation=self.generation,
            prompt=np.array(tokens[: self.prompt_length], np.int32),
            generated=np.array(self.tokens, np.int32),
            sampling=self.sampling,
        )


def _kinds(commit: Commit) -> list[TokenKind]:
    """Per token of a commit. One that holds more than a verification can give tells again what was lost."""
    count = len(commit.tokens)
    if count > commit.num_accepted + 1:
        return ["unknown"] * count
    kinds: list[TokenKind] = ["accepted"] * min(commit.num_accepted, count)
    return [*kinds, commit.last_kind] if len(kinds) < count else kinds


def _top_logprobs(commit: Commit) -> list[tuple[tuple[int, float], ...]]:
    if not commit.top_ids.size:
        return [()] * len(commit.tokens)
    rows = zip(commit.top_ids.tolist(), commit.top_logprobs.tolist(), strict=True)
    # Rows are filled up where fewer tokens were possible than asked for.
    return [tuple(one for one in zip(ids, values, strict=True) if one[1] > NO_FLOOR) for ids, values in rows]


class Client:
    """Opens requests and follows them.

    Args:
        transport: a connecting end.
        name: unique among the leader's peers.
        silence_s: how long is waited for a leader that says nothing, or for one that takes what an ending leader gave back.
        repeat_s: a request without news for this long is told again (harmless when it is known).
        heartbeat_s: a ping goes out this often; the leader's `dead_after_s` must be longer.
        vocabulary, tokens: hashes of our tokenizer and its tokens by id: the leader refuses us when its own differs.

    Attributes:
        num_drafters: drafters attached to the leader, as it last said.
        last_stats: the leader's totals as of the request that ended last.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        name: str,
        silence_s: float = 60.0,
        repeat_s: float = 5.0,
        heartbeat_s: float = 1.0,
        vocabulary: bytes = b"",
        tokens: Sequence[str] = (),
    ) -> None:
        self.transport = transport
        self._tokens = tokens
        self.streams: dict[tuple[str, int], Stream] = {}
        self._silence_s = silence_s
        self._repeat_s = repeat_s
        hello = Hello(role="frontend", name=name, vocabulary=vocabulary, vocab_size=len(tokens))
        self._attachment = Attachment(hello, heartbeat_s=heartbeat_s)
        self._ready = False
        self.num_drafters = 0
        self.last_stats: dict[str, float] = {}

    def connect(self, *, timeout_s: float) -> bool:
        """Greet the leader until it answers; False when it has not after `timeout_s` (it may still be loading)."""
        deadline = monotonic() + timeout_s
        for message in self._attachment.start(now=monotonic()):
            self.transport.send(LEADER, message)
        while not self._ready and monotonic() < deadline:
            self.poll(timeout_s=0.05)
        return self._ready

    def open(self, request: str, *, prompt: Sequence[int], sampling: Sampling) -> Stream:
        """Begin a request. Raises ProtocolError for one that cannot be sent (too many tokens, stop strings, ...)."""
        now = monotonic()
        self._greet_if_idle(now=now)
        stream = Stream(
            request=request,
            generation=0,
            prefix=Prefix(prompt),
            sampling=sampling,
            opened_s=now,
            heard_s=now,
            prompt_length=len(prompt),
        )
        self.transport.send(LEADER, stream.opening())  # refuses what is no request
        self.streams[request, 0] = stream
        return stream

    def _greet_if_idle(self, *, now: float) -> None:
        """Nobody listened while nothing was open, so the leader may have forgotten us, and its silence means nothing."""
        if not self.streams:
            for message in self._attachment.start(now=now):
                self.transport.send(LEADER, message)

    def abort(self, stream: Stream) -> None:
        """Ask for its end, which may be told by the next leader."""
        stream.aborted = True
        self._send_abort(stream)

    def _send_abort(self, stream: Stream) -> None:
        self.transport.send(LEADER, Close(request=stream.request, generation=stream.generation, reason="abort"))

    def forget(self) -> None:
        """Let all drafters forget what they keep of requests that ended."""
        self._greet_if_idle(now=monotonic())
        self.transport.send(LEADER, Forget())

    def poll(self, *, timeout_s: float) -> list[tuple[Stream, int]]:
        """Take in what has arrived; returns (stream, new tokens) pairs, 0 for a stream that ended.

        Raises:
            TransportError: the leader refuses us, has gone silent, or ended without another to take its place.
            TokenizerMismatchError: its tokenizer is not ours.
            ProtocolError: it speaks another protocol.
        """
        news: list[tuple[Stream, int]] = []
        for _, message in self.transport.receive(timeout_s):
            if isinstance(message, ProtocolError):
                raise message
            news.extend(self._take(message, now=monotonic()))
        self._keep_alive()
        return news

    def _take(self, message: Message, *, now: float) -> list[tuple[Stream, int]]:
        back = self._attachment.quiet_s(now=now) > _FEW_HEARTBEATS * self._attachment.heartbeat_s
        for answer in self._attachment.heard(message, now=now):
            self.transport.send(LEADER, answer)
        if back or (isinstance(message, Bye) and not message.fatal):
            self._tell_again()  # it forgot us (we were silent for long), or it is another one
        match message:
            case Commit():
                stream = self.streams.get((message.request, message.generation))
                fresh = stream.take(message, now=now) if stream is not None else 0
                if stream is not None and fresh is None:
                    need = Need(request=stream.request, generation=stream.generation, have_length=len(stream.prefix))
                    self.transport.send(LEADER, need)
                elif stream is not None and fresh:
                    return [(stream, fresh)]
            case Close():
                return self._closed(message, now=now)
            case Bye(fatal=True):
                raise self._refusal(message)
            case Ping():
                self._ready = True
                self.num_drafters = message.num_drafters
            case _:
                pass
        return []

    def _closed(self, message: Close, *, now: float) -> list[tuple[Stream, int]]:
        stream = self.streams.get((message.request, message.generation))
        if stream is None:
            return []
        if message.reason == DRAINING:
            self._read(message)
        if message.reason == DRAINING and stream.aborted:
            message = replace(message, reason="abort")
        elif message.reason == DRAINING:
            if stream.refused(now=now) > self._silence_s:
                raise TransportError(
                    f"the target is ending, and no other took its place within {self._silence_s:g} s",
                    fix="see its log; start it again, or wait longer (generate: --wait-s)",
                )
            return []
        if len(stream.prefix) < message.length:
            self.transport.send(LEADER, stream.opening())  # a commit was lost: the end is told again with it
            return []
        self._read(message)
        del self.streams[message.request, message.generation]
        stream.reason, stream.stats, stream.closed_s = message.reason, dict(message.stats), now
        self.last_stats = stream.stats or self.last_stats
        return [(stream, 0)]

    def _read(self, close: Close) -> None:
        """Whoever ended the request need not stay for our sake."""
        self.transport.send(LEADER, Close(request=close.request, generation=close.generation, reason=READ))

    def _refusal(self, bye: Bye) -> TransportError | TokenizerMismatchError:
        difference = first_difference(bye, self._tokens)
        if difference is None:
            return TransportError(f"the target refused the connection: {bye.reason}")
        token_id, ours, theirs = difference
        return TokenizerMismatchError(
            f"token {token_id} is {ours!r} in the tokenizer given here and {theirs!r} at the target",
            fix="give the target's own model as --target (or target.model): its tokenizer makes the token ids",
        )

    def _tell_again(self) -> None:
        for stream in self.streams.values():
            self._tell(stream)

    def _tell(self, stream: Stream) -> None:
        self.transport.send(LEADER, stream.opening())
        if stream.aborted:  # a leader that knew nothing of it knows now what it is to end
            self._send_abort(stream)

    def _keep_alive(self) -> None:
        now = monotonic()
        for message in self._attachment.tick(now=now):
            self.transport.send(LEADER, message)
        for stream in self.streams.values():
            if stream.due(now=now, repeat_s=self._repeat_s):
                stream.heard_s = now
                self._tell(stream)
        if self._ready and self._attachment.quiet_s(now=now) > self._silence_s:
            raise TransportError(f"the target has said nothing for {self._silence_s:g} s", fix="see its log")

    def follow(self, *, timeout_s: float = 0.25) -> Iterator[tuple[Stream, int]]:
        """News of all open requests until every one has ended."""
        while self.streams:
            yield from self.poll(timeout_s=timeout_s)

    def close(self) -> None:
        self.transport.send(LEADER, Bye(reason="done"))
        self.transport.close()
