"""What a target over several ranks is made of, without any process: orders as arrays, the argmax over parts of a vocabulary,
and what is refused before loading."""

from __future__ import annotations

import os
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

from dist_spec.config import parse_config
from dist_spec.core.noise import NoiseRing, gumbel_row, request_key
from dist_spec.core.types import NO_PARENT, ForwardRow
from dist_spec.core.verification.build import build_rule
from dist_spec.core.verification.chosen import best_of_shards, verdict_of
from dist_spec.errors import ConfigError, ModelError, RequestError, WorkerError
from dist_spec.held_port import HeldPort
from dist_spec.models.parallel.argmax import ShardChooser
from dist_spec.models.parallel.gather import shard_width
from dist_spec.models.parallel.group import host_store
from dist_spec.models.parallel.load import check_heads
from dist_spec.models.parallel.order import (
    HEADER_WORDS,
    INLINE_WORDS,
    Kind,
    StepOrder,
    Wish,
    block,
    decode,
    encode,
    opened,
)
from dist_spec.models.parallel.runner import NOTHING, Orders, answer
from dist_spec.models.parallel.watch import Watch
from dist_spec.topology import split_address

BLOCK = 4


def tree_row(draw: np.random.Generator, *, nodes: int, pending: int = 1, cached: int = 5) -> ForwardRow:
    parents = [int(draw.integers(NO_PARENT, max(node, 1))) if node else NO_PARENT for node in range(nodes)]
    length = cached + pending + nodes
    return ForwardRow(
        block_table=draw.permutation(64)[: -(-length // BLOCK) + 2].astype(np.int32),
        cached=cached,
        tokens=draw.integers(0, 250, pending + nodes).astype(np.int32),
        num_pending=pending,
        parents=np.array(parents, dtype=np.int32),
        num_logits=1 + nodes,
    )


wishes = st.none() | st.builds(
    Wish,
    temperature=st.sampled_from([0.0, 0.7, 1e-6, 100.0]),
    key=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    index=st.integers(0, 2**40),
)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_an_order_arrives_as_it_was_given(data: st.DataObject) -> None:
    draw = np.random.default_rng(data.draw(st.integers(0, 99)))
    asked = data.draw(st.lists(wishes, max_size=4))
    rows = [
        tree_row(
            draw, nodes=int(draw.integers(0, 9)), pending=int(draw.integers(1, 4)), cached=int(draw.integers(0, 40))
        )
        for _ in asked
    ]
    moves = draw.integers(0, 2**40, (2, int(draw.integers(0, 5)))).tolist()
    given_order = StepOrder(rows=rows, wishes=asked, moves=(moves[0], moves[1]), with_margin=data.draw(st.booleans()))
    found = decode(encode(given_order, block_size=BLOCK))
    assert (found.wishes, found.with_margin) == (asked, given_order.with_margin)
    assert [list(part) for part in found.moves] == moves
    for row, other in zip(rows, found.rows, strict=True):
        needed = -(-(row.cached + len(row.tokens)) // BLOCK)
        assert other.block_table.tolist() == row.block_table[:needed].tolist()
        assert (other.tokens.tolist(), other.parents.tolist()) == (row.tokens.tolist(), row.parents.tolist())
        assert (other.cached, other.num_pending, other.num_logits) == (row.cached, row.num_pending, row.num_logits)


@pytest.mark.parametrize("length", [0, 1, INLINE_WORDS, INLINE_WORDS + 1, 5000])
def test_what_fits_travels_in_one_block(length: int) -> None:
    content = np.arange(length, dtype=np.int64)
    header = block(Kind.STEP, pool=1, content=content)
    assert header.shape == (HEADER_WORDS,)
    kind, pool, told, within = opened(header)
    assert (kind, pool, told) == (Kind.STEP, 1, length)
    assert (within is None) == (length > INLINE_WORDS)
    assert within is None or within.tolist() == content.tolist()


@pytest.mark.parametrize("first", [0, 1, 2, 3, 130, 20_003])
def test_a_slice_of_noise_is_cut_from_the_whole_row(first: int) -> None:
    key = request_key(3, 1)
    whole = gumbel_row(key, 9, first + 17_000)
    assert np.array_equal(gumbel_row(key, 9, 17_000, first=first), whole[first:])
    assert np.array_equal(NoiseRing(17_000, 1, first=first).row(key, 9), whole[first:])


def shards_of(logits: np.ndarray, order: StepOrder, size: int) -> np.ndarray:
    """What `size` ranks find together."""
    vocab, width = logits.shape[1], shard_width(logits.shape[1], size)
    parts = []
    for rank in range(size):
        first, last = rank * width, min((rank + 1) * width, vocab)
        chooser = ShardChooser(first=first, last=last, capacity=16)
        chooser.prepare(order.rows, order.wishes)
        parts.append(chooser.choose(torch.from_numpy(logits[:, first:last].copy()), order))
    return best_of_shards(parts)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_argmax_over_parts_is_the_rule_on_whole_rows_to_the_bit(size: int, temperature: float) -> None:
    """Odd vocabulary, ties within and across parts, trees whose guesses are often right; margins included."""
    draw = np.random.default_rng(size)
    key = request_key(5, 0)
    for case in range(30):
        row = tree_row(draw, nodes=int(draw.integers(0, 12)))
        logits = np.round(draw.normal(0, 3, (row.num_logits, 259)), case % 2).astype(np.float32)
        if case % 3 == 0 and row.num_nodes:
            row.tokens[1] = int(logits[0].argmax())
        order = StepOrder(rows=[row], wishes=[Wish(temperature=temperature, key=key, index=case)], with_margin=True)
        rule = build_rule("auto", temperature=temperature, with_margin=True)
        tree = {"tokens": row.tokens[1:], "parents": row.parents}
        expected = rule.verify(
            **tree, logits=torch.from_numpy(logits), noise_row=lambda depth, at=case: gumbel_row(key, at + depth, 259)
        )
        assert verdict_of(shards_of(logits, order, size), **tree, with_margin=True) == expected


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [3, 258])
def test_a_row_that_is_not_finite_is_its_requests_trouble(place: int, value: float) -> None:
    draw = np.random.default_rng(0)
    row = tree_row(draw, nodes=1)
    logits = draw.normal(0, 1, (2, 259)).astype(np.float32)
    tree = {"tokens": row.tokens[1:], "parents": row.parents, "with_margin": True}
    order = StepOrder(rows=[row], wishes=[Wish()], with_margin=True)
    logits[1, place] = value
    row.tokens[1] = (int(logits[0].argmax()) + 1) % 250
    assert verdict_of(shards_of(logits, order, 2), **tree).token == logits[0].argmax()  # row 1 is not visited
    logits[0, place] = value
    with pytest.raises(RequestError, match="best score is"):
        verdict_of(shards_of(logits, order, 2), **tree)


def test_rows_without_a_wish_are_passed_over() -> None:
    draw = np.random.default_rng(1)
    rows = [tree_row(draw, nodes=2), tree_row(draw, nodes=1), tree_row(draw, nodes=0)]
    logits = draw.normal(0, 1, (6, 259)).astype(np.float32)
    order = StepOrder(rows=rows, wishes=[None, Wish(), None])
    assert shards_of(logits, order, 2)[:, 1].tolist() == logits[3:5].argmax(axis=1).tolist()


class FakeGroup:
    """Answers for a follower that has seen other orders."""

    def __init__(self) -> None:
        self.watch = SimpleNamespace(doing=lambda work: None)
        self.changed = 0
        self.stopping = False

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        digest = int(tensor[0, 0])
        return [tensor, torch.from_numpy(answer(NOTHING, digest + self.changed, stopping=self.stopping))]


def test_a_rank_that_did_other_work_is_noticed_at_once() -> None:
    group = FakeGroup()
    orders = Orders(group)
    for _ in range(3):
        orders.send(Kind.IDLE)
        assert len(orders.answers(NOTHING)) == 2
    assert not orders.asked_to_stop
    group.stopping = True
    orders.send(Kind.IDLE)
    orders.answers(NOTHING)
    assert orders.asked_to_stop
    group.changed = 1
    orders.send(Kind.IDLE)
    with pytest.raises(WorkerError, match=r"rank 1 of 2 has done other work than the leader by order 5"):
        orders.answers(NOTHING)


class VanishingStore:
    """Of a leader that failed, said so, and is gone while others still ask who is there."""

    def __init__(self, **data: str) -> None:
        self._data = {name: text.encode() for name, text in data.items()}

    def set(self, name: str, value: object) -> None:
        self._data[name] = b""

    def get(self, name: str) -> bytes:
        return self._data[name]

    def check(self, names: list[str]) -> bool:
        if names[0].startswith("here/"):
            raise RuntimeError("Connection reset by peer")
        return names[0] in self._data


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        ({"failed": "1", "first": "rank 0 of 2 (a pid 1) failed: out of memory"}, r"rank 0 .* failed: out of memory"),
        ({}, r"rank 0 of 2 \(unknown\), the leader, is dead"),
    ],
)
def test_why_the_leader_failed_is_told_although_its_store_has_gone(data: dict[str, str], cause: str) -> None:
    watch = Watch(VanishingStore(**data), rank=1, size=2, timeout_s=60.0)
    assert re.search(cause, watch._conclude(None))


