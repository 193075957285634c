"""The decisions file: one JSON record per step and request, for tuning and testing policies on what happened. It decides
nothing, and where no file is asked for none of it exists.

docs/operating.md lists the fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Key: TypeAlias = tuple[str, int]


class DecisionWriter:
    """Writes what the leader's session tells of every row, with what it does not know: domain, entropy, time taken.

    Args:
        path: written anew.
        busy_s: seconds that this process has worked so far (waits and idle time left out).
    """

    def __init__(self, path: Path, *, busy_s: Callable[[], float]) -> None:
        self.num_records = 0
        self._file = path.open("w", encoding="utf-8")
        self._busy_s = busy_s
        self._step = -1
        self._step_began_s = 0.0
        self._actual_s = 0.0
        self._entropies: dict[Key, float] = {}

    def logits(self, key: Key, row: npt.NDArray[np.floating[Any]], *, temperature: float) -> None:
        """The target's logits for the token after the committed text, (V,); call it before the verdict of the row."""
        self._entropies[key] = entropy(row, temperature=temperature or 1.0)

    def row(self, record: Mapping[str, Any]) -> None:
        """One verified row; needs `step`, `request` and `generation`, and keeps whatever else there is."""
        if record["step"] != self._step:
            now_s = self._busy_s()
            # Steps between that only read prompts left no record, and their seconds are not this one's.
            follows = self._step >= 0 and record["step"] == self._step + 1
            self._actual_s = now_s - self._step_began_s if follows else 0.0
            self._step, self._step_began_s = record["step"], now_s
        key = (record["request"], record["generation"])
        told = {
            **{
                name: None if isinstance(value, float) and value != value else value for name, value in record.items()
            },  # JSON has no NaN
            "domain": domain_of(record["request"]),
            "entropy": self._entropies.pop(key, None),
            "actual_s": self._actual_s or None,
        }
        self._file.write(json.dumps(told, default=_plain, separators=(",", ":")) + "\n")
        self.num_records += 1

    def close(self) -> None:
        self._file.close()


def domain_of(request: str) -> str:
    """The label in front of a request's name ("code:t0-0-3" is of the domain "code"); "" without one."""
    domain, colon, _ = request.partition(":")
    return domain if colon else ""


def entropy(logits: npt.NDArray[np.floating[Any]], *, temperature: float) -> float:
    """In nats, of softmax(logits / temperature)."""
    scaled = np.asarray(logits, np.float64) / temperature
    scaled -= scaled.max()
    weights = np.exp(scaled)
    total = float(weights.sum())
    with np.errstate(invalid="ignore"):  # 0 x -inf where a token is impossible
        mean = float(np.nansum(weights * scaled)) / total
    return float(np.log(total) - mean)


def _plain(value: Any) -> Any:
    """Arrays and numpy's numbers as JSON has them."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)
