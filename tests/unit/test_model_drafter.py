"""The model drafter: its guesses are the model's own, whatever happened to its cache before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from dist_spec.core.noise import gumbel_row, request_key
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Expansion, Sampling
from dist_spec.drafters.base import ExpandRow
from dist_spec.drafters.model import ModelDrafter
from tests.unit.model_cases import ids, stock_logits, tiny

MODES = {
    "loop": {},
    "single": {"batch_invariant": True, "attention": "single"},
    "shared": {"batch_invariant": True},
    "padded": {"attention": "padded"},
}


class Request:
    """What the drafting session keeps of one request: history, the nodes' slots, the tree."""

    def __init__(self, prompt: Sequence[int], *, name: str = "a", sampling: Sampling | None = None) -> None:
        self.history = list(prompt)
        self.slots = [-1] * len(prompt)
        self.prompt_length = len(prompt)
        self.key = (name, 0)
        self.sampling = sampling or Sampling()
        self.tree = DraftTree(len(prompt), self.history[-1])

    def row(self, leaves: Sequence[int], *, width: int = 3) -> ExpandRow:
        return ExpandRow(
            key=self.key,
            history=self.history,
            history_slots=self.slots,
            prompt_length=self.prompt_length,
            generated_offset=0,
            sampling=self.sampling,
            tree=self.tree,
            leaves=list(leaves),
            width=width,
        )

    def graft(self, leaf: int, guesses: Expansion) -> list[int]:
        return self.tree.graft(leaf, guesses.tokens, guesses.parents, guesses.scores)

    def commit(self, tokens: Sequence[int]) -> None:
        self.slots.extend(self.tree.advance(tokens))
        self.history.extend(tokens)

    def text(self, node: int) -> list[int]:
        return [*self.history, *self.tree.path_tokens(node)]


def expected(family: str, text: Sequence[int], width: int) -> tuple[list[int], torch.Tensor]:
    logits = stock_logits(tiny(family), text)[-1]
    best = logits.log_softmax(-1).topk(width)
    return best.indices.tolist(), best.values


def check(family: str, request: Request, leaves: Sequence[int], guesses: Sequence[Expansion]) -> None:
    for leaf, guess in zip(leaves, guesses, strict=True):
        tokens, scores = expected(family, request.text(leaf), len(guess.tokens))
        assert guess.tokens.tolist() == tokens
        assert (guess.parents == -1).all()
        np.testing.assert_allclose(guess.scores, scores.numpy(), atol=2e-3)


