"""A drafter from outside the package, and a deployment that uses it: `kind: plugin`.

    python examples/custom_drafter.py

The drafter guesses that a token is followed by whatever followed it last time. Target and drafter run as two processes on
a tiny random model. The same drafter in a settings file (this folder must be importable: PYTHONPATH=examples):

    drafters:
      - {kind: plugin, target: "custom_drafter:BigramDrafter", options: {depth: 3}}
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dist_spec.core.types import NO_PARENT, Expansion, Sampling
from dist_spec.drafters.base import ExpandRow, RequestKey


class BigramDrafter:
    """See `dist_spec.drafters.base.Drafter`: two methods and a name; no base class.

    Args:
        depth: guesses in a chain below one leaf.
    """

    kind = "bigram"

    def __init__(self, *, depth: int = 3) -> None:
        self.depth = depth
        self._indices: dict[RequestKey, tuple[int, dict[int, int]]] = {}  # tokens seen, token -> the one after it

    def expand(self, rows: Sequence[ExpandRow]) -> list[list[Expansion]]:
        """One expansion per leaf, in order; an empty one where there is no guess."""
        answers = []
        for row in rows:
            seen, follower = self._indices.get(row.key, (1, {}))
            follower.update(zip(row.history[seen - 1 : -1], row.history[seen:], strict=True))  # the latest pair wins
            self._indices[row.key] = (len(row.history), follower)
            answers.append([self._chain(follower, self._last_token(row, leaf)) for leaf in row.leaves])
        return answers

    def close(self, key: RequestKey) -> None:
        self._indices.pop(key, None)

    def _last_token(self, row: ExpandRow, leaf: int) -> int:
        return row.history[-1] if leaf == row.tree.root else row.tree.token[leaf]

    def _chain(self, follower: dict[int, int], token: int) -> Expansion:
        tokens: list[int] = []
        while len(tokens) < self.depth and token in follower:
            token = follower[token]
            tokens.append(token)
        return Expansion(
            tokens=np.array(tokens, np.int32),
            parents=np.arange(NO_PARENT, len(tokens) - 1, dtype=np.int32),  # each below the one before
            scores=np.full(len(tokens), np.log(0.6), np.float32),  # log of: right, given that its parent is
        )


def main() -> None:
    from dist_spec.bench.deployment import Deployment
    from dist_spec.config import parse_config
    from dist_spec.models.tokenizer import load_tokenizer

    # Where the drafter's process finds this module.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    config = parse_config(
        {
            # So small that it soon repeats itself.
            "target": {
                "model": "random:llama?seed=0&layers=1&hidden=16&heads=1&kv_heads=1&ffn=16",
                "dtype": "float32",
                "max_model_len": 512,
            },
            "drafters": [
                {
                    "kind": "plugin",
                    "name": "bigram",
                    "target": "custom_drafter:BigramDrafter",
                    "options": {"depth": 3},
                    "num_draft_tokens": 6,
                }
            ],
            "speculation": {"on_miss": "wait"},
        }
    )
    prompt = load_tokenizer(config.target.model).encode("one two three")
    with Deployment("example", config) as deployment:
        deployment.wait_ready()
        stream = deployment.client.open("r", prompt=prompt, sampling=Sampling(max_tokens=120, ignore_eos=True))
        shown = 0
        for _ in deployment.client.follow():
            print(*stream.tokens[shown:], end=" ", flush=True)
            shown = len(stream.tokens)
            deployment.check()
        print(f"\n{stream.reason}: {len(stream.tokens)} tokens in {stream.stats['steps']:.0f} verifications")
        print(f"accepted {stream.stats['accepted']:.0f} of {stream.stats['verified']:.0f} verified guesses")


if __name__ == "__main__":
    main()
