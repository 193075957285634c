"""A prefix of token ids with its digest at every length; the name by which messages speak of it (law 3)."""

from __future__ import annotations

from collections.abc import Iterable

_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15
_MIX = 0xBF58476D1CE4E5B9
EMPTY_DIGEST = 0x6C62272E07BB0142


def extend_digest(digest: int, token: int) -> int:
    """64-bit digest of a prefix one token longer. Not cryptographic: peers are trusted not to forge, only to be late.

    Multiply and xor-shift finalisation as in splitmix64 (Steele, Lea, Flood 2014).
    """
    x = ((digest ^ (token + _ODD)) * _MIX) & _MASK
    return x ^ (x >> 29)


class Prefix:
    """Token ids and the digest of each of their prefixes; only ever grows.

    `digests[n]` names the first n tokens, so a base from any moment of the past can be recognised.
    """

    __slots__ = ("digests", "tokens")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self.digests: list[int] = [EMPTY_DIGEST]
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        digest = self.digests[-1]
        for token in tokens:
            digest = extend_digest(digest, token)
            self.tokens.append(token)
            self.digests.append(digest)

    @property
    def digest(self) -> int:
        return self.digests[-1]

    def matches(self, length: int, digest: int) -> bool:
        """Whether (length, digest) names a prefix of this one."""
        return 0 <= length < len(self.digests) and self.digests[length] == digest
