"""What a leader says to a drafter of one text, for tests of the drafter's end."""

from __future__ import annotations

from dist_spec.core.draft_session import DraftSession
from dist_spec.core.messages import Commit, Message, Open
from dist_spec.core.prefix import Prefix
from dist_spec.core.types import Sampling
from tests.unit.session_cases import ints, text_of

TEXT = text_of(3)
KEY = ("r", 0)


def opening(length: int = 5, *, generation: int = 0, text: list[int] = TEXT, ask: bool = False) -> Open:
    return Open(
        request="r",
        generation=generation,
        prompt=ints(text[:5]),
        generated=ints(text[5:length]),
        sampling=Sampling(max_tokens=100),
        ask=ask,
    )


def commit(base: int, length: int, *, ask: bool = False, text: list[int] = TEXT, generation: int = 0) -> Commit:
    return Commit(
        request="r",
        generation=generation,
        base_length=base,
        base_digest=Prefix(text[:base]).digest,
        tokens=ints(text[base:length]),
        ask=ask,
    )


def receive(session: DraftSession, *messages: Message, now: float = 0.0) -> list[Message]:
    return [answer for message in messages for answer in session.receive(message, now=now)]
