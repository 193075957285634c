"""The walk that rules with one right token per position share: pick, descend if it was drafted, else stop. It knows
neither how the token is picked nor who drafted the tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dist_spec.core.sampling.pipeline import TokenReport
from dist_spec.core.types import NO_PARENT, FloatArray, IntArray, Verdict
from dist_spec.errors import ModelError, ProtocolError, RequestError

if TYPE_CHECKING:
    import torch


class Choice(NamedTuple):
    """The target's own token at one position, its margin (0 when not asked for), and its log probabilities if wanted."""

    token: int
    margin: float = 0.0
    report: TokenReport | None = None


Pick: TypeAlias = Callable[[FloatArray, Sequence[int]], Choice]
"""(logits row, drafted tokens between the last pending one and this position) -> choice."""


def walk(
    pick: Pick,
    *,
    tokens: IntArray,
    parents: IntArray,
    logits: torch.Tensor,
    with_margin: bool,
) -> Verdict:
    """Follow the target's own tokens through the draft tree.

    Args:
        pick: called for visited nodes only, root side first.
        with_margin: report the smallest margin that `pick` returned, else NaN.
    """
    if logits.ndim != 2 or logits.shape[0] != len(tokens) + 1:
        raise ModelError(f"expected logits of {len(tokens) + 1} rows (one and one per node), got {tuple(logits.shape)}")
    host_row = host_rows(logits)
    return descend(lambda row, path: pick(host_row(row), path), tokens=tokens, parents=parents, with_margin=with_margin)


def descend(
    choose: Callable[[int, Sequence[int]], Choice], *, tokens: IntArray, parents: IntArray, with_margin: bool
) -> Verdict:
    """`walk` over rows that are named by number: 0 follows the last pending token, 1 + i follows node i.

    Args:
        choose: (row, drafted tokens between the last pending one and this position) -> choice; visited rows only.
    """
    child_of = _children(tokens, parents)
    node = NO_PARENT
    path: list[int] = []
    emitted: list[int] = []
    smallest = float("inf")
    reports: list[TokenReport] = []
    while True:
        token, margin, report = choose(node + 1, emitted)
        emitted.append(token)
        smallest = min(smallest, margin)
        if report is not None:
            reports.append(report)
        child = child_of.get((node, token))
        if child is None:
            return Verdict(
                path=tuple(path),
                token=token,
                tokens=tuple(emitted),
                margin=smallest if with_margin else float("nan"),
                logprobs=tuple(one.logprob for one in reports),
                top_logprobs=tuple(one.top for one in reports),
            )
        path.append(child)
        node = child


def best_token(scores: npt.NDArray[np.floating[Any]], depth: int) -> int:
    """Id of the largest score (ties: the smallest id).

    Raises:
        RequestError: the largest score is NaN or infinite. numpy's argmax returns the first NaN, so one look suffices.
    """
    token = int(scores.argmax())
    check_finite(float(scores[token]), depth)
    return token


def check_finite(best: float, depth: int) -> None:
    """RequestError: the best score of a position is NaN or infinite."""
    if not np.isfinite(best):
        raise RequestError(
            f"the target's best score is {best} at {depth} token(s) below the last pending one",
            fix="decode this prompt in float32, or leave it out; other requests are not affected",
        )


def gap(scores: npt.NDArray[np.floating[Any]], token: int) -> float:
    """Best minus second-best score, given the id of the best; infinite when nothing else is possible."""
    rest = [part.max() for part in (scores[:token], scores[token + 1 :]) if part.size]
    return float("inf") if not rest else float(scores[token]) - float(max(rest))


def _children(tokens: IntArray, parents: IntArray) -> dict[tuple[int, int], int]:
    """(parent, token) -> node; of equal siblings the first counts."""
    if len(tokens) != len(parents):
        raise ProtocolError(f"a draft tree has {len(tokens)} tokens but {len(parents)} parents")
    children: dict[tuple[int, int], int] = {}
    for node, link in enumerate(zip(parents.tolist(), tokens.tolist(), strict=True)):
        if not NO_PARENT <= link[0] < node:
            raise ProtocolError(f"node {node} of a draft tree has parent {link[0]}; parents must come first")
        children.setdefault(link, node)
    return children


def host_rows(logits: torch.Tensor) -> Callable[[int], FloatArray]:
    """Row number -> that row as numpy float32; all are views when they are that already, else each is copied when read."""
    if logits.device.type == "cpu" and str(logits.dtype) == "torch.float32":
        rows: FloatArray = logits.detach().numpy()
        return rows.__getitem__
    return lambda row: logits[row].detach().float().cpu().numpy()
