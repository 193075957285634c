"""The one error tree. Every error a user can cause names the place and the fix; it knows nothing of the rest."""

from __future__ import annotations

__all__ = [
    "BadInputError",
    "CapacityError",
    "ConfigError",
    "DistSpecError",
    "ModelError",
    "ProtocolError",
    "RequestError",
    "TokenizerMismatchError",
    "TransportError",
    "UnsupportedError",
    "WorkerError",
]


class DistSpecError(Exception):
    """Base of all errors raised on purpose.

    Args:
        message: what is wrong, and where.
        fix: what the user can do about it (shown on a line of its own).
    """

    exit_code = 2

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return self.message if self.fix is None else f"{self.message}\n  fix: {self.fix}"


class ConfigError(DistSpecError):
    """A setting is unknown, of the wrong type or contradicts another."""


class UnsupportedError(DistSpecError):
    """Something that exists elsewhere but not (yet) here was asked for; refused by name."""


class ModelError(DistSpecError):
    """A model cannot be found, read or run faithfully."""


class TokenizerMismatchError(ModelError):
    """Target and drafter do not share one token-to-id map; names the first id that differs."""


class RequestError(DistSpecError):
    """One request cannot be served (too long, malformed, NaN logits). Never affects another request."""


class CapacityError(RequestError):
    """A request needs more KV cache than there is."""


class ProtocolError(DistSpecError):
    """A message is malformed, oversized, or of another protocol version."""


class TransportError(DistSpecError):
    """A peer cannot be reached, or an address cannot be bound."""


class BadInputError(DistSpecError):
    """A process of ours could not begin with what it was given; carries its own message and fix."""


class WorkerError(DistSpecError):
    """A process of ours ended unexpectedly."""

    exit_code = 1
