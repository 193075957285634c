"""Leaders at the points where tests of the leader's end begin."""

from __future__ import annotations

from dist_spec.core.settings import Speculation
from tests.unit.session_cases import Leader, chain, text_of

TEXT = text_of(1)
OTHER = text_of(2)
PULL = Speculation(delivery="pull", pull_timeout_s=0.5)


def leader(settings: Speculation | None = None, **options: object) -> Leader:
    return Leader({"r": TEXT, "s": OTHER}, settings, **options)


def attached(settings: Speculation | None = None, **options: object) -> Leader:
    """A leader with one drafter and one running request that has made its first step."""
    made = leader(settings, **options)
    made.hello("d")
    made.open()
    if settings is not None and settings.delivery == "pull":
        made.step()
        answer(made, [])
    else:
        made.step()
    return made


def length(made: Leader, request: str = "r") -> int:
    return len(made.session.live[request, 0].sequence.prefix)


def answer(made: Leader, tokens: list[int], *, peer: str = "d") -> None:
    made.send(peer, chain(TEXT, length(made), tokens))
