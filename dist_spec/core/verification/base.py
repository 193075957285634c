"""What every verification rule looks like: logits and a draft tree in, a verdict out. A rule knows nothing of drafters,
sessions, caches or time; its noise is an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from dist_spec.core.sampling.pipeline import Pipeline
from dist_spec.core.types import IntArray, Verdict
from dist_spec.core.verification.weigh import Draws

if TYPE_CHECKING:
    import torch

NoiseRow: TypeAlias = Callable[[int], npt.NDArray[np.float64]]
"""depth -> (V,) float64 Gumbel noise of the token at that depth below the last pending token; depth 0 comes first."""


class VerificationRule(Protocol):
    """One kind of rule, set up for one request. Not thread-safe: it keeps scratch rows.

    Attributes:
        name: as in the configuration.
        lossless: whether the committed text has the target's own law (a rule that says False must be allowed by name).
        needs_noise: whether `verify` must be given a noise row.
        needs_draws: whether `verify` must be told how the tokens were drawn.
    """

    @property
    def name(self) -> str: ...

    @property
    def lossless(self) -> bool: ...

    @property
    def needs_noise(self) -> bool: ...

    @property
    def needs_draws(self) -> bool: ...

    def verify(
        self,
        *,
        tokens: IntArray,
        parents: IntArray,
        logits: torch.Tensor,
        noise_row: NoiseRow | None,
        pipeline: Pipeline | None = None,
        draws: Draws | None = None,
    ) -> Verdict:
        """Walk the draft tree as far as the target agrees.

        Args:
            tokens: (num_nodes,) int32 drafted tokens; may be empty (plain decoding).
            parents: (num_nodes,) int32, parents first; NO_PARENT = below the last pending token.
            logits: (1 + num_nodes, V) float32; row 0 follows the last pending token, row 1 + i follows node i. Only
                the rows of visited nodes are read.
            noise_row: asked once per visited node; unused by rules that do not need noise.
            pipeline: the request's processors, at its committed text; None: nothing but the temperature.
            draws: how the tokens were drawn, and uniforms to weigh them with; only for rules that do.

        Raises:
            RequestError: a visited row has NaN or infinite best logits, or no legal token; names the position.
            ModelError: `logits` has another shape.
            ProtocolError: `parents` is not a tree with parents first.
        """
        ...
