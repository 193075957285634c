"""The one way from a row of logits to the distribution that a token is drawn from: penalties, bias, masks, temperature,
truncation. It knows no drafter and no rule; drafted tokens reach it as the path to a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dist_spec.core.sampling.history import History
from dist_spec.core.sampling.slack import slack
from dist_spec.core.sampling.truncation import largest, truncate, weights_of
from dist_spec.core.types import FloatArray, Sampling
from dist_spec.errors import RequestError

Scores = npt.NDArray[np.float64]


class Scratch:
    """A float64 row that is written over again and again; one per thread."""

    def __init__(self) -> None:
        self._row: Scores = np.empty(0, dtype=np.float64)

    def row(self, size: int) -> Scores:
        """(size,) float64, contents undefined."""
        if len(self._row) != size:
            self._row = np.empty(size, dtype=np.float64)
        return self._row


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Support:
    """The tokens that may come next.

    Attributes:
        ids: (m,) int64 ascending, or None: the whole vocabulary, with -inf where a token may not come.
        scores: (m,) float64, processed logits over temperature (over 1 at temperature 0); -inf is impossible. Valid
            until the pipeline (or one that shares its scratch) is asked again.
    """

    ids: npt.NDArray[np.int64] | None
    scores: Scores

    def token(self, place: int) -> int:
        """The id at a place of `scores`."""
        return place if self.ids is None else int(self.ids[place])


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenReport:
    """Log probability of the token that came, and (id, log probability) of the most likely ones, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


