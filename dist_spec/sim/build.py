"""From a scenario to its machines: the real sessions and workers, with scripted devices. It knows no virtual time, so
that a replay builds the very same."""

from __future__ import annotations

from dist_spec.core.admission import TargetFacts
from dist_spec.core.attachment import Attachment
from dist_spec.core.block_manager import BlockManager
from dist_spec.core.draft_session import DraftSession
from dist_spec.core.membership import Membership
from dist_spec.core.messages import Hello
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.target_session import TargetSession
from dist_spec.drafters.base import Drafter
from dist_spec.drafters.scripted import ScriptedDrafter
from dist_spec.sim.claims import ClaimingDrafter
from dist_spec.sim.devices import ScriptedTarget
from dist_spec.sim.features import FACTS, WISH, FeatureReader, FeaturingTarget
from dist_spec.sim.scenario import Scenario, Truths
from dist_spec.transports.base import Transport
from dist_spec.workers.draft import DraftWorker
from dist_spec.workers.record import Recorder
from dist_spec.workers.target import TargetWorker

_SERIALS_PER_LIFE = 1 << 24


def machine_name(drafter: str, life: int) -> str:
    """Name of a drafter's record: its own name, with "#2", "#3", ... for later lives."""
    return drafter if life == 1 else f"{drafter}#{life}"


def life_of(machine: str) -> tuple[str, int]:
    """The drafter's name and the number of its life (inverse of `machine_name`)."""
    name, _, life = machine.partition("#")
    return name, int(life or 1)


def build_target(
    scenario: Scenario, truths: Truths, *, transport: Transport, recorder: Recorder | None
) -> TargetWorker:
    """The leader."""
    session = TargetSession(
        scenario.speculation,
        facts=TargetFacts(
            max_model_len=1 << 20, vocab_size=scenario.vocab_size, features=FACTS if scenario.features else None
        ),
        scheduler=Scheduler(
            BlockManager(4096, block_size=16), max_sequences=64, lookahead=scenario.speculation.budget + 1
        ),
        membership=Membership(heartbeat_s=scenario.heartbeat_s, dead_after_s=scenario.dead_after_s),
    )
    kind = FeaturingTarget if scenario.features else ScriptedTarget
    backend = kind(lambda key: truths[key])
    return TargetWorker(session, backend=backend, transport=transport, recorder=recorder)


def build_draft(
    scenario: Scenario, truths: Truths, *, machine: str, transport: Transport, recorder: Recorder | None
) -> DraftWorker:
    """One life of one drafter."""
    name, life = life_of(machine)
    drafter: Drafter = ScriptedDrafter(
        lambda key, history: truths[key], law=scenario.law, vocab_size=scenario.vocab_size, seed=scenario.seed
    )
    if scenario.claims is not None:
        drafter = ClaimingDrafter(drafter, claims=scenario.claims)
    if scenario.features:
        drafter = FeatureReader(drafter, truth=lambda key: truths[key])
    wish = WISH if scenario.features else None
    hello = Hello(role="drafter", name=name, kind="scripted", step_s=scenario.times.draft_s, features=wish)
    return DraftWorker(
        DraftSession(scenario.speculation, first_serial=life * _SERIALS_PER_LIFE),
        drafter=drafter,
        transport=transport,
        attachment=Attachment(hello, heartbeat_s=scenario.heartbeat_s),
        recorder=recorder,
    )
