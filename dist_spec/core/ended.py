"""Requests that ended, for frontends that missed the end: it is told again, and nothing is decoded twice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dist_spec.core.messages import Close, Commit, Message, Open
from dist_spec.core.sequence import Sequence

REMEMBERED = 256


class EndedRequests:
    """The last REMEMBERED requests that came to their own end (not those aborted or failed)."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, int], Ended] = {}

    def remember(self, sequence: Sequence, *, owner: str, close: Close) -> None:
        if sequence.finish_reason:
            self._ended[sequence.key] = Ended(sequence=sequence, owner=owner, close=close)
            while len(self._ended) > REMEMBERED:
                del self._ended[next(iter(self._ended))]

    def again(self, message: Open, *, peer: str) -> list[tuple[str, Message]]:
        """What to answer to an `Open` of a request that has ended; nothing when it is another request."""
        ended = self._ended.get((message.request, message.generation))
        return ended.repeat(message, peer=peer) if ended is not None and ended.is_of(message, peer=peer) else []


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """What a frontend is told again when it missed the end of its request."""

    sequence: Sequence
    owner: str
    close: Close

    def is_of(self, message: Open, *, peer: str) -> bool:
        """Whether an `Open` is this very request told again, and not another one of the same name."""
        told = [*message.prompt.tolist(), *message.generated.tolist()]
        same = message.sampling == self.sequence.sampling and len(message.prompt) == self.sequence.prompt_length
        return peer == self.owner and same and told == self.sequence.tokens[: len(told)]

    def repeat(self, message: Open, *, peer: str) -> list[tuple[str, Message]]:
        """The tokens that the repeated `Open` lacks, and the end."""
        have, prefix = len(message.prompt) + len(message.generated), self.sequence.prefix
        rest = Commit(
            request=self.close.request,
            generation=self.close.generation,
            base_length=have,
            base_digest=prefix.digests[have],
            tokens=np.array(prefix.tokens[have:], np.int32),
        )
        return [(peer, rest), (peer, self.close)] if len(rest.tokens) else [(peer, self.close)]
