"""What a simulated run is given and what comes out of it; plain data, and the texts that a scenario implies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from dist_spec.core.control.costs import VerifyCost
from dist_spec.core.counts import SessionCounts
from dist_spec.core.settings import Speculation
from dist_spec.drafters.scripted import RankLaw
from dist_spec.sim.devices import DeviceTimes
from dist_spec.sim.network import Link
from dist_spec.workers.record import Recorder

Truths: TypeAlias = dict[tuple[str, int], list[int]]
"""Request -> its whole text: prompt, then what the target says."""

FaultKind: TypeAlias = Literal["crash", "restart", "stop", "resume", "cut", "heal", "garbage"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Something that happens to one drafter at a moment of virtual time.

    crash loses all state, restart begins anew; stop and resume freeze it in place; cut and heal the link; garbage sends
    proposals with wrong prefixes, wild tokens and senseless trees.
    """

    at_s: float
    kind: FaultKind
    drafter: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One simulated run; the same scenario always gives the same result.

    Attributes:
        seed: of the texts and of the drafter's errors (and of garbage).
        network_seed: of loss, jitter, duplication and reordering.
        claims: what the drafter's scores say, where that is not its law.
        heartbeat_s, dead_after_s: as in the transport's settings.
        limit_s: virtual time after which an unfinished run is given up.
        record: keep what `replay` needs.
        slow: drafters whose steps take longer, and by which factor.
        features: the drafters live on the target's hidden features, as draft heads do.
    """

    speculation: Speculation = field(default_factory=Speculation)
    law: RankLaw = field(default_factory=lambda: RankLaw(a=0.8, b=0.5))
    claims: RankLaw | None = None
    times: DeviceTimes = field(default_factory=DeviceTimes)
    link: Link = field(default_factory=Link)
    num_drafters: int = 1
    num_requests: int = 1
    num_tokens: int = 200
    prompt_length: int = 8
    vocab_size: int = 50_000
    seed: int = 1
    network_seed: int = 1
    faults: tuple[Fault, ...] = ()
    heartbeat_s: float = 0.1
    dead_after_s: float = 0.5
    limit_s: float = 3600.0
    record: bool = False
    features: bool = False
    slow: Mapping[str, float] = field(default_factory=dict)

    def costs(self) -> VerifyCost:
        """What the leader would have measured at its start."""
        return VerifyCost.of(
            lambda rows, nodes: self.times.verify(rows + nodes),
            max_rows=max(self.num_requests, 1),
            max_nodes=max(self.speculation.budget, 1),
        )


@dataclass(kw_only=True, slots=True)
class Result:
    """What came out: the texts (in the order of the requests), whether they are right, and the counts of the run.

    Attributes:
        finished: every request ended in time; correct: every text is the scenario's, to its end.
        seconds: virtual time at the end; wait_s: how much of it the target waited by its own decision.
    """

    finished: bool
    correct: bool
    seconds: float
    wait_s: float
    counts: SessionCounts
    texts: list[list[int]]
    records: dict[str, Recorder]

    @property
    def tokens_per_s(self) -> float:
        return self.counts.committed / self.seconds if self.seconds else 0.0

    @property
    def acceptance_length(self) -> float:
        return self.counts.committed / self.counts.rows if self.counts.rows else 0.0

    @property
    def ready_share(self) -> float:
        """Share of verifications that had a draft tree at hand."""
        return self.counts.ready_rows / self.counts.rows if self.counts.rows else 0.0


def truths_of(scenario: Scenario) -> Truths:
    """The text of every request: a function of the seed, the vocabulary and the request's number alone."""
    length = scenario.prompt_length + scenario.num_tokens + 64
    return {
        (f"r{number}", 0): np.random.Generator(np.random.Philox(key=[scenario.seed, number]))
        .integers(0, scenario.vocab_size, length)
        .tolist()
        for number in range(scenario.num_requests)
    }
