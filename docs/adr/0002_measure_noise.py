"""Times one row of Gumbel noise made by several generators (for ADR 0002); it is not part of the package.

OMP_NUM_THREADS=1 python docs/adr/0002_measure_noise.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from dist_spec.core.noise import gumbel_at, gumbel_row, request_key

VOCAB = 49_152
KEY = request_key(1, 0)
ROW = np.empty(VOCAB)
MULTIPLIERS_32 = (0xD2511F53, 0xCD9E8D57)
WEYL_32 = (0x9E3779B9, 0xBB67AE85)
LOW = 0xFFFFFFFF


def philox4x32_numpy() -> np.ndarray:
    """Philox4x32-10, two tokens per block, in numpy integer operations."""
    block = np.arange(VOCAB // 2, dtype=np.uint64)
    words = [block, np.full_like(block, 3), np.zeros_like(block), np.zeros_like(block)]
    keys = [1, 2]
    for _ in range(10):
        first, second = words[0] * np.uint64(MULTIPLIERS_32[0]), words[2] * np.uint64(MULTIPLIERS_32[1])
        words = [
            (second >> np.uint64(32)) ^ words[1] ^ np.uint64(keys[0]),
            second & np.uint64(LOW),
            (first >> np.uint64(32)) ^ words[3] ^ np.uint64(keys[1]),
            first & np.uint64(LOW),
        ]
        keys = [(key + step) & LOW for key, step in zip(keys, WEYL_32, strict=True)]
    bits = np.stack([words[1] << np.uint64(32) | words[0], words[3] << np.uint64(32) | words[2]], axis=1).ravel()
    return -np.log(-np.log(((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52))


def philox4x32_torch() -> torch.Tensor:
    """The same in torch (int64: a 32 x 32 product may wrap, so the high word is masked after the shift)."""
    block = torch.arange(VOCAB // 2, dtype=torch.int64)
    words = [block, torch.full_like(block, 3), torch.zeros_like(block), torch.zeros_like(block)]
    keys = [1, 2]
    for _ in range(10):
        first, second = words[0] * MULTIPLIERS_32[0], words[2] * MULTIPLIERS_32[1]
        words = [
            ((second >> 32) & LOW) ^ words[1] ^ keys[0],
            second & LOW,
            ((first >> 32) & LOW) ^ words[3] ^ keys[1],
            first & LOW,
        ]
        keys = [(key + step) & LOW for key, step in zip(keys, WEYL_32, strict=True)]
    high, low = torch.stack([words[1], words[3]], dim=1).ravel(), torch.stack([words[0], words[2]], dim=1).ravel()
    uniform = (high.double() * 2.0**20 + (low >> 12).double() + 0.5) * 2.0**-52
    return -torch.log(-torch.log(uniform))


def milliseconds(make: Callable[[], object], repeats: int = 200) -> tuple[float, float]:
    """(minimum, median) of `repeats` calls."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        make()
        taken.append(time.perf_counter() - start)
    taken.sort()
    return taken[0] * 1e3, taken[repeats // 2] * 1e3


def main() -> None:
    torch.set_num_threads(1)
    ids = {count: np.random.default_rng(0).integers(0, VOCAB, count) for count in (32, 300, 7200)}
    cases: dict[str, Callable[[], object]] = {
        "Philox4x64-10, numpy's C, gumbel_row(out=)": lambda: gumbel_row(KEY, 3, VOCAB, out=ROW),
        "Philox4x64-10, numpy's C, words alone": lambda: np.random.Philox(key=1).random_raw(VOCAB),
        "Philox4x32-10, numpy operations": philox4x32_numpy,
        "Philox4x32-10, torch operations": philox4x32_torch,
        "no counter: numpy Generator.gumbel": lambda: np.random.default_rng(1).gumbel(size=VOCAB),
        **{f"gumbel_at, {n} ids": (lambda chosen=chosen: gumbel_at(KEY, 3, chosen)) for n, chosen in ids.items()},
    }
    for name, make in cases.items():
        print("{:52s} {:7.3f} {:7.3f}".format(name, *milliseconds(make)))


if __name__ == "__main__":
    main()
