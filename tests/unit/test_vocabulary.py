"""Whether a drafter's tokens are the target's."""

from __future__ import annotations

import hashlib

from dist_spec.core.messages import PROTOCOL_VERSION, Hello
from dist_spec.core.vocabulary import HASH_BYTES, IDS_PER_HASH, first_difference, refusal

TOKENS = [f"t{i}" for i in range(300)]


def hashes(tokens: list[str]) -> bytes:
    return b"".join(
        hashlib.blake2b("\0".join(tokens[at : at + IDS_PER_HASH]).encode(), digest_size=HASH_BYTES).digest()
        for at in range(0, len(tokens), IDS_PER_HASH)
    )


def hello(tokens: list[str], **fields: object) -> Hello:
    values = {"role": "drafter", "name": "d", "vocabulary": hashes(tokens), "vocab_size": len(tokens), **fields}
    return Hello(**values)  # type: ignore[arg-type]


def answer(tokens: list[str], **fields: object):
    return refusal(hello(tokens, **fields), hashes(TOKENS), TOKENS)


def test_the_same_tokens_are_welcome() -> None:
    assert answer(TOKENS) is None


def test_a_longer_or_shorter_map_is_welcome_when_it_agrees() -> None:
    """Padding differs between models of one family, within a hash and beyond it."""
    assert answer(TOKENS + [f"pad{i}" for i in range(10)]) is None  # the last hash covers other ids
    assert answer(TOKENS + [f"pad{i}" for i in range(200)]) is None
    assert answer(TOKENS[:290]) is None
    assert answer(TOKENS[:100]) is None
    assert answer(TOKENS[:20]) is None


def test_the_ids_that_differ_are_named() -> None:
    for at in (0, 70, 299):
        other = [*TOKENS[:at], "other", *TOKENS[at + 1 :]]
        bye = answer(other)
        assert bye is not None
        assert bye.fatal
        first = at // IDS_PER_HASH * IDS_PER_HASH
        assert bye.first_id == first
        assert bye.tokens == tuple(TOKENS[first : first + IDS_PER_HASH])
        assert str(first) in bye.reason


def test_a_peer_without_tokens_fits_every_target() -> None:
    assert answer([]) is None
    assert refusal(hello(TOKENS), b"", ()) is None
    assert answer([], role="frontend") is None


def test_a_frontend_with_another_tokenizer_is_refused_too() -> None:
    bye = answer(["x"] * 100, role="frontend")
    assert bye is not None
    assert "frontend's tokenizer" in bye.reason
    assert first_difference(bye, ["x"] * 100) == (0, "x", "t0")
    assert first_difference(bye, TOKENS) is None


def test_another_protocol_or_role_is_refused() -> None:
    for fields in ({"protocol": PROTOCOL_VERSION + 1}, {"role": "king"}):
        bye = answer(TOKENS, **fields)
        assert bye is not None
        assert bye.fatal
