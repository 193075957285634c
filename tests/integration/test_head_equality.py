"""The text does not depend on a draft head, nor on what becomes of the features that it is fed with; it speculates all the
same, and it guesses better for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest

from dist_spec.core.messages import Commit, Features, Message, no_rows
from dist_spec.core.prefix import extend_digest
from dist_spec.core.settings import Speculation
from dist_spec.core.types import HalfArray, Sampling
from dist_spec.drafters.base import Drafter
from dist_spec.drafters.draw import LawSettings
from dist_spec.drafters.head import HeadDrafter
from dist_spec.drafters.model import ModelDrafter
from dist_spec.drafters.ngram import NgramDrafter
from dist_spec.drafters.suffix import SuffixDrafter
from dist_spec.models.head import Head
from dist_spec.transports.base import Received
from dist_spec.transports.inproc import InprocTransport
from tests.integration.local_cluster import PLAIN, LocalCluster, prompts_of
from tests.unit.head_cases import features_of, fitted_head, target

NUM_TOKENS = 40


@cache
def head() -> Head:
    """It knows the texts of these tests by heart, so that its guesses are accepted."""
    prompts = prompts_of(4)
    texts = [[*prompts[i], *plain_texts(t, 4)[i]] for t in (0.0, 0.8) for i in range(4)]
    return fitted_head(texts, steps=70)


def drafter() -> Drafter:
    return HeadDrafter(head(), window=64)


def model() -> Drafter:
    return ModelDrafter(target("random:llama?seed=9&layers=1&hidden=32&heads=2&kv_heads=1"), max_context=512)


def samplings(temperature: float, count: int) -> list[Sampling]:
    return [
        Sampling(temperature=temperature, seed=11 + i, max_tokens=NUM_TOKENS - 3 * i, ignore_eos=True)
        for i in range(count)
    ]


@cache
def plain_texts(temperature: float, count: int) -> list[list[int]]:
    return [
        LocalCluster(target(), PLAIN).run([prompt], [sampling])[0].tokens
        for prompt, sampling in zip(prompts_of(count), samplings(temperature, count), strict=True)
    ]


METHODS = {
    "ours": Speculation(budget=16),
    "synchronous chain": Speculation(
        growth="none", delivery="pull", verify_shape="chain", on_miss="draft", num_draft_tokens=4, pull_timeout_s=60
    ),
    "optimistic push": Speculation(growth="optimistic", verify_shape="chain"),
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", METHODS)
def test_text_equals_plain_decoding(method: str, temperature: float) -> None:
    cluster = LocalCluster(target(), METHODS[method], drafters=[drafter], seed=1)
    streams = cluster.run(prompts_of(4), samplings(temperature, 4))
    assert [stream.tokens for stream in streams] == plain_texts(temperature, 4)
    assert cluster.counts.accepted > 40


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("others", [[model], [NgramDrafter], [SuffixDrafter, model], [drafter]], ids=lambda o: len(o))
def test_beside_other_drafters(others: list[Callable[[], Drafter]], temperature: float) -> None:
    cluster = LocalCluster(target(), Speculation(budget=24), drafters=[drafter, *others], seed=2)
    streams = cluster.run(prompts_of(4), samplings(temperature, 4))
    assert [stream.tokens for stream in streams] == plain_texts(temperature, 4)
    assert cluster.counts.accepted > 20
    assert cluster.session.membership.members["d0"].useful_nodes > 20


def test_under_rejection_its_laws_travel() -> None:
    settings = Speculation(growth="optimistic", verify_shape="chain", blind=True, num_draft_tokens=4)
    laws = LawSettings(size=32)
    cluster = LocalCluster(target(), settings, drafters=[lambda: HeadDrafter(head(), laws=laws)], rule="rejection")
    cluster.run(prompts_of(2), samplings(0.1, 2))
    assert cluster.counts.accepted > 5


class Watched:
    """A drafter that notes what it is fed and asked."""

    kind = "head"

    def __init__(self, inner: HeadDrafter) -> None:
        self.inner = inner
        self.wish = inner.wish
        self.fed: list[tuple[tuple[str, int], int, HalfArray]] = []
        self.close = inner.close

    def features(self, key: tuple[str, int], first_position: int, rows: HalfArray) -> None:
        self.fed.append((key, first_position, rows))
        self.inner.features(key, first_position, rows)

    def expand(self, rows: Sequence) -> list:
        return self.inner.expand(rows)


def test_it_is_fed_the_targets_own_features_of_every_token_that_was_read() -> None:
    """Those of the prompt and, with each commit, of what the verification read; up to rounding what the stock model says."""
    made: list[Watched] = []

    def make() -> Watched:
        made.append(Watched(HeadDrafter(head(), window=64)))
        return made[-1]

    cluster = LocalCluster(target(), Speculation(budget=12), drafters=[make], seed=3)
    prompts = prompts_of(2)
    streams = cluster.run(prompts, samplings(0.0, 2))
    for number, (prompt, stream) in enumerate(zip(prompts, streams, strict=True)):
        text = [*prompt, *stream.tokens]
        truth = features_of(text).astype(np.float32)
        seen: set[int] = set()
        for key, first, rows in made[0].fed:
            if key[0] == f"r{number}":
                np.testing.assert_allclose(rows, truth[first : first + len(rows)], rtol=2e-2, atol=2e-2)
                seen |= set(range(first, first + len(rows)))
        assert seen >= set(range(len(text) - 8)), "all but what the last steps read"
    ledger = cluster.target.transport.ledger.total("features", direction="out")
    assert ledger.num_bytes >= sum(rows.nbytes for _, _, rows in made[0].fed)
    received = cluster.drafters[0].transport.ledger.total("features", direction="in")
    assert (ledger.messages, ledger.num_bytes) == (received.messages, received.num_bytes)


class Faulty:
    """A drafter's end of a link on which features are lost, late, repeated, out of order, or cut off their commits."""

    def __init__(self, inner: InprocTransport, *, seed: int) -> None:
        self.inner, self.ledger, self.random = inner, inner.ledger, Random(seed)
        self.late: list[Received] = []
        self.harmed = 0
        self.send, self.close = inner.send, inner.close

    def receive(self, timeout_s: float) -> list[Received]:
        out: list[Received] = []
        for peer, message in self.inner.receive(timeout_s):
            whole, features = split(message)
            if whole is not None:
                out.append((peer, whole))
            if features is not None:
                fate = self.random.choice(("kept", "lost", "late", "twice"))
                self.harmed += fate != "kept"
                out += [(peer, features)] * {"kept": 1, "lost": 0, "late": 0, "twice": 2}[fate]
                self.late += [(peer, features)] if fate in ("late", "twice") else []
        while self.late and self.random.random() < 0.4:
            out.append(self.late.pop(self.random.randrange(len(self.late))))
        return out


