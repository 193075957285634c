"""Law 1, authority: only the target commits; a committed prefix only grows, whatever anyone else says."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_spec.core.messages import Bye, Close, Commit, Hello, Message, Need, Open, Ping, Propose
from dist_spec.core.plan import Plan
from dist_spec.core.prefix import Prefix
from dist_spec.core.settings import Speculation
from dist_spec.core.types import Sampling
from tests.unit.session_cases import PROMPT, VOCAB, Leader, ints, text_of

TEXT = text_of(11)
LIMIT = 30

TOKENS = st.lists(st.one_of(st.integers(0, VOCAB - 1), st.sampled_from(TEXT[PROMPT : PROMPT + LIMIT])), max_size=6)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Anything a drafter could send, much of it about prefixes that are, were or could be ours."""
    tokens = draw(TOKENS)
    base = draw(st.integers(0, PROMPT + LIMIT))
    digest = Prefix(TEXT[:base]).digest if draw(st.booleans()) else draw(st.integers(0, 2**64 - 1))
    name = {"request": draw(st.sampled_from(["r", "s", "?"])), "generation": draw(st.integers(0, 1))}
    based = {**name, "base_length": base, "base_digest": digest, "tokens": ints(tokens)}
    match draw(st.sampled_from(["propose", "commit", "open", "close", "need", "other"])):
        case "propose":
            parents = [draw(st.integers(-1, i - 1)) for i in range(len(tokens))]
            scores = np.array([-draw(st.floats(0, 9)) for _ in tokens], np.float32)
            return Propose(**based, parents=ints(parents), scores=scores)
        case "commit":
            return Commit(**based, ask=draw(st.booleans()))
        case "open":
            return Open(**name, prompt=ints(tokens), sampling=Sampling(max_tokens=9))
        case "close":
            return Close(**name, reason="abort")
        case "need":
            return Need(**name, have_length=base)
    return draw(st.sampled_from([Ping(), Bye(), Hello(role="drafter", name="d")]))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(messages(), max_size=4), max_size=25), st.sampled_from(["push", "pull"]))
def test_no_message_of_a_drafter_touches_the_text(traffic: list[list[Message]], delivery: str) -> None:
    leader = Leader({"r": TEXT}, Speculation(delivery=delivery))  # type: ignore[arg-type]
    leader.hello("d")
    leader.open(max_tokens=LIMIT)
    [live] = leader.session.live.values()
    seen = list(live.sequence.tokens)
    rounds = iter(traffic)
    for _ in range(400):
        if leader.session.idle:
            break
        plan, _ = leader.begin()
        for message in next(rounds, []):
            leader.send("d", message)
            assert live.sequence.tokens == seen  # only a verification adds to it
        if isinstance(plan, Plan):
            leader.finish(plan)
        else:
            leader.now += 0.3
        assert live.sequence.tokens[: len(seen)] == seen
        seen = list(live.sequence.tokens)
    assert leader.generated["r"] == TEXT[PROMPT : PROMPT + LIMIT]