def test_heads_that_cannot_be_shared_out_are_refused_with_the_ways_out() -> None:
    smol = SimpleNamespace(num_attention_heads=9, num_key_value_heads=3, hidden_size=576, head_dim=64)
    check_heads(smol, name="smollm2", size=3)
    with pytest.raises(ModelError, match=r"9 attention heads and 3 KV heads") as caught:
        check_heads(smol, name="smollm2", size=2)
    for way in ("parallel.attention: replicated", "parallel.backend: deepspeed", "parallel.tp_size to 3"):
        assert way in str(caught.value)
    many = SimpleNamespace(num_attention_heads=32, num_key_value_heads=8, hidden_size=64, head_dim=2)
    check_heads(many, name="many", size=8)
    with pytest.raises(ModelError, match="tp_size to 2 or 4 or 8"):
        check_heads(many, name="many", size=16)


def test_settings_of_ranks_that_contradict_are_refused() -> None:
    target = {"target": {"model": "random:llama"}}
    assert parse_config(target).parallel.tp_size == 1
    with pytest.raises(ConfigError, match="deepspeed shards any number of heads"):
        parse_config(target | {"parallel": {"tp_size": 2, "backend": "deepspeed", "attention": "replicated"}})
    with pytest.raises(ConfigError, match=r"parallel.timeout_s: 1 must be more than"):
        parse_config(target | {"parallel": {"tp_size": 2, "timeout_s": 1.0}})
    with pytest.raises(ConfigError, match=r"parallel\.tp_size"):
        parse_config(target | {"parallel": {"tp_size": 0}})