def split(message: Message | Exception) -> tuple[Message | None, Features | None]:
    """A message without features, and these by themselves."""
    if isinstance(message, Features):
        return None, message
    if not isinstance(message, Commit) or not len(message.features):
        return message, None  # type: ignore[return-value]
    digest = message.base_digest
    for token in message.tokens[:-1].tolist():
        digest = extend_digest(digest, token)
    features = Features(
        request=message.request,
        generation=message.generation,
        base_length=message.base_length + len(message.tokens) - 1,
        base_digest=digest,
        rows=message.features,
    )
    return replace(message, features=no_rows()), features


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("seed", range(4))
def test_features_lost_late_repeated_and_out_of_order(seed: int, temperature: float) -> None:
    cluster = LocalCluster(target(), Speculation(budget=16), drafters=[drafter, NgramDrafter], seed=seed)
    worker = cluster.drafters[0]
    faulty = worker.transport = Faulty(worker.transport, seed=seed)  # type: ignore[assignment, arg-type]
    streams = cluster.run(prompts_of(4), samplings(temperature, 4))
    assert [stream.tokens for stream in streams] == plain_texts(temperature, 4)
    assert faulty.harmed > 20  # type: ignore[attr-defined]
    assert cluster.counts.accepted > 20
    assert cluster.session.membership.members["d0"].useful_nodes > 20


def test_without_any_features_it_is_plain_decoding() -> None:
    class Silent(HeadDrafter):
        def features(self, key: tuple[str, int], first_position: int, rows: HalfArray) -> None:
            pass

    cluster = LocalCluster(target(), Speculation(), drafters=[lambda: Silent(head())])
    streams = cluster.run(prompts_of(2), samplings(0.0, 2))
    assert [stream.tokens for stream in streams] == plain_texts(0.0, 4)[:2]
    assert cluster.counts.verified == 0
