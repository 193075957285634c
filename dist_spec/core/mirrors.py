"""What drafters guessed, as the leader holds it: grafts into the mirrors of their draft trees, who guessed what, and whether
scores came true. It decides nothing about what is verified."""

from __future__ import annotations

import numpy as np

from dist_spec.core.control.reliability import Reliability
from dist_spec.core.control.scoring import Scorer, labels
from dist_spec.core.counts import SessionCounts
from dist_spec.core.law import are_lawful
from dist_spec.core.live import Live
from dist_spec.core.messages import Propose
from dist_spec.core.plan import PlanRow
from dist_spec.core.settings import Speculation
from dist_spec.core.types import Expansion, FloatArray

_MAX_SOURCES = 256
"""Drafters told apart: peers that come under ever new names must not fill the memory."""
UNKNOWN = "unknown"


class Mirrors:
    """Takes guesses in.

    Scores of drafter processes arrive calibrated (each calibrates its own); those of drafters inside the leader are
    calibrated here.

    Args:
        vocab_size: larger ids are refused.
        counts: told of every node.
    """

    def __init__(self, settings: Speculation, *, vocab_size: int, counts: SessionCounts) -> None:
        self.settings = settings
        self.vocab_size = vocab_size
        self.counts = counts
        self.reliability = Reliability(name=self.name)
        self.names: list[str] = []
        self._sources: dict[str, int] = {}
        self._scorers: dict[int, Scorer] = {}

    def source(self, name: str) -> int:
        """The number by which nodes name their drafter; -1 for one too many."""
        number = self._sources.get(name)
        if number is None:
            if len(self.names) >= _MAX_SOURCES:
                return -1
            number = self._sources[name] = len(self.names)
            self.names.append(name)
        return number

    def name(self, source: int) -> str:
        return self.names[source] if source >= 0 else UNKNOWN

    def propose(self, live: Live, proposal: Propose, *, drafter: str) -> int:
        """Graft a proposal, late or not; returns how many nodes are new, -1 when it is not one of this text."""
        prefix = live.sequence.prefix
        # Seen as unsigned, a negative id is larger than any vocabulary.
        ids = proposal.tokens.view(np.uint32)
        in_vocabulary = not len(ids) or int(ids.max()) < self.vocab_size
        known = prefix.matches(proposal.base_length, proposal.base_digest)
        if not known or not in_vocabulary or not are_lawful(proposal.tokens, proposal.laws, vocab_size=self.vocab_size):
            self.counts.stale += 1
            return -1
        tree = live.tree
        if len(tree) >= 2 * self.settings.max_nodes:
            return 0
        before = len(tree)
        tree.graft_late(
            prefix.tokens[proposal.base_length :],
            proposal.tokens,
            proposal.parents,
            self._scores(proposal.scores),
            source=self.source(drafter),
            laws=proposal.laws,
            first_counts=self.settings.blind,
        )
        return self._count(live, len(tree) - before)

    def guess(self, live: Live, guess: Expansion, *, drafter: str) -> int:
        """Graft guesses made inside the leader, below the present head; returns how many nodes are new."""
        tree, source = live.tree, self.source(drafter)
        scores, first = self._scores(guess.scores), -1
        if not self.settings.blind and len(guess.tokens):
            scorer = self._scorers.setdefault(source, Scorer())
            [scores], [first] = scorer.score([guess], [0])
        before = len(tree)
        ids = tree.graft(
            tree.root,
            guess.tokens,
            guess.parents,
            scores,
            source=source,
            laws=guess.laws,
            first_counts=self.settings.blind,
        )
        if first >= 0:
            tree.features.update((node, first + i) for i, node in enumerate(ids) if node >= before)
        return self._count(live, len(tree) - before)

    def committed(self, live: Live, row: PlanRow, path: tuple[int, ...], *, tokens: list[int]) -> None:
        """Learn from a verdict; to be told before the root moves along the tokens."""
        if self.settings.blind:
            return
        if row.sources:
            parents = row.forward.parents
            self.reliability.verified(parents=parents, scores=row.scores, sources=row.sources, accepted=path)
        if live.tree.features:
            for source, (serials, hits) in labels(live.tree, tokens).items():
                scorer = self._scorers.get(source)
                if scorer is not None:
                    scorer.learn(serials, hits, num_tokens=len(tokens))

    def _scores(self, scores: FloatArray) -> FloatArray:
        """What a score says of a drafted token must not be known where choices are blind (law 5)."""
        return np.zeros_like(scores) if self.settings.blind else scores

    def _count(self, live: Live, new: int) -> int:
        self.counts.drafted += new
        live.usage.drafted += new
        return new
