"""The processors as a drafter applies them: the same penalties, masks and cuts, on its few best candidates only, so that
its guesses rank as the target will. An approximation is allowed here, as nothing that a drafter does changes the text; it
knows no models or trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dist_spec.core.sampling.history import History
from dist_spec.core.types import Sampling

Scores = npt.NDArray[np.float64]
Ids = npt.NDArray[np.integer]


class DraftProcessors:
    """Adjusts candidates of several leaves at once; keeps a history per request, extended by new commits only.

    Args:
        eos_ids: end-of-sequence ids as far as the drafter knows them.
        capacity: requests whose history is kept; the one unused for longest is counted anew when it comes back.
    """

    def __init__(self, *, eos_ids: Sequence[int] = (), capacity: int = 64) -> None:
        self._eos_ids = tuple(eos_ids)
        self._capacity = capacity
        self._histories: dict[tuple[str, int], History] = {}

    def close(self, key: tuple[str, int]) -> None:
        """Forget a request."""
        self._histories.pop(key, None)

    def scores(
        self,
        key: tuple[str, int],
        *,
        sampling: Sampling,
        tokens: Sequence[int],
        prompt_length: int,
        paths: Sequence[Sequence[int]],
        ids: Ids,
        logits: Scores,
    ) -> Scores:
        """(n, m) float64: processed logits over temperature (over 1 at temperature 0); -inf where a candidate is dropped.

        Args:
            key: the request.
            tokens, prompt_length: its committed text as the drafter knows it.
            paths: per leaf, the drafted tokens from the committed text to the leaf, the leaf included.
            ids, logits: (n, m) candidates of each leaf.
        """
        history = self._history(key, tokens, prompt_length=prompt_length) if sampling.needs_history else None
        return approximate(
            ids, logits, sampling=sampling, history=history, paths=paths, end_ids=self._end_ids(sampling)
        )

    def _end_ids(self, sampling: Sampling) -> tuple[int, ...]:
        return sampling.stop_token_ids if sampling.ignore_eos else (*sampling.stop_token_ids, *self._eos_ids)

    def _history(self, key: tuple[str, int], tokens: Sequence[int], *, prompt_length: int) -> History:
        history = self._histories.pop(key, None)
        if history is None or history.source is not tokens or history.length > len(tokens):
            history = History(tokens, prompt_length=prompt_length, length=0)
            while len(self._histories) >= self._capacity:
                del self._histories[next(iter(self._histories))]
        history.extend(len(tokens))
        self._histories[key] = history
        return history


def approximate(
    ids: Ids,
    logits: Scores,
    *,
    sampling: Sampling,
    history: History | None,
    paths: Sequence[Sequence[int]],
    end_ids: Sequence[int] = (),
) -> Scores:
    """See `DraftProcessors.scores`; `history` may be None where `sampling.needs_history` is False."""
    scores = np.array(logits, dtype=np.float64)
    if history is not None:
        _penalise(scores, ids, sampling=sampling, history=history, paths=paths)
    for token, bias in sampling.logit_bias:
        scores[ids == token] += bias
    if history is not None:
        _mask(scores, ids, sampling=sampling, history=history, paths=paths, end_ids=end_ids)
    if sampling.temperature > 0.0:
        scores /= sampling.temperature
        if sampling.restricts:
            _truncate(scores, ids, sampling=sampling)
    return scores


def _penalise(
    scores: Scores, ids: Ids, *, sampling: Sampling, history: History, paths: Sequence[Sequence[int]]
) -> None:
    repetition, frequency, presence = (
        sampling.repetition_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
    )
    if repetition == 1.0 and frequency == 0.0 and presence == 0.0:
        return
    counts = _occurrences(ids, history=history)
    seen = counts >= 0
    drafted = _on_path(ids, paths)
    counts = np.maximum(counts, 0) + drafted
    if repetition != 1.0:
        scaled = np.where(scores > 0.0, scores / repetition, scores * repetition)
        np.copyto(scores, scaled, where=seen | (drafted > 0))
    scores -= frequency * counts
    scores -= presence * (counts > 0)


def _occurrences(ids: Ids, *, history: History) -> npt.NDArray[np.int64]:
    """Occurrences of each id in the output; -1 where it is neither there nor in the prompt."""
    counts = np.full(1 + max(int(ids.max()), int(history.ids.max(initial=0))), -1, dtype=np.int64)
    counts[history.ids] = history.counts
    return counts[ids]


def _on_path(ids: Ids, paths: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    """Occurrences of each id among the drafted tokens before it."""
    longest = max((len(path) for path in paths), default=0)
    table = np.full((len(paths), 1, longest), -1, dtype=np.int64)
    for row, path in enumerate(paths):
        table[row, 0, : len(path)] = path
    return np.count_nonzero(ids[:, :, None] == table, axis=2)


def _mask(
    scores: Scores,
    ids: Ids,
    *,
    sampling: Sampling,
    history: History,
    paths: Sequence[Sequence[int]],
    end_ids: Sequence[int],
) -> None:
    single = [word[0] for word in sampling.bad_words if len(word) == 1]
    if single:
        scores[np.isin(ids, single)] = -np.inf
    longer = [word for word in sampling.bad_words if len(word) > 1]
    longest = max((len(word) for word in longer), default=1)
    for row, path in enumerate(paths):
        banned = list(end_ids) if history.num_generated + len(path) < sampling.min_tokens else []
        recent = history.ending(longest - 1, path)
        banned += [word[-1] for word in longer if tuple(recent[max(len(recent) - len(word) + 1, 0) :]) == word[:-1]]
        if banned:
            scores[row, np.isin(ids[row], banned)] = -np.inf


def _truncate(scores: Scores, ids: Ids, *, sampling: Sampling) -> None:
    """Drop candidates that top-k, top-p or min-p drop; the mass of what is no candidate is left out of account."""
    order = np.lexsort((ids, -scores), axis=1)
    ranked = np.take_along_axis(scores, order, axis=1)
    best = ranked[:, :1]
    weights = np.exp(ranked - np.where(best == -np.inf, 0.0, best))
    keep = np.ones(scores.shape, dtype=np.bool_)
    if sampling.top_k > 0:
        keep[:, sampling.top_k :] = False
        weights[:, sampling.top_k :] = 0.0
    if sampling.top_p < 1.0:
        mass = np.cumsum(weights, axis=1)
        keep[:, 1:] &= mass[:, :-1] < sampling.top_p * mass[:, -1:]
    keep &= weights >= sampling.min_p
    dropped = np.empty_like(keep)
    np.put_along_axis(dropped, order, ~keep, axis=1)
    scores[dropped] = -np.inf
