"""Whether a drafter's token-to-id map is the target's, judged by hashes of 64 ids each; knows no tokenizer library."""

from __future__ import annotations

from collections.abc import Sequence

from dist_spec.core.messages import PROTOCOL_VERSION, Bye, Hello

IDS_PER_HASH = 64
HASH_BYTES = 4


def refusal(hello: Hello, vocabulary: bytes, tokens: Sequence[str]) -> Bye | None:
    """Why this peer cannot take part, or None. A drafter without a tokenizer (n-gram) fits every target.

    Args:
        vocabulary: the target's hashes, HASH_BYTES per IDS_PER_HASH ids; empty when it has no tokenizer.
        tokens: the target's tokens by id, sent along so that the drafter can name the first id that differs.
    """
    if hello.protocol != PROTOCOL_VERSION:
        return Bye(reason=f"protocol {hello.protocol} is not {PROTOCOL_VERSION}", fatal=True)
    if hello.role not in ("drafter", "frontend"):
        return Bye(reason=f"unknown role {hello.role!r}", fatal=True)
    if not hello.vocabulary or not vocabulary:
        return None
    # Padded vocabularies differ in length only: what lies beyond the shorter map is nobody's token. The last hash of
    # the shorter one may cover fewer than 64 ids, so it is left out of the comparison unless both end there.
    same_end = len(hello.vocabulary) == len(vocabulary) and hello.vocab_size in (0, len(tokens))
    shorter = min(len(hello.vocabulary), len(vocabulary))
    whole = shorter if same_end else shorter - HASH_BYTES
    for at in range(0, whole, HASH_BYTES):
        if hello.vocabulary[at : at + HASH_BYTES] != vocabulary[at : at + HASH_BYTES]:
            first = at // HASH_BYTES * IDS_PER_HASH
            ids = f"{first}..{first + IDS_PER_HASH - 1}"
            return Bye(
                reason=f"the {hello.role}'s tokenizer differs from the target's among ids {ids}",
                fatal=True,
                first_id=first,
                tokens=tuple(tokens[first : first + IDS_PER_HASH]),
            )
    return None


def first_difference(bye: Bye, tokens: Sequence[str]) -> tuple[int, str, str] | None:
    """(id, token here, token at the target) where a refusal for another tokenizer names it; None for other refusals.

    Args:
        tokens: ours, by id.
    """
    for offset, theirs in enumerate(bye.tokens):
        token_id = bye.first_id + offset
        ours = tokens[token_id] if token_id < len(tokens) else ""
        if ours != theirs:
            return token_id, ours, theirs
    return None
