"""Why a live deployment accepts more or less than the teacher-forced figure of the same drafter on the same texts. Pure
arithmetic over both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dist_spec.bench.score.ranks import Trail, chain_length, starts


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """From one to the other, in tokens per verification; the parts add up: teacher_forced + start_positions - no_tree -
    shallow + rest = live.

    Attributes:
        teacher_forced: of a chain of `depth`, over all positions of the texts.
        start_positions: verifications start where the last one ended, which is no average place.
        no_tree: lost as no guess was at hand at the start although there was one to make.
        shallow: lost as the tree at hand was not `depth` deep.
        rest: which places had no tree, other features or scores than teacher-forced, the ends of texts.
        ready_share, full_share: verifications with any guess at hand, and with one of full depth.
        silent_share: starts at which the drafter has nothing to guess.
    """

    depth: int
    teacher_forced: float
    start_positions: float
    no_tree: float
    shallow: float
    rest: float
    live: float
    ready_share: float
    full_share: float
    silent_share: float


def explain(
    texts: Sequence[Sequence[Trail]], *, depth: int, live: float, ready_depths: Sequence[tuple[int, int, int]]
) -> Gap:
    """Take the difference apart.

    Args:
        texts: positions of every text, in order.
        live: tokens per verification of the live run.
        ready_depths: (depth of the tree at hand at the start, verifications, tokens they committed).
    """
    forced = chain_length([trail for text in texts for trail in text], depth)
    begun = [text[at] for text in texts for at in starts(text, depth)]
    begun = [one for one in begun if one.known >= depth]  # near its end a text has no room for `depth`
    runs = [one.run for one in begun if not one.silent]

    def accepted(at_hand: int) -> float:
        """Where there is something to guess."""
        return sum(min(run, at_hand) for run in runs) / len(runs) if runs else 0.0

    total = sum(rows for _, rows, _ in ready_depths) or 1
    shares = {at_hand: rows / total for at_hand, rows, _ in ready_depths}
    silent = 1.0 - len(runs) / len(begun) if begun else 0.0
    full = 1.0 + (1.0 - silent) * accepted(depth)
    ready = sum(share for at_hand, share in shares.items() if at_hand > 0)
    no_tree = max(1.0 - ready - silent, 0.0) * accepted(depth)
    shallow = sum(share * (accepted(depth) - accepted(at_hand)) for at_hand, share in shares.items() if at_hand > 0)
    return Gap(
        depth=depth,
        teacher_forced=forced,
        start_positions=full - forced,
        no_tree=no_tree,
        shallow=shallow,
        rest=live - (full - no_tree - shallow),
        live=live,
        ready_share=ready,
        full_share=sum(share for at_hand, share in shares.items() if at_hand >= depth),
        silent_share=silent,
    )
