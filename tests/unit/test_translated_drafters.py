"""Model drafters with another vocabulary, as drafters: what they guess below which leaf, and how one is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dist_spec.config import ModelDrafterConfig, parse_config
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Expansion, Sampling
from dist_spec.drafters.base import Drafter, ExpandRow
from dist_spec.drafters.build import ModelDrafterSettings
from dist_spec.drafters.build_model import SpeakingDrafter, check_vocabulary, model_drafter
from dist_spec.drafters.chooser import Chooser
from dist_spec.drafters.draw import LawSettings
from dist_spec.drafters.intersection import IntersectionDrafter
from dist_spec.drafters.model import ModelDrafter
from dist_spec.drafters.text_match import TextDrafter
from dist_spec.errors import ConfigError, ModelError, TokenizerMismatchError
from dist_spec.models.loading import LoadedModel
from dist_spec.models.tokenizer import Tokenizer
from tests.unit.vocabulary_cases import (
    between,
    byte_bpe,
    in_bytes,
    piece_bpe,
    random_with,
    reader,
    shuffled,
    word_pieces,
    writer,
)

TARGET = "llama?seed=5&hidden=48"
PROMPT = list(b"In the end, ")


def row(
    history: list[int], *, tree: DraftTree | None = None, leaves: tuple[int, ...] = (0,), **sampling: Any
) -> ExpandRow:
    return ExpandRow(
        key=("r", 0),
        history=history,
        history_slots=[-1] * len(history),
        prompt_length=len(PROMPT),
        generated_offset=0,
        sampling=Sampling(**sampling),
        tree=tree or DraftTree(len(history), history[-1]),
        leaves=list(leaves),
        width=4,
    )


def chain(history: list[int], tokens: list[int]) -> tuple[DraftTree, int]:
    tree = DraftTree(len(history), history[-1])
    parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
    return tree, tree.graft(0, np.array(tokens, np.int32), parents, np.zeros(len(tokens), np.float32))[-1]


def intersection(loaded: LoadedModel) -> IntersectionDrafter:
    return IntersectionDrafter(reader(loaded), both=between(writer(TARGET), loaded))


def text(loaded: LoadedModel) -> TextDrafter:
    return TextDrafter(reader(loaded), both=between(writer(TARGET), loaded))


def own_guess(history: list[int], **sampling: Any) -> Expansion:
    [[guess]] = ModelDrafter(writer(TARGET), max_context=512).expand([row(history, **sampling)])
    return guess


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}, {"logit_bias": ((ord("x"), 50.0),)}])
def test_the_same_model_under_other_ids_guesses_the_same(sampling):
    [[guess]] = intersection(shuffled(TARGET)).expand([row(PROMPT, **sampling)])
    own = own_guess(PROMPT, **sampling)
    assert guess.tokens.tolist() == own.tokens.tolist()
    np.testing.assert_allclose(guess.scores, own.scores, atol=0.2)  # what is no common token is left out of the sum
    if "logit_bias" in sampling:
        assert guess.tokens[0] == ord("x")


@pytest.mark.parametrize("make", [intersection, text])
def test_every_leaf_is_read_below_its_own_path(make: Callable[[LoadedModel], Drafter]):
    drafter = make(shuffled(TARGET))
    tree, tip = chain(PROMPT, list(b"xyz"))
    answers = drafter.expand([row(PROMPT, tree=tree, leaves=(0, tip))])[0]
    assert answers[0].tokens[0] == own_guess(PROMPT).tokens[0]
    assert answers[1].tokens[0] == own_guess([*PROMPT, *b"xyz"]).tokens[0]


@pytest.mark.parametrize("make", [intersection, text])
@pytest.mark.parametrize("other", [byte_bpe, piece_bpe])
def test_what_was_committed_meanwhile_makes_no_difference(make: Callable[[LoadedModel], Drafter], other):
    """A drafter that followed token by token (with roll-backs where its own tokens change) reads as one that joined late."""
    loaded = random_with(other())
    drafter = make(loaded)
    history = list(PROMPT)
    for token in b"the committee will be repaired":
        drafter.expand([row(history)])
        history.append(token)
    [[followed]], [[late]] = drafter.expand([row(history)]), make(loaded).expand([row(history)])
    assert followed.tokens.tolist() == late.tokens.tolist()
    np.testing.assert_allclose(followed.scores, late.scores, atol=1e-3)


def test_a_text_drafters_string_spells_what_its_model_says():
    drafter, loaded = text(random_with(byte_bpe())), random_with(byte_bpe())
    [[guess]] = drafter.expand([row(PROMPT)])
    ids = loaded.tokenizer.encode("In the end, ")
    known = torch.tensor([bool(one) for one in loaded.tokenizer.token_bytes])
    ends = torch.zeros(len(known), dtype=torch.bool)
    ends[list(loaded.tokenizer.eos_ids)] = True
    for _ in range(4):
        with torch.inference_mode():
            logits = loaded.model(input_ids=torch.tensor([ids])).logits[0, -1, : len(known)]
        ids.append(int(logits.masked_fill(~(known | ends), -torch.inf).argmax()))
        if ids[-1] in loaded.tokenizer.eos_ids:
            break
    spelled = in_bytes(loaded.tokenizer, ids)[len(PROMPT) :]
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(guess.parents.tolist()):
        children.setdefault(parent, []).append(node)
    found, node = b"", -1
    while node in children:
        wanted = spelled[len(found) : len(found) + 1]
        nodes = [child for child in children[node] if bytes([guess.tokens[child] % 256]) == wanted]
        if not nodes:
            break
        [node] = nodes
        found += wanted
    assert len(found) >= 1
    assert spelled.startswith(found)
    assert (guess.scores <= 0.0).all()


@pytest.mark.parametrize("make", [intersection, text])
def test_below_a_control_token(make: Callable[[LoadedModel], Drafter]):
    drafter = make(shuffled(TARGET))
    tree, tip = chain(PROMPT, [256])  # <bos>
    [[guess]] = drafter.expand([row(PROMPT, tree=tree, leaves=(tip,))])
    assert bool(len(guess.tokens)) == (make is intersection)  # both have a <bos>; a string goes through none
    drafter.close(("r", 0))
    drafter.close(("unknown", 0))


def test_logits_are_named_by_the_targets_ids():
    chooser = Chooser(vocab_size=50, ids=np.array([7, 20, 41]))
    one = row([1, 2, 3], temperature=0.0, logit_bias=((20, 9.0), (8, 99.0)), presence_penalty=0.5)
    [guess] = chooser.guess(one, [0], torch.tensor([[1.0, 0.0, 2.0]]))
    assert guess.tokens.tolist() == [20, 41, 7]
    dense = Chooser(vocab_size=50, ids=np.array([7, 20, 41]), laws=LawSettings(dense=True))
    [guess] = dense.guess(row([1, 2, 3], temperature=1.0), [0], torch.zeros(1, 3))
    law = guess.laws[0]
    assert law is not None
    assert [law.probability(token) for token in (7, 8, 20, 41)] == pytest.approx([1 / 3, 0.0, 1 / 3, 1 / 3])


# ------------------------------------------------------------------------------------------------------ which of them


def entry(vocabulary: str) -> ModelDrafterConfig:
    data = {"kind": "model", "name": "d", "model": "m", "vocabulary": vocabulary}
    [drafter] = parse_config({"target": {"model": "t"}, "drafters": [data]}).drafters
    assert isinstance(drafter, ModelDrafterConfig)
    return drafter


@pytest.mark.parametrize(
    ("vocabulary", "other", "kind"),
    [
        ("auto", None, ModelDrafter),
        ("same", None, ModelDrafter),
        ("same", byte_bpe, ModelDrafter),  # the leader refuses it
        ("auto", byte_bpe, TextDrafter),
        ("intersection", byte_bpe, IntersectionDrafter),
        ("text", None, TextDrafter),
    ],
)
def test_the_setting_decides_and_auto_looks(vocabulary, other, kind):
    tokenizer = other() if other else writer(TARGET).tokenizer
    found = made_with(vocabulary, tokenizer)
    assert isinstance(found.drafter, kind)
    speaks_its_own = kind is ModelDrafter
    assert (found.tokenizer is tokenizer) == speaks_its_own or other is None
    assert bool(found.note) != speaks_its_own
    if found.note:
        assert "d: vocabulary " in found.note
        assert "%" in found.note


def made_with(vocabulary: str, tokenizer: Tokenizer, **options: Any) -> SpeakingDrafter:
    loaded = random_with(tokenizer)
    settings = ModelDrafterSettings(max_requests=1, batch_invariant=False, laws=options.get("laws"))
    target = options.get("target", lambda: writer(TARGET).tokenizer)
    return model_drafter(loaded, entry(vocabulary), settings=settings, target=target)


def test_a_rule_that_weighs_gets_the_way_with_laws():
    assert isinstance(made_with("auto", byte_bpe(), laws=LawSettings()).drafter, IntersectionDrafter)
    with pytest.raises(ConfigError, match="no law"):
        made_with("text", byte_bpe(), laws=LawSettings())


def test_text_and_rejection_are_refused_when_settings_are_read():
    data = {
        "target": {"model": "t"},
        "drafters": [{"kind": "model", "model": "m", "vocabulary": "text"}],
        "speculation": {"growth": "optimistic", "verify_shape": "chain"},
        "verification": {"rule": "rejection"},
    }
    with pytest.raises(ConfigError, match=r"drafters\.0\.vocabulary"):
        parse_config(data)


def test_without_the_targets_tokenizer_auto_leaves_it_to_the_leader():
    def missing() -> Tokenizer:
        raise ModelError("no such model", fix="have it")

    assert isinstance(made_with("auto", byte_bpe(), target=missing).drafter, ModelDrafter)
    assert isinstance(made_with("auto", byte_bpe(), target=None).drafter, ModelDrafter)
    with pytest.raises(ConfigError, match="needs the target's tokenizer"):
        made_with("text", byte_bpe(), target=missing)


def test_check_says_what_would_be_done():
    target = writer(TARGET).tokenizer
    assert check_vocabulary(entry("auto"), target=target, drafter=target) == "the target's"
    assert "vocabulary text" in check_vocabulary(entry("auto"), target=target, drafter=byte_bpe())
    assert "vocabulary intersection" in check_vocabulary(entry("intersection"), target=target, drafter=byte_bpe())
    with pytest.raises(TokenizerMismatchError, match="id 0 is"):
        check_vocabulary(entry("same"), target=target, drafter=byte_bpe())
    with pytest.raises(TokenizerMismatchError, match="does not say what bytes"):
        check_vocabulary(entry("auto"), target=target, drafter=word_pieces())