class Pipeline:
    """The processors of one request, in this order: repetition penalty (prompt and output), frequency and presence
    penalty (output), logit bias, min tokens, bad words (within the output), temperature, top-k, top-p, min-p.

    Args:
        sampling: the request's.
        history: its committed tokens, kept up to date by the caller (`History.extend`).
        end_ids: ids that would end the request (masked while fewer than `min_tokens` tokens were generated).
        scratch: may be shared by pipelines of one thread.
    """

    def __init__(
        self,
        sampling: Sampling,
        *,
        history: History,
        end_ids: Iterable[int] = (),
        scratch: Scratch | None = None,
    ) -> None:
        self.sampling = sampling
        self.history = history
        self._scratch = scratch or Scratch()
        self._ends = np.array(sorted(set(end_ids)), dtype=np.int64)
        bias: dict[int, float] = {}
        for token, value in sampling.logit_bias:
            bias[token] = bias.get(token, 0.0) + value
        self._bias_ids = np.array(list(bias), dtype=np.int64)
        self._bias = np.array(list(bias.values()), dtype=np.float64)
        self._banned = np.array(sorted({word[0] for word in sampling.bad_words if len(word) == 1}), dtype=np.int64)
        self._words = [word for word in sampling.bad_words if len(word) > 1]
        self._longest = max((len(word) for word in self._words), default=1)
        self._penalises = (
            sampling.repetition_penalty != 1.0 or sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0
        )

    def probs(self, row: FloatArray, path: Sequence[int] = ()) -> Scores:
        """The target distribution, (V,) float64, sums to 1; at temperature 0 all of it on the best token.

        Args:
            row: (V,) float32 logits of the position after `path`.
            path: drafted tokens between the committed text and this position.

        Raises:
            RequestError: the row is not finite, or no token is left.
        """
        support = self.support(row, path)
        probs = np.zeros(len(row), dtype=np.float64)
        place: slice | npt.NDArray[np.int64] = slice(None) if support.ids is None else support.ids
        if self.sampling.temperature == 0.0:
            probs[support.token(int(support.scores.argmax()))] = 1.0
            return probs
        weights = weights_of(support.scores)
        probs[place] = weights / weights.sum()
        return probs

    def support(self, row: FloatArray, path: Sequence[int] = ()) -> Support:
        """Tokens that may follow `path`, and their scores; see `probs`. At temperature 0 nothing is truncated."""
        scores = self._processed(row, path)
        sampling = self.sampling
        if not sampling.restricts or sampling.temperature == 0.0:
            return Support(ids=None, scores=scores)
        ids = truncate(scores, top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p)
        return Support(ids=ids, scores=scores if ids is None else scores[ids])

    @property
    def is_plain(self) -> bool:
        """Nothing but the temperature is asked for: a rule may read the logits as they are."""
        return not self.sampling.is_processed and self.sampling.logprobs < 0

    def report(self, support: Support, token: int) -> TokenReport | None:
        """Log probabilities under the processed distribution, if the request asked for them (at temperature 0: those of
        temperature 1, as everything else would be 0 or minus infinity)."""
        if self.sampling.logprobs < 0:
            return None
        scores = support.scores
        best = float(scores.max())
        total = best + float(np.log(weights_of(scores).sum()))
        place = token if support.ids is None else int(np.searchsorted(support.ids, token))
        top = largest(scores, self.sampling.logprobs) if self.sampling.logprobs > 0 else ()
        ranked = sorted((-float(scores[at]), int(at)) for at in top)
        return TokenReport(
            logprob=float(scores[place]) - total,
            top=tuple((support.token(at), -score - total) for score, at in ranked),
        )

    def margin(
        self, row: FloatArray, path: Sequence[int], *, support: Support, token: int, noise: Scores | None = None
    ) -> float:
        """How far logits over temperature may move towards each other, in nats, before another token than `token` is
        chosen; cuts and the repetition penalty (which stretches logits) included. For the numeric-equality rule.

        Args:
            support: what was answered for this row and path last.
        """
        inside = np.zeros(len(row), dtype=np.bool_)
        inside[slice(None) if support.ids is None else support.ids] = support.scores > -np.inf
        is_cut = support.ids is None and self.sampling.restricts  # the scratch row lost what the cut took
        scores = self._processed(row, path) if is_cut else self._scratch.row(len(row))
        behind = scores.copy() if noise is None else scores + noise
        np.subtract(behind[token], behind, out=behind)
        stretch = max(self.sampling.repetition_penalty, 1.0 / self.sampling.repetition_penalty)
        cuts = self.sampling if self.sampling.temperature > 0.0 else Sampling()
        return slack(scores, behind, inside=inside, token=token, sampling=cuts) / stretch

    def _processed(self, row: FloatArray, path: Sequence[int]) -> Scores:
        """Everything before the truncation, in the scratch row."""
        highest = float(row.max())
        if not np.isfinite(highest):  # a NaN anywhere is the maximum
            raise RequestError(
                f"the target's best score is {highest} at {len(path)} token(s) below the last pending one",
                fix="decode this prompt in float32, or leave it out; other requests are not affected",
            )
        scores = self._scratch.row(len(row))
        np.copyto(scores, row)
        if self._penalises:
            # Both from the row itself: ids on the path are done over again, with the counts of output and path together.
            self._penalise(scores, row, self.history.ids, self.history.counts)
            if path:
                self._penalise(scores, row, *self.history.with_path(path))
        if len(self._bias):
            scores[self._bias_ids] += self._bias
        self._mask(scores, path)
        if self.sampling.temperature > 0.0:
            np.divide(scores, self.sampling.temperature, out=scores)
        return scores

    def _penalise(
        self, scores: Scores, row: FloatArray, ids: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
    ) -> None:
        sampling = self.sampling
        values = row[ids].astype(np.float64)
        if sampling.repetition_penalty != 1.0:
            divided, multiplied = values / sampling.repetition_penalty, values * sampling.repetition_penalty
            values = np.where(values > 0.0, divided, multiplied)
        values -= sampling.frequency_penalty * counts
        values -= sampling.presence_penalty * (counts > 0)
        scores[ids] = values

    def _mask(self, scores: Scores, path: Sequence[int]) -> None:
        """min_tokens and bad words."""
        masked = False
        if self.history.num_generated + len(path) < self.sampling.min_tokens and len(self._ends):
            scores[self._ends[self._ends < len(scores)]] = -np.inf  # a tokenizer may know ids that the model does not
            masked = True
        if len(self._banned):
            scores[self._banned] = -np.inf
            masked = True
        if self._words:
            recent = self.history.ending(self._longest - 1, path)
            for word in self._words:
                if len(word) - 1 <= len(recent) and tuple(recent[len(recent) - len(word) + 1 :]) == word[:-1]:
                    scores[word[-1]] = -np.inf
                    masked = True
        if masked and scores.max() == -np.inf:
            raise RequestError(
                f"no legal token is left at {len(path)} token(s) below the last pending one",
                fix="ban fewer tokens (bad_words, min_tokens)",
            )
