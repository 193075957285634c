"""Merges the ways in which texts went on into a small tree of guesses: a chain along what was seen most often, and short
alternatives where counts are close. It knows nothing of where the texts came from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dist_spec.core.types import NO_PARENT, Expansion
from dist_spec.drafters.suffix_index import MAX_MATCH

NUM_FEATURES = 4
"""Of a guess: its score, log match length, log share of the votes, depth below the leaf (from 0)."""

# Log odds of a guess, given that those above it are right: a logistic fit on 120 texts of a small chat model, greedy and
# at temperature 0.8. A starting point; whoever verifies learns the truth from the features.
_ODDS = -0.3
_ODDS_OF_LENGTH, _ODDS_OF_SHARE, _ODDS_BELOW_FIRST = 1.25, 2.0, -0.5

_LOG_LENGTH = [math.log(max(length, 1)) for length in range(MAX_MATCH + 1)]
_CLOSE = 0.3  # least share of an alternative below the first token
_NUM_LATER = 2  # alternatives below the first token
_ALTERNATIVE_TOKENS = 4  # an alternative is short: when it comes true it is expanded in its turn


def _score(*, length: int, log_share: float, below_first: bool) -> float:
    """Log of the estimated probability that a guess is right."""
    odds = _ODDS + _ODDS_OF_LENGTH * _LOG_LENGTH[length] + _ODDS_OF_SHARE * log_share + _ODDS_BELOW_FIRST * below_first
    return -math.log1p(math.exp(-odds))


_UNOPPOSED = [_score(length=length, log_share=0.0, below_first=True) for length in range(MAX_MATCH + 1)]


class Continuation:
    """How a text went on after one match.

    Attributes:
        matched: length of the match before it (1 .. `MAX_MATCH`); a longer match has more weight.
        tokens: what followed; at least one.
    """

    __slots__ = ("matched", "tokens")

    def __init__(self, matched: int, tokens: list[int]) -> None:
        self.matched = matched
        self.tokens = tokens


class _Sketch:
    """The tree so far, as columns."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self.log_lengths: list[float] = []
        self.log_shares: list[float] = []
        self.depths: list[int] = []

    def add(self, token: int, *, above: int, matched: int, share: float, depth: int) -> int:
        node = len(self.tokens)
        length, log_share = min(matched + depth, MAX_MATCH), math.log(share)
        self.tokens.append(token)
        self.parents.append(above)
        self.scores.append(_score(length=length, log_share=log_share, below_first=depth > 0))
        self.log_lengths.append(_LOG_LENGTH[length])
        self.log_shares.append(log_share)
        self.depths.append(depth)
        return node

    def add_chain(self, one: Continuation, *, above: int, start: int, stop: int) -> None:
        """Tokens `start .. stop - 1` of a continuation that no other contradicts."""
        if start == 0:
            above = self.add(one.tokens[0], above=above, matched=one.matched, share=1.0, depth=0)
            start = 1
        tokens = one.tokens[start:stop]
        first, number, reached = len(self.tokens), len(tokens), one.matched + start
        if not number:
            return
        self.tokens += tokens
        self.parents.append(above)
        self.parents += range(first, first + number - 1)
        longest = max(number - max(MAX_MATCH - reached, 0), 0)  # nodes behind a match of the greatest length
        self.scores += _UNOPPOSED[reached : reached + number - longest] + _UNOPPOSED[-1:] * longest
        self.log_lengths += _LOG_LENGTH[reached : reached + number - longest] + _LOG_LENGTH[-1:] * longest
        self.log_shares += [0.0] * number
        self.depths += range(start, start + number)

    def share_out(self, siblings: Sequence[int]) -> None:
        """At most one of several tokens for one place is right: their probabilities add up to 1 at most."""
        total = sum(math.exp(self.scores[node]) for node in siblings)
        if total > 1.0:
            excess = math.log(total)
            for node in siblings:
                self.scores[node] -= excess

    def expansion(self) -> Expansion:
        features = np.empty((len(self.tokens), NUM_FEATURES), dtype=np.float32)
        scores = np.array(self.scores, dtype=np.float32)
        features[:, 0] = scores
        features[:, 1] = self.log_lengths
        features[:, 2] = self.log_shares
        features[:, 3] = self.depths
        return Expansion(
            tokens=np.array(self.tokens, dtype=np.int32),
            parents=np.array(self.parents, dtype=np.int32),
            scores=scores,
            features=features,
        )


def merge(continuations: Sequence[Continuation], *, length: int, width: int) -> Expansion:
    """The tree of guesses below one leaf.

    Args:
        continuations: longest match first.
        length: longest chain (tokens).
        width: first tokens offered at most.
    """
    if not continuations:
        return Expansion.empty()
    sketch = _Sketch()
    alive, above, depth, later = list(continuations), NO_PARENT, 0, _NUM_LATER if width > 1 else 0
    while alive and depth < length:
        lead = alive[0]
        if all(one.tokens == lead.tokens for one in alive):
            sketch.add_chain(lead, above=above, start=depth, stop=length)
            break
        (best, share), *others = _votes(alive, depth)
        if depth == 0:
            others = others[: width - 1]
        else:
            others = [vote for vote in others[:later] if vote[1] >= _CLOSE]
            later -= len(others)
        leaders = [next(one for one in alive if one.tokens[depth] == token) for token, _ in others]
        alive = [one for one in alive if one.tokens[depth] == best]
        heads = [sketch.add(best, above=above, matched=alive[0].matched, share=share, depth=depth)]
        for one, (token, part) in zip(leaders, others, strict=True):
            heads.append(sketch.add(token, above=above, matched=one.matched, share=part, depth=depth))
            sketch.add_chain(one, above=heads[-1], start=depth + 1, stop=min(depth + _ALTERNATIVE_TOKENS, length))
        if others:
            sketch.share_out(heads)
        above = heads[0]
        depth += 1
        alive = [one for one in alive if len(one.tokens) > depth]
    return sketch.expansion()


def _votes(alive: Sequence[Continuation], depth: int) -> list[tuple[int, float]]:
    """(token, share of the votes) of what came at one depth, most first; equal shares in the order of the matches."""
    votes: dict[int, int] = {}
    total = 0
    for one in alive:
        token = one.tokens[depth]
        votes[token] = votes.get(token, 0) + one.matched
        total += one.matched
    if len(votes) == 1:
        return [(token, 1.0) for token in votes]
    return sorted([(token, vote / total) for token, vote in votes.items()], key=_by_share)


def _by_share(vote: tuple[int, float]) -> float:
    return -vote[1]
