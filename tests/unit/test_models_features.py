"""Features are what the stock model's layers put out, row by row, whichever forward runs and whatever rides along."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from dist_spec.core.messages import Features
from dist_spec.errors import UnsupportedError
from dist_spec.models.features import HALF_MAX, caught, feature_rows, tells_features
from dist_spec.models.runner import ModelRunner
from dist_spec.transports.codec import decode, encode
from tests.unit.model_cases import ids, row, tiny

LAYERS = (0, 2)
FAMILIES = ["llama?layers=4", "qwen3?layers=4&window=6", "gemma2?layers=4&window=6", "mistral?layers=4"]


def truth(family: str, text: list[int]) -> np.ndarray:
    """By transformers' own forward."""
    model = tiny(family).model
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            result = model(input_ids=torch.tensor([text]), output_hidden_states=True)
    finally:
        model.set_attn_implementation(before)
    return torch.cat([result.hidden_states[layer + 1][0] for layer in LAYERS], dim=-1).numpy()


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("invariant", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_features_of_a_prompt_and_of_a_tree(family: str, invariant: bool, lean: bool) -> None:
    runner = ModelRunner(tiny(family), num_blocks=8, block_size=8, batch_invariant=invariant, lean=lean)
    runner.capture(LAYERS)
    text, other = ids(9), ids(5, seed=8)
    pending = runner.launch([row(range(4), 0, text), row(range(4, 8), 0, other)])
    pending.wait()
    np.testing.assert_allclose(pending.features(range(9)), truth(family, text), rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(pending.features(range(9, 14)), truth(family, other), rtol=2e-2, atol=2e-2)
    # The last token again with a tree below it: two children, and one below the second.
    step = runner.launch([row(range(4), 8, [text[8], 3, 4, 5], parents=[-1, -1, 1])])
    step.wait()
    np.testing.assert_allclose(step.features([0, 2, 3]), truth(family, [*text, 4, 5])[8:], rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(step.features([1])[0], truth(family, [*text, 3])[9], rtol=2e-2, atol=2e-2)


def test_nothing_is_kept_unless_asked_for() -> None:
    runner = ModelRunner(tiny("llama?layers=4"), num_blocks=4, block_size=8, batch_invariant=False)
    pending = runner.launch([row(range(4), 0, ids(9))])
    assert pending._outputs == []
    runner.capture(LAYERS)
    assert runner.launch([row(range(4), 0, ids(9))]).features([1]).shape == (1, 128)
    runner.capture(())
    assert runner.launch([row(range(4), 0, ids(9))])._outputs == []


def test_the_logits_do_not_depend_on_it() -> None:
    for lean in (True, False):
        runner = ModelRunner(tiny("llama?layers=4"), num_blocks=4, block_size=8, batch_invariant=True, lean=lean)
        plain = runner.forward([row(range(4), 0, ids(9))])
        runner.capture(LAYERS)
        assert torch.equal(plain, runner.forward([row(range(4), 0, ids(9))]))


def test_what_is_larger_than_a_float16_is_cut() -> None:
    wild = torch.tensor([[1e30, -1e30, 1.5], [0.0, 2.0, 3.0]])
    np.testing.assert_array_equal(feature_rows([wild, wild], [0])[0], [HALF_MAX, -HALF_MAX, 1.5] * 2)
    assert feature_rows([wild], [1, 0]).dtype == np.float16
    assert feature_rows([wild, wild], []).shape == (0, 6)


def test_what_is_no_number_is_sent_as_one() -> None:
    """A row that overflowed ends its own request at most: what cannot be encoded would end the leader."""
    wild = torch.tensor([[torch.nan, torch.inf, -torch.inf, 1.0]])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rows = feature_rows([wild.to(dtype)], [0])
        np.testing.assert_array_equal(rows, [[0.0, HALF_MAX, -HALF_MAX, 1.0]])
        message = Features(request="r", generation=0, base_length=1, base_digest=0, rows=rows)
        [came] = [decode(encode(message))]
        assert isinstance(came, Features)
        np.testing.assert_array_equal(came.rows, rows)


def test_a_model_whose_layers_cannot_be_found_gives_none() -> None:
    assert tells_features(tiny("llama").model)
    assert tells_features(tiny("gemma2").model)
    config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, bos_token_id=0, eos_token_id=1)
    other = GPT2LMHeadModel(config)
    assert not tells_features(other)
    with pytest.raises(UnsupportedError, match="GPT2LMHeadModel"), caught(other, [0], {}):
        pass
