"""One drafter for the requests of several targets: the part that belongs to one of them. Targets name their requests without
knowing of each other; it keeps equal names apart and knows nothing of messages or models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dist_spec.core.types import Expansion, HalfArray
from dist_spec.drafters.base import Drafter, ExpandRow, Featured, Remembering, RequestKey


class Partition:
    """A drafter as one target's requests see it.

    Args:
        drafter: the one that all parts share.
        number: of this part.
    """

    def __init__(self, drafter: Drafter, *, number: int) -> None:
        self.kind = drafter.kind
        self._drafter = drafter
        self._number = number

    def rows(self, rows: Sequence[ExpandRow]) -> list[ExpandRow]:
        """The rows under names of their own among those of all parts."""
        return [replace(row, key=self._own(row.key)) for row in rows]

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        """See `Drafter.expand`."""
        return self._drafter.expand(self.rows(rows))

    def close(self, key: RequestKey) -> None:
        """Forget a request (unknown keys are ignored)."""
        self._drafter.close(self._own(key))

    def forget(self) -> None:
        """Drop what ended requests left, those of the other parts too."""
        if isinstance(self._drafter, Remembering):
            self._drafter.forget()

    def features(self, key: RequestKey, first_position: int, rows: HalfArray) -> None:
        """See `Featured.features`."""
        if isinstance(self._drafter, Featured):
            self._drafter.features(self._own(key), first_position, rows)

    def _own(self, key: RequestKey) -> RequestKey:
        return f"{self._number}/{key[0]}", key[1]
