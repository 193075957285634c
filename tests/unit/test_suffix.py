"""Suffix lookup: what it guesses from which text, how guesses are scored and described, and what it keeps."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from dist_spec.core.tree import DraftTree
from dist_spec.core.types import NO_PARENT, Expansion, Sampling
from dist_spec.drafters.base import Drafter, ExpandRow, Remembering
from dist_spec.drafters.ngram import NgramDrafter
from dist_spec.drafters.suffix import SuffixDrafter
from dist_spec.drafters.suffix_corpus import read_corpus
from dist_spec.drafters.suffix_merge import NUM_FEATURES, Continuation, merge
from dist_spec.errors import ConfigError


def row(history: list[int], *, key: str = "r", width: int = 4, tree: DraftTree | None = None, leaves=None) -> ExpandRow:
    tree = tree or DraftTree(len(history), history[-1])
    return ExpandRow(
        key=(key, 0),
        history=history,
        history_slots=[-1] * len(history),
        prompt_length=len(history),
        generated_offset=0,
        sampling=Sampling(),
        tree=tree,
        leaves=[tree.root] if leaves is None else leaves,
        width=width,
    )


def expand(drafter: Drafter, history: list[int], **settings) -> Expansion:
    return drafter.expand([row(history, **settings)])[0][0]


def paths(expansion: Expansion) -> list[list[int]]:
    """From the leaf to every last node, in the order of the nodes."""
    parents, tokens = expansion.parents.tolist(), expansion.tokens.tolist()
    found = []
    for node in sorted(set(range(len(tokens))) - set(parents)):
        path = []
        while node != NO_PARENT:
            path.append(tokens[node])
            node = parents[node]
        found.append(path[::-1])
    return found


def test_continues_the_longest_match_though_a_later_one_is_shorter() -> None:
    history = [1, 2, 3, 50, 51, 0, 3, 60, 61, 0, 1, 2, 3]
    guess = expand(SuffixDrafter(num_draft_tokens=2), history)
    assert guess.tokens[0] == 50
    assert sorted(paths(guess)) == [[50, 51], [60, 61]]
    assert guess.scores[0] > guess.scores[guess.tokens.tolist().index(60)]
    assert paths(expand(SuffixDrafter(num_draft_tokens=2), history, width=1)) == [[50, 51]]


def test_of_equal_matches_the_more_frequent_continuation_comes_first() -> None:
    history = [1, 5, 6, 20, 2, 5, 6, 10, 3, 5, 6, 10, 4, 5, 6, 10, 0, 5, 6]
    guess = expand(SuffixDrafter(num_draft_tokens=1), history)
    assert guess.tokens.tolist() == [10, 20]
    assert guess.features is not None
    assert np.exp(guess.features[:, 2]).tolist() == pytest.approx([0.75, 0.25])


def test_a_repeating_text_goes_on_repeating() -> None:
    guess = expand(SuffixDrafter(num_draft_tokens=7), [9, 1, 2, 1, 2, 1, 2])
    assert paths(guess)[0] == [1, 2, 1, 2, 1, 2, 1]


def test_a_leaf_in_the_tree_continues_its_own_path() -> None:
    """6 -> 7 was seen, and only the leaf ends in 5 6."""
    history = [5, 6, 7, 8, 0]
    tree = DraftTree(len(history), 0)
    leaf = tree.graft(tree.root, np.array([5, 6]), np.array([-1, 0]), np.zeros(2))[-1]
    [[at_root, at_leaf]] = SuffixDrafter(num_draft_tokens=6).expand([row(history, tree=tree, leaves=[0, leaf])])
    assert len(at_root.tokens) == 0
    assert paths(at_leaf) == [[7, 8, 0, 5, 6, 7]]


def test_an_ended_request_helps_the_next_until_it_is_forgotten() -> None:
    drafter = SuffixDrafter(num_draft_tokens=3)
    assert isinstance(drafter, Remembering)
    expand(drafter, [1, 2, 3, 4, 5], key="a")
    assert len(expand(drafter, [9, 2, 3], key="b").tokens) == 0  # still running: not shared
    drafter.close(("a", 0))
    drafter.close(("never seen", 0))
    assert drafter.stored_tokens == 6
    assert paths(expand(drafter, [9, 2, 3], key="b")) == [[4, 5]]  # no further than that text went
    assert len(expand(drafter, [9, 3], key="c").tokens) == 0  # one token in common says nothing
    drafter.forget()
    assert drafter.stored_tokens == 0
    assert len(expand(drafter, [9, 2, 3], key="b").tokens) == 0
    assert paths(expand(drafter, [9, 2, 3, 9, 2], key="b"))[0] == [3, 9, 2]  # the running request lost nothing


def test_what_came_after_the_last_lookup_is_kept_too() -> None:
    drafter, text = SuffixDrafter(num_draft_tokens=3), [1, 2, 3]
    expand(drafter, text, key="a")
    text += [4, 5, 6]  # committed without a question to this drafter
    drafter.close(("a", 0))
    assert paths(expand(drafter, [9, 3, 4], key="b")) == [[5, 6]]


def test_nothing_is_kept_where_that_is_not_wanted() -> None:
    drafter = SuffixDrafter(remember=False)
    expand(drafter, [1, 2, 3, 4, 5], key="a")
    drafter.close(("a", 0))
    assert drafter.stored_tokens == 0
    assert len(expand(drafter, [9, 2, 3], key="b").tokens) == 0


def test_the_oldest_texts_are_dropped() -> None:
    drafter = SuffixDrafter(max_tokens=20, num_draft_tokens=2)
    for start in (100, 200, 300):
        expand(drafter, list(range(start, start + 9)), key=str(start))
        drafter.close((str(start), 0))
    assert drafter.stored_tokens == 20
    assert len(expand(drafter, [9, 103, 104], key="b").tokens) == 0
    assert paths(expand(drafter, [9, 303, 304], key="c")) == [[305, 306]]


def test_a_corpus_is_searched_and_not_forgotten() -> None:
    drafter = SuffixDrafter(corpus=[[1, 2, 3], [7, 8, 9, 10]], num_draft_tokens=4)
    drafter.forget()
    assert paths(expand(drafter, [0, 7, 8])) == [[9, 10]]
    assert len(expand(drafter, [0, 2, 3], key="b").tokens) == 0  # what follows is another file
    assert drafter.stored_tokens == 0


def test_own_text_comes_before_that_of_others() -> None:
    drafter = SuffixDrafter(corpus=[[1, 2, 77]], num_draft_tokens=1)
    assert expand(drafter, [1, 2, 55, 0, 1, 2]).tokens.tolist() == [55, 77]


def test_alternatives_hang_where_counts_are_close() -> None:
    """Two of three go on with 1 2 3, one with 1 2 9."""
    ways = [Continuation(3, [1, 2, 3, 4]), Continuation(3, [1, 2, 9, 8]), Continuation(3, [1, 2, 3, 5])]
    assert paths(merge(ways, length=4, width=4)) == [[1, 2, 9, 8], [1, 2, 3, 4], [1, 2, 3, 5]]
    assert paths(merge(ways, length=4, width=1)) == [[1, 2, 3, 4]]  # a chain where a chain is asked for
    rare = [*(Continuation(3, [1, 2, 3, 4]) for _ in range(5)), Continuation(3, [1, 2, 9, 8])]
    assert paths(merge(rare, length=4, width=4)) == [[1, 2, 3, 4]]


def test_a_tree_is_in_order_and_described() -> None:
    ways = [Continuation(5, [1, 2, 3]), Continuation(2, [4, 5]), Continuation(1, [1, 7, 3, 3])]
    guess = merge(ways, length=9, width=3)
    assert all(parent < node for node, parent in enumerate(guess.parents.tolist()))
    assert guess.features is not None
    assert guess.features.shape == (len(guess.tokens), NUM_FEATURES)
    assert guess.features.dtype == guess.scores.dtype == np.float32
    score, log_length, log_share, depth = guess.features[0].tolist()
    assert score == guess.scores[0]
    assert (np.exp(log_length), np.exp(log_share), depth) == (pytest.approx(5), pytest.approx(6 / 8), 0)
    assert (guess.scores < 0).all()
    tree = DraftTree(3)
    assert len(set(tree.graft(tree.root, guess.tokens, guess.parents, guess.scores))) == len(guess.tokens)


def test_scores_follow_length_and_agreement() -> None:
    def first(*ways: Continuation) -> float:
        return float(merge(ways, length=1, width=1).scores[0])

    assert first(Continuation(1, [5])) < first(Continuation(4, [5])) < first(Continuation(16, [5])) < 0
    assert first(Continuation(4, [5]), Continuation(4, [6])) < first(Continuation(4, [5]), Continuation(4, [5]))


def phrases(count: int, seed: int) -> list[int]:
    """A text in which phrases come back, with noise between them."""
    random = np.random.default_rng(seed)
    known = [random.integers(0, 500, random.integers(5, 15)).tolist() for _ in range(20)]
    text: list[int] = []
    while len(text) < count:
        text += known[random.integers(20)] if random.random() < 0.8 else random.integers(0, 500, 5).tolist()
    return text[:count]


def right(drafter: Drafter, text: list[int], *, start: int, key: str) -> int:
    """First guesses that were right along a text."""
    hits = 0
    for size in range(start, len(text)):
        guess = expand(drafter, text[:size], key=key)
        hits += len(guess.tokens) > 0 and int(guess.tokens[0]) == text[size]
    return hits


def test_it_is_right_as_often_as_prompt_lookup_and_more_often_with_earlier_texts() -> None:
    text = phrases(600, seed=1)
    lookup = right(NgramDrafter(), text, start=100, key="r")
    assert right(SuffixDrafter(), text, start=100, key="r") >= 0.97 * lookup > 200
    cold, warm = SuffixDrafter(), SuffixDrafter()
    expand(warm, text[:400], key="earlier")
    warm.close(("earlier", 0))
    rest = text[400:]
    assert right(warm, rest, start=10, key="r") > 1.2 * right(cold, rest, start=10, key="r")


def test_an_expansion_is_cheap() -> None:
    """About 30 us; the bound allows for a busy machine."""
    text = phrases(1100, seed=2)
    drafter = SuffixDrafter()
    expand(drafter, text[:1000])
    taken = []
    for size in range(1001, 1100):
        request = row(text[:size])
        start = time.perf_counter()
        drafter.expand([request])
        taken.append(time.perf_counter() - start)
    assert np.median(taken) < 150e-6


def test_settings_are_checked() -> None:
    for settings in ({"num_draft_tokens": 0}, {"max_tokens": 0}):
        with pytest.raises(ConfigError):
            SuffixDrafter(**settings)


def by_words(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def test_corpus_files_become_texts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a bb ccc\ndddd")
    (tmp_path / "b.txt").write_text("eeeee")
    files, said = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")], []
    assert read_corpus(files, name="d", encode=by_words, max_tokens=99, say=said.append) == [[1, 2, 3, 4], [5]]
    assert said == []
    assert read_corpus(files, name="d", encode=by_words, max_tokens=3, say=said.append) == [[1, 2, 3]]
    assert "left out" in said[0]


def test_a_long_corpus_is_read_in_pieces_and_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dist_spec.drafters.suffix_corpus._PIECE", 10)
    monkeypatch.setattr("dist_spec.drafters.suffix_corpus._QUIET_S", -1.0)
    (tmp_path / "a.txt").write_text("aa bb cc\ndd\nee ff gg hh ii jj kk ll\n")
    pieces, said = [], []

    def encode(text: str) -> list[int]:
        pieces.append(text)
        return by_words(text)

    [ids] = read_corpus([str(tmp_path / "a.txt")], name="d", encode=encode, max_tokens=99, say=said.append)
    assert "".join(pieces) == (tmp_path / "a.txt").read_text()
    assert pieces[0] == "aa bb cc\n"
    assert len(ids) >= 12
    assert any("100%" in line for line in said)


@pytest.mark.parametrize(("content", "named"), [(None, "cannot be read"), (b"\xff\xfe\xfa", "UTF-8")])
def test_a_corpus_that_cannot_be_read_is_bad_input(tmp_path: Path, content: bytes | None, named: str) -> None:
    file = tmp_path / "x"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=named) as caught:
        read_corpus([str(file)], name="d", encode=by_words, max_tokens=9)
    assert "drafter d" in caught.value.message
    assert caught.value.fix