def grow(drafter: ModelDrafter, family: str, request: Request, *, steps: int, leaves: int, seed: int) -> None:
    """Expand random leaves, checking every guess against the stock model."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        open_nodes = [n for n in request.tree.nodes() if not request.tree.children[n]]
        picked = random.choice(open_nodes, size=min(leaves, len(open_nodes)), replace=False).tolist()
        guesses = drafter.expand([request.row(picked)])[0]
        check(family, request, picked, guesses)
        for leaf, guess in zip(picked, guesses, strict=True):
            request.graft(leaf, guess)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ["llama", "qwen3?window=6", "gemma2?window=6"])
def test_every_leaf_sees_the_committed_text_and_its_own_ancestors(family, mode):
    drafter = ModelDrafter(tiny(family), max_context=128, tree_slots=64, **MODES[mode])
    request = Request(ids(11))
    grow(drafter, family, request, steps=4, leaves=4, seed=1)
    for commit in range(4):
        chain = request.tree.best_chain(3)[: 1 + commit % 3]
        accepted = [request.tree.token[n] for n in chain]
        request.commit(accepted if commit % 2 else [*accepted, 7 + commit])  # a hit, or a miss that drops the tree
        grow(drafter, family, request, steps=3, leaves=3, seed=commit)


@pytest.mark.parametrize("mode", MODES)
def test_committed_nodes_are_copied_not_computed_again(mode, monkeypatch):
    drafter = ModelDrafter(tiny("llama"), max_context=64, tree_slots=32, **MODES[mode])
    request = Request(ids(9))
    leaf = request.tree.root
    for _ in range(4):
        leaf = request.graft(leaf, drafter.expand([request.row([leaf])])[0][0])[0]
    request.commit([request.tree.token[n] for n in request.tree.best_chain(3)])
    fed: list[int] = []
    inner = drafter._reader._packed.logits

    def counted(segments, *, tokens, **rest):
        fed.append(len(tokens))
        return inner(segments, tokens=tokens, **rest)

    monkeypatch.setattr(drafter._reader._packed, "logits", counted)
    check("llama", request, [leaf], drafter.expand([request.row([leaf])])[0])
    assert fed == [1]


def test_self_drafting_agrees_with_the_target_bit_for_bit_in_invariant_mode():
    from dist_spec.models.runner import ModelRunner
    from tests.unit.model_cases import row

    loaded = tiny("llama?seed=2", "bfloat16")
    drafter = ModelDrafter(loaded, max_context=64, tree_slots=32, batch_invariant=True)
    target = ModelRunner(loaded, num_blocks=8, block_size=8, batch_invariant=True)
    request = Request(ids(8))
    leaf, drafted = request.tree.root, []
    for _ in range(20):
        leaf = request.graft(leaf, drafter.expand([request.row([leaf], width=2)])[0][0])[0]
        drafted.append(request.tree.token[leaf])
    text = list(request.history)
    logits = target.forward([row(range(8), 0, text)])[-1]
    for token in drafted:
        assert int(logits.argmax()) == token
        text.append(token)
        logits = target.forward([row(range(8), len(text) - 1, [token])])[-1]


def test_several_requests_in_one_forward_and_a_late_join(monkeypatch):
    drafter = ModelDrafter(tiny("llama"), max_context=64, tree_slots=32)
    first, second = Request(ids(7), name="a"), Request(ids(13, seed=4), name="b")
    grow(drafter, "llama", first, steps=2, leaves=2, seed=0)
    calls: list[int] = []
    inner = drafter._reader._packed.logits

    def counted(segments, **rest):
        calls.append(len(segments))
        return inner(segments, **rest)

    monkeypatch.setattr(drafter._reader._packed, "logits", counted)
    leaves = [n for n in first.tree.nodes() if not first.tree.children[n]][:3]
    answers = drafter.expand([first.row(leaves), second.row([second.tree.root])])
    assert calls == [2]
    check("llama", first, leaves, answers[0])
    check("llama", second, [second.tree.root], answers[1])


def test_a_long_history_is_prefilled_in_chunks_and_a_jump_is_caught_up(monkeypatch):
    drafter = ModelDrafter(tiny("llama"), max_context=128, tree_slots=16, prefill_chunk=10)
    request = Request(ids(35))
    check("llama", request, [request.tree.root], drafter.expand([request.row([request.tree.root])])[0])
    request.commit(ids(27, seed=9))
    check("llama", request, [request.tree.root], drafter.expand([request.row([request.tree.root])])[0])


def test_slots_of_vanished_nodes_are_used_again_and_the_cap_holds():
    drafter = ModelDrafter(tiny("llama"), max_context=256, tree_slots=8)
    request = Request(ids(6))
    for turn in range(12):
        leaves = [request.tree.root]
        for _ in range(6):
            guesses = drafter.expand([request.row(leaves)])[0]
            check("llama", request, leaves, guesses)
            leaves = [request.graft(leaf, g)[0] for leaf, g in zip(leaves, guesses, strict=True)]
        slots = [request.tree.slot[n] for n in request.tree.nodes() if request.tree.slot[n] >= 0]
        assert len(slots) == len(set(slots)) <= 8
        request.commit([request.tree.token[n] for n in request.tree.best_chain(2)] if turn % 3 else ids(2, seed=turn))


def test_beyond_the_node_cap_a_leaf_gets_nothing_and_the_rest_stays_right():
    drafter = ModelDrafter(tiny("llama"), max_context=64, tree_slots=3)
    request = Request(ids(6))
    children = request.graft(0, drafter.expand([request.row([0], width=5)])[0][0])
    guesses = drafter.expand([request.row(children)])[0]
    assert [len(g.tokens) for g in guesses] == [3, 3, 3, 0, 0]
    check("llama", request, children[:3], guesses[:3])


def test_a_context_longer_than_the_drafters_gets_no_guesses():
    drafter = ModelDrafter(tiny("llama"), max_context=12, tree_slots=8)
    request = Request(ids(11))
    guesses = drafter.expand([request.row([0])])[0]
    check("llama", request, [0], guesses)
    nodes = request.graft(0, guesses[0])
    below = request.graft(nodes[0], drafter.expand([request.row(nodes[:1])])[0][0])
    assert len(below) == 3
    assert [len(g.tokens) for g in drafter.expand([request.row(below)])[0]] == [0, 0, 0]
    request.commit(ids(3))
    assert [len(g.tokens) for g in drafter.expand([request.row([request.tree.root])])[0]] == [0]


def test_a_forgotten_request_starts_over_though_its_tree_names_old_slots():
    drafter = ModelDrafter(tiny("llama"), max_context=64, tree_slots=16, max_requests=1)
    first, other = Request(ids(7), name="a"), Request(ids(9, seed=3), name="b")
    grow(drafter, "llama", first, steps=3, leaves=2, seed=0)
    grow(drafter, "llama", other, steps=3, leaves=2, seed=1)  # takes the only region
    first.commit([first.tree.token[n] for n in first.tree.best_chain(2)])
    grow(drafter, "llama", first, steps=2, leaves=2, seed=2)
    drafter.close(first.key)
    drafter.close(("unknown", 3))
    grow(drafter, "llama", first, steps=2, leaves=2, seed=3)
    crowded = drafter.expand([first.row([first.tree.root]), other.row([other.tree.root])])
    assert [len(g.tokens) for g in crowded[1]] == [0]
    check("llama", first, [first.tree.root], crowded[0])


def test_padded_ids_of_the_drafter_are_never_guessed():
    loaded = tiny("llama?vocab=400")
    drafter = ModelDrafter(loaded, max_context=64, tree_slots=16, target_vocab=259)
    request = Request(ids(6))
    guess = drafter.expand([request.row([0], width=259)])[0][0]
    assert sorted(guess.tokens.tolist()) == list(range(259))
    logits = stock_logits(loaded, request.history)[-1, :259]
    assert guess.tokens[0] == int(logits.argmax())
    np.testing.assert_allclose(np.exp(guess.scores).sum(), 1.0, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.8, 3.0])
def test_sampled_guesses_are_ranked_with_the_targets_noise(temperature):
    sampling = Sampling(temperature=temperature, seed=11, sample_index=2)
    drafter = ModelDrafter(tiny("llama"), max_context=64, tree_slots=32)
    request = Request(ids(8), sampling=sampling)
    request.commit(ids(3, seed=5))
    nodes = request.graft(0, drafter.expand([request.row([0])])[0][0])
    key = request_key(11, 2)
    differs = 0
    for node, guess in zip(nodes, drafter.expand([request.row(nodes)])[0], strict=True):
        logits = stock_logits(tiny("llama"), request.text(node))[-1].double().numpy() / temperature
        noisy = logits + gumbel_row(key, 3 + 1, 259)  # 3 generated tokens, then the node
        assert guess.tokens.tolist() == np.argsort(-noisy)[:3].tolist()
        differs += guess.tokens[0] != int(logits.argmax())
        assert (np.diff(guess.scores) <= 0).all()
        assert (guess.scores <= 0).all()
    if temperature > 1:
        assert differs


def test_an_id_beyond_its_embedding_gets_no_guesses_and_no_error() -> None:
    """A target with a wider (padded) vocabulary may commit an id that this model cannot read."""
    drafter = ModelDrafter(tiny("llama"), max_context=64)
    history = [1, 2, 5000, 3]
    tree = DraftTree(len(history), 3)
    row = ExpandRow(
        key=("r", 0),
        history=history,
        history_slots=[-1] * 4,
        prompt_length=4,
        generated_offset=0,
        sampling=Sampling(),
        tree=tree,
        leaves=[tree.root],
        width=2,
    )
    for _ in range(2):
        [[guess]] = drafter.expand([row])
        assert len(guess.tokens) == 0
