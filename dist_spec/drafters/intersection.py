"""The drafter that is a smaller language model with another tokenizer, restricted to the tokens that the target has too
(token-level intersection, arXiv 2502.05202). It knows no messages, peers or time.

Its guesses, and the laws they are drawn from, are the target's ids: probabilities of common tokens, renormalised.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from dist_spec.core.types import Expansion
from dist_spec.drafters.base import ExpandRow, RequestKey
from dist_spec.drafters.chooser import Chooser
from dist_spec.drafters.draw import LawSettings
from dist_spec.drafters.follower import Follower
from dist_spec.drafters.leaf_reader import LeafReader
from dist_spec.drafters.vocabularies import Columns, Vocabularies


class IntersectionDrafter:
    """See `drafters.base.Drafter`.

    Args:
        reader: the small model.
        both: the target's and its own vocabulary.
        laws: draw one guess per leaf from a law that travels with it (rules that weigh); None: the best-ranked guesses.
    """

    kind = "model"

    def __init__(self, reader: LeafReader, *, both: Vocabularies, laws: LawSettings | None = None) -> None:
        self._reader = reader
        self._both = both
        self._columns = both.columns(reader.vocab_size)
        self._chooser = Chooser(
            vocab_size=both.target.size, eos_ids=both.target.eos_ids, laws=laws, ids=self._columns.target_ids
        )
        self._followers: dict[RequestKey, Follower] = {}

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        """See `Drafter.expand`."""
        places = [self._places(row) for row in rows]
        asked = [
            self._followers[row.key].row(row, sorted(set(place.values())))
            for row, place in zip(rows, places, strict=True)
        ]
        read = self._reader.read(asked)
        return [self._guesses(row, place, *found) for row, place, found in zip(rows, places, read, strict=True)]

    def close(self, key: RequestKey) -> None:
        """See `Drafter.close`."""
        self._followers.pop(key, None)
        self._chooser.close(key)
        self._reader.close(key)

    def _places(self, row: ExpandRow) -> dict[int, int]:
        """The node of the drafter's own tree for each leaf; none for what it cannot read."""
        follower = self._followers.get(row.key)
        if follower is None:
            follower = self._followers[row.key] = Follower(self._both)
        self._reader.rewind(row.key, follower.follow(row.history))
        if not follower.context.ids:
            return {}
        found: dict[int, int] = {}
        for leaf in row.leaves:
            path = self._both.to_drafter[row.tree.path_tokens(leaf)].tolist()
            if -1 not in path:
                node = follower.tree.root
                for token in path:
                    node = follower.step_down(node, token)
                found[leaf] = node
        return found

    def _guesses(
        self, row: ExpandRow, places: dict[int, int], nodes: Sequence[int], logits: torch.Tensor
    ) -> list[Expansion]:
        """One per leaf of the row; empty for those that could not be read."""
        at = {node: i for i, node in enumerate(nodes)}
        leaves = [leaf for leaf in row.leaves if places.get(leaf, -1) in at]
        rows = logits[[at[places[leaf]] for leaf in leaves]]
        common = restricted(rows, self._columns, temperature=row.sampling.temperature)
        guesses = dict(zip(leaves, self._chooser.guess(row, leaves, common), strict=True))
        return [guesses.get(leaf) or Expansion.empty() for leaf in row.leaves]


def restricted(logits: torch.Tensor, columns: Columns, *, temperature: float) -> torch.Tensor:
    """Logits of the common tokens, (n, m). Ids with the same bytes count together: their probabilities at this temperature
    add up (at 0: the best of them), so that the law told of a token is all of what it can come from.

    Args:
        logits: (n, drafter's width).
    """
    common = logits[:, _on(logits, columns.drafter_ids)]
    for ids, places in columns.more:
        at = _on(logits, places)
        further, so_far = logits[:, _on(logits, ids)], common[:, at]
        if temperature > 0.0:
            common[:, at] = torch.logaddexp(so_far / temperature, further / temperature) * temperature
        else:
            common[:, at] = torch.maximum(so_far, further)
    return common


def _on(logits: torch.Tensor, ids: npt.NDArray[np.int64]) -> torch.Tensor:
    return torch.from_numpy(ids).to(logits.device)
