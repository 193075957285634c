"""What the processor tests share: an independent pipeline, a tabular model, laws by enumeration, wrong variants."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dist_spec.core.sampling.history import History
from dist_spec.core.sampling.pipeline import Pipeline
from dist_spec.core.types import Sampling

END = 2
PROMPT = (1, 0)


def reference(
    logits: Sequence[float],
    *,
    prompt: Sequence[int],
    output: Sequence[int],
    sampling: Sampling,
    ends: Sequence[int] = (),
) -> np.ndarray:
    """Probabilities from first principles: dense counts, a full sort, one step after the other."""
    values = np.array(logits, dtype=np.float64)
    ids = range(len(values))
    seen, count = {*prompt, *output}, [list(output).count(token) for token in ids]
    for token in ids:
        if token in seen:
            factor = sampling.repetition_penalty
            values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
        values[token] -= sampling.frequency_penalty * count[token] + sampling.presence_penalty * (count[token] > 0)
    for token, bias in sampling.logit_bias:
        values[token] += bias
    if len(output) < sampling.min_tokens:
        values[list(ends)] = -np.inf
    for word in sampling.bad_words:
        if (*output, word[-1])[-len(word) :] == word:
            values[word[-1]] = -np.inf
    if sampling.temperature == 0.0:
        best = np.zeros(len(values))
        best[values.argmax()] = 1.0
        return best
    values /= sampling.temperature
    order = sorted(ids, key=lambda token: (-values[token], token))
    if sampling.top_k:
        values[order[sampling.top_k :]] = -np.inf
    probs = np.exp(values - values.max())
    probs /= probs.sum()
    if sampling.top_p < 1.0:
        mass = np.cumsum(probs[order])
        probs[order[int(np.searchsorted(mass, sampling.top_p)) + 1 :]] = 0.0
    probs[probs < sampling.min_p * probs.max()] = 0.0
    return probs / probs.sum()


class Table:
    """Next-token logits as a fixed random function of the text."""

    def __init__(self, vocab_size: int, *, seed: int) -> None:
        self.vocab_size = vocab_size
        self._seed = seed
        self._rows: dict[tuple[int, ...], np.ndarray] = {}

    def row(self, text: Sequence[int]) -> np.ndarray:
        key = tuple(text)
        if key not in self._rows:
            draw = np.random.default_rng([self._seed, len(key), *key])
            self._rows[key] = (1.3 * draw.standard_normal(self.vocab_size) + 0.4).astype(np.float32)
        return self._rows[key]


ALL = Sampling(
    temperature=0.9, repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.6, min_tokens=3, top_p=0.97
)
SETTINGS = {
    "everything": ALL,
    "frequency": Sampling(temperature=1.0, frequency_penalty=0.8),
    "presence": Sampling(temperature=1.0, presence_penalty=0.8),
    "repetition": Sampling(temperature=1.0, repetition_penalty=1.6),
    "min_tokens": Sampling(temperature=1.0, min_tokens=3),
    "min_p": Sampling(temperature=1.0, min_p=0.35),
    "top_k": Sampling(temperature=0.8, top_k=2),
    "top_p": Sampling(temperature=0.7, top_p=0.8),
    "bias": Sampling(temperature=0.7, logit_bias=((0, 1.5), (1, -0.5))),
    "bad words": Sampling(temperature=1.0, bad_words=((0, 1), (1, 1, 0))),
    "bans": Sampling(temperature=1.0, bad_words=((1,),)),
}

Rows = Callable[[tuple[int, ...], tuple[int, ...], int, int], np.ndarray]
"""(output at the start of the block, drafted path, number of the block, length of the draft) -> probabilities."""


def honest(table: Table, sampling: Sampling) -> Rows:
    """What the product does: committed history once, the path on top."""

    def row(output: tuple[int, ...], path: tuple[int, ...], block: int, drafted: int) -> np.ndarray:
        history = History([*PROMPT, *output], prompt_length=len(PROMPT))
        return Pipeline(sampling, history=history, end_ids=[END]).probs(table.row((*output, *path)), path)

    return row


def autoregressive_law(table: Table, sampling: Sampling, length: int) -> dict[tuple[int, ...], float]:
    """Text -> probability, one token after the other, by the independent pipeline."""
    law: dict[tuple[int, ...], float] = {}
    for text in itertools.product(range(table.vocab_size), repeat=length):
        weight = 1.0
        for place, token in enumerate(text):
            output = text[:place]
            probs = reference(table.row(output), prompt=PROMPT, output=output, sampling=sampling, ends=[END])
            weight *= probs[token]
            if weight == 0.0:
                break
        law[text] = weight
    return law


def block_law(table: Table, rows: Rows, length: int, *, drafted: int = 2) -> dict[tuple[int, ...], float]:
    """Text -> probability under drafting with exact matching: the target's own token goes on while it was drafted."""
    law: dict[tuple[int, ...], float] = {}

    def walk(output: tuple[int, ...], path: tuple[int, ...], block: int, weight: float) -> None:
        if len(output) + len(path) >= length:
            text = (*output, *path)[:length]
            law[text] = law.get(text, 0.0) + weight
            return
        for token, probability in enumerate(rows(output, path, block, drafted)):
            if probability == 0.0:
                continue
            longer = (*path, token)
            guess = draft(table, output, drafted)
            if len(path) < drafted and guess[len(path)] == token:
                walk(output, longer, block, weight * probability)
            else:
                walk((*output, *longer), (), block + 1, weight * probability)

    walk((), (), 0, 1.0)
    return law