def waiting_at(place: str, *, others: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Watch, HashStore, list[str]]:
    """The watch of rank 0 at a place where ranks up to `others` are already, and what it died of."""
    store, died = HashStore(), list[str]()
    size = others + 2
    watches = [Watch(store, rank=rank, size=size, timeout_s=60.0) for rank in range(size)]
    monkeypatch.setattr(Watch, "_die", lambda watch, reason: died.append(reason))
    for watch in watches[: others + 1]:
        watch._who = [f"host pid {rank}" for rank in range(size)]
        watch.meets(place, patience_s=100.0)
        watch._look_who_is_missing()
    return watches[0], store, died


def test_who_is_missing_where_ranks_meet_is_told_and_in_the_end_the_cause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watch, _, died = waiting_at("the model is loaded", others=1, monkeypatch=monkeypatch)
    assert capsys.readouterr().err == ""
    watch._ticks = 4 * 61
    watch._look_who_is_missing()
    watch._look_who_is_missing()
    assert capsys.readouterr().err == "still waiting for rank 2 of 3 (host pid 2) after 61 s: the model is loaded\n"
    watch._ticks = 4 * 130
    watch._look_who_is_missing()
    assert died == ["rank 2 of 3 (host pid 2) did not come within 130 s: the model is loaded"]


def test_nobody_is_missed_once_all_have_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watch, store, died = waiting_at("here", others=1, monkeypatch=monkeypatch)
    store.set("here/2", b"")
    watch._ticks = 4 * 130
    watch._look_who_is_missing()
    watch.meets(None)
    watch._ticks = 4 * 1000
    watch._look_who_is_missing()
    assert (died, capsys.readouterr().err) == ([], "")


def test_a_port_is_held_for_one_leader_after_another() -> None:
    held = HeldPort()
    host, port = split_address(held.address)
    for life in range(2):
        with pytest.raises(ConfigError, match="in use"):
            host_store(host, port)
        store = host_store(host, port, fd=os.dup(held.fd))
        client = dist.TCPStore(host, port, is_master=False)
        client.set("life", str(life))
        assert store.get("life") == str(life).encode()
        del client, store
    with pytest.raises(ConfigError, match="no socket was inherited"):
        host_store(host, port, fd=10_000)
    del held
    assert host_store(host, port).port == port
