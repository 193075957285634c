"""Products with weights in 8 bits are those of the same weights in 16 up to rounding, for any number of rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from dist_spec.drafters import head_stack
from dist_spec.drafters.head_stack import HeadStack
from dist_spec.models.eight_bit import FEW_ROWS, eight_bit_linear
from dist_spec.models.head import Head
from dist_spec.models.head_formats import load_head, save_head
from tests.unit.head_cases import tiny_head
from tests.unit.test_head_formats import facts

SIZES = (64, 16, 48)
IN = 96

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="no fast product in 8 bits here"
)


def stored(size: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(weights as they were stored, in bfloat16, scales), rows of very different size."""
    draw = torch.Generator().manual_seed(seed)
    steps = torch.randint(-127, 128, (size, IN), generator=draw)
    scales = torch.rand(size, generator=draw) * 10.0 ** -torch.arange(1, size + 1).remainder(4)
    exact = steps * scales[:, None]
    return exact, exact.bfloat16(), scales


@pytest.mark.parametrize("num_rows", [1, 2, 5, FEW_ROWS, FEW_ROWS + 1])
def test_like_sixteen_bits(num_rows: int) -> None:
    cases = [stored(size, seed=size) for size in SIZES]
    linear = eight_bit_linear([weight for _, weight, _ in cases], [scales for _, _, scales in cases])
    assert linear is not None
    x = torch.randn(num_rows, IN, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = F.linear(x.float(), torch.cat([exact for exact, _, _ in cases]))
    found = linear(x)
    assert found.dtype == torch.bfloat16
    # Rounding of scales, of sums and of the result: 2^-9 each, of what is summed.
    size = F.linear(x.float().abs(), torch.cat([exact for exact, _, _ in cases]).abs())
    assert bool(((found.float() - expected).abs() <= 3 * 2.0**-9 * size).all())


def test_rows_of_a_larger_tensor() -> None:
    _, weight, scales = stored(32, seed=1)
    linear = eight_bit_linear([weight], [scales])
    assert linear is not None
    wide = torch.randn(4, 2 * IN).bfloat16()
    assert torch.equal(linear(wide[:, IN:]), linear(wide[:, IN:].clone()))


def test_other_types_are_left_to_others() -> None:
    exact, _, scales = stored(32, seed=1)
    assert eight_bit_linear([exact], [scales]) is None


@pytest.mark.parametrize("size", [7, 33, 90, 172])
def test_rows_that_the_product_would_read_beyond(size: int) -> None:
    weight = torch.ones(32, size, dtype=torch.bfloat16)
    assert eight_bit_linear([weight], [torch.ones(32)]) is None


def reloaded(folder: Path, **changes: object) -> Head:
    head = tiny_head(hidden_size=64, head_dim=16, intermediate_size=96, draft_vocab_size=96, **changes)
    save_head(head, folder)
    return load_head(folder, target=facts(head), dtype=torch.bfloat16)


def test_a_head_stored_in_eight_bits_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = reloaded(tmp_path)
    assert set(head.row_scales) == {f"{name}.weight" for name in ("q", "k", "v", "o", "gate", "up", "down", "lm_head")}
    made = []

    def spy(*args: object) -> object:
        made.append(eight_bit_linear(*args))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(head_stack, "eight_bit_linear", spy)
    eight = HeadStack(head, pack=True)
    assert len(made) == 5
    assert None not in made
    sixteen = HeadStack(head, pack=False)
    for num_rows in (1, FEW_ROWS, FEW_ROWS + 1):
        hidden = torch.randn(num_rows, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
        torch.testing.assert_close(eight.logits(hidden), sixteen.logits(hidden), rtol=0.02, atol=0.05)


def test_a_head_stored_in_sixteen_bits_is_not_rounded(tmp_path: Path) -> None:
    head = tiny_head()
    save_head(head, tmp_path, bits=16)
    assert load_head(tmp_path, target=facts(head), dtype=torch.bfloat16).row_scales == {}