def draft(table: Table, output: tuple[int, ...], drafted: int) -> tuple[int, ...]:
    """The likeliest chain by raw logits, END included: a drafter that knows no processors."""
    path: tuple[int, ...] = ()
    while len(path) < drafted:
        path = (*path, int(table.row((*output, *path)).argmax()))
    return path


def distance(law: dict[tuple[int, ...], float], other: dict[tuple[int, ...], float]) -> float:
    """Total variation."""
    return 0.5 * sum(abs(law.get(text, 0.0) - other.get(text, 0.0)) for text in {*law, *other})


# ---- the defects that engines have had, as alternative pipelines


def with_history(
    table: Table, sampling: Sampling, believed: Callable[[tuple[int, ...], tuple[int, ...]], Sequence[int]]
) -> Rows:
    """The real pipeline told a wrong history."""

    def row(output: tuple[int, ...], path: tuple[int, ...], block: int, drafted: int) -> np.ndarray:
        history = History([*PROMPT, *believed(output, path)], prompt_length=len(PROMPT))
        return Pipeline(sampling, history=history, end_ids=[END]).probs(table.row((*output, *path)))

    return row


def with_settings(table: Table, changed: Callable[[Sampling, int, int, int], Sampling], sampling: Sampling) -> Rows:
    """The real pipeline with settings that depend on (depth, block, length of the draft)."""

    def row(output: tuple[int, ...], path: tuple[int, ...], block: int, drafted: int) -> np.ndarray:
        wrong = changed(sampling, len(path), block, drafted)
        return honest(table, wrong)(output, path, block, drafted)

    return row


def without_penalties(sampling: Sampling) -> Sampling:
    return replace(sampling, repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0)


def top_p_first(table: Table, sampling: Sampling) -> Rows:
    def row(output: tuple[int, ...], path: tuple[int, ...], block: int, drafted: int) -> np.ndarray:
        logits = table.row((*output, *path))
        early = Sampling(temperature=sampling.temperature, top_p=sampling.top_p)
        kept = Pipeline(early, history=History([], prompt_length=0)).probs(logits) > 0.0
        late = honest(table, replace(sampling, top_p=1.0))(output, path, block, drafted)
        return np.where(kept, late, 0.0) / late[kept].sum() if late[kept].sum() > 0 else late

    return row


def mutants(table: Table) -> dict[str, tuple[Sampling, Rows]]:
    """Name -> (settings under which it shows, rows)."""
    words = SETTINGS["bad words"]
    doubled = Sampling(temperature=1.0, frequency_penalty=0.8)
    return {
        "history frozen at the start of the block": (ALL, with_history(table, ALL, lambda out, path: out)),
        "bad words ignore drafted tokens": (words, with_history(table, words, lambda out, path: out)),
        "only the last token of a step is counted": (
            ALL,
            with_history(table, ALL, lambda out, path: (*out[-1:], *path)),
        ),
        "last committed token counted twice": (
            doubled,
            with_history(table, doubled, lambda out, path: (*out, *(out[-1:] if path else ()), *path)),
        ),
        "penalties ignored": (ALL, with_settings(table, lambda s, *_: without_penalties(s), ALL)),
        "penalties on the bonus row only": (
            ALL,
            with_settings(table, lambda s, depth, _, n: s if depth == n else without_penalties(s), ALL),
        ),
        "min_tokens counts steps": (
            ALL,
            with_settings(table, lambda s, _, block, n: replace(s, min_tokens=0 if block >= s.min_tokens else 99), ALL),
        ),
        "min_p on the bonus row only": (
            SETTINGS["min_p"],
            with_settings(table, lambda s, depth, _, n: s if depth == n else replace(s, min_p=0.0), SETTINGS["min_p"]),
        ),
        "top_p before the penalties": (ALL, top_p_first(table, ALL)),
        "frequency counts the prompt": (
            doubled,
            with_history(table, doubled, lambda out, path: (*PROMPT, *out, *path)),
        ),
    }
