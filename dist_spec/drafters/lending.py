"""Places lent to requests; the one unused for longest gives way. It knows nothing of what a place holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Generic, TypeVar

from dist_spec.drafters.base import RequestKey

Place = TypeVar("Place")


class Lending(Generic[Place]):
    """See the module.

    Args:
        places: all there are.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        self._spare = list(places)
        self._lent: OrderedDict[RequestKey, Place] = OrderedDict()

    def get(self, key: RequestKey) -> Place | None:
        """A request's place, if it has one."""
        return self._lent.get(key)

    def lend(self, key: RequestKey, *, in_use: Collection[RequestKey]) -> tuple[Place, bool] | None:
        """A request's place and whether it is newly lent; None where all are held by requests `in_use`."""
        place = self._lent.get(key)
        if place is not None:
            self._lent.move_to_end(key)
            return place, False
        if not self._spare:
            idle = next((other for other in self._lent if other not in in_use), None)
            if idle is None:
                return None
            self._spare.append(self._lent.pop(idle))
        place = self._lent[key] = self._spare.pop()
        return place, True

    def take_back(self, key: RequestKey) -> Place | None:
        """End a loan (unknown keys are ignored)."""
        place = self._lent.pop(key, None)
        if place is not None:
            self._spare.append(place)
        return place
