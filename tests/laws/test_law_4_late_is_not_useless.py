"""Law 4, late is not useless: a proposal whose first tokens are those since committed still offers the rest."""

from __future__ import annotations

from dist_spec.core.messages import Message
from dist_spec.core.settings import Speculation
from tests.unit.session_cases import PROMPT, DraftEnd, Leader, chain, run_pair, text_of

TEXT = text_of(31)
SETTINGS = Speculation(num_leaves=4, num_children=3, budget=16)


def test_every_point_of_a_late_chain_serves() -> None:
    for gap in range(8):
        leader = Leader({"r": TEXT}, SETTINGS)
        leader.hello("d")
        leader.open()
        for _ in range(1 + gap):
            leader.step()
        leader.send("d", chain(TEXT, PROMPT + 1, TEXT[PROMPT + 1 : PROMPT + 9]))
        plan, _ = leader.step()
        assert plan.num_nodes == leader.session.counts.accepted == 8 - gap


def test_a_contradicted_proposal_offers_nothing() -> None:
    leader = Leader({"r": TEXT}, SETTINGS)
    leader.hello("d")
    leader.open()
    leader.step()
    leader.step()
    wrong = [(TEXT[PROMPT + 1] + 1) % 500, *TEXT[PROMPT + 2 : PROMPT + 9]]
    leader.send("d", chain(TEXT, PROMPT + 1, wrong))
    assert leader.step()[0].num_nodes == 0


def accepted_with_delay(rounds: int, *, drop_late: bool = False) -> int:
    """Tokens accepted when every proposal arrives `rounds` verifications late."""
    leader, held = Leader({"r": TEXT}, SETTINGS), []

    def late(messages: list[Message]) -> list[Message]:
        held.append(messages)
        due = held.pop(0) if len(held) > rounds else []
        if drop_late:  # the control: a leader that only takes proposals below its present head
            [*live] = leader.session.live.values()
            due = [m for m in due if live and getattr(m, "base_length", 0) == len(live[0].sequence.prefix)]
        return due

    leader.open(max_tokens=200)
    run_pair(leader, DraftEnd({"r": TEXT}, SETTINGS, a=0.95), steps=6, to_leader=late)
    assert leader.generated["r"] == TEXT[PROMPT : PROMPT + 200]
    return leader.session.counts.accepted


def test_speculation_goes_on_when_everything_is_late() -> None:
    assert accepted_with_delay(0) > 100
    assert accepted_with_delay(1) > 60
    assert accepted_with_delay(1, drop_late=True) < 20
