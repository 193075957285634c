"""The same jobs through several deployments, in turns, and what comes of it: equality, ratios, pipeline efficiency.

Variants:
    speculative        the configuration as given
    plain              drafting off, on the target's own device
    plain_all_devices  the target alone on all devices used (CPU: all cores, one thread each)
    ready              the same drafters asked for a full tree before every step, the waiting taken off the clock; with the
                       waiting on the clock it is synchronous speculation (`none`/pull)
Controls:
    off                the same drafters, attached and drafting, and nothing of theirs verified
    random_drafter     one drafter that guesses at random and is sure of it
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from dist_spec.bench.efficiency import Efficiency, efficiency
from dist_spec.bench.run import Job, RunResult, merge_runs
from dist_spec.config import Config, parse_config
from dist_spec.core.verification.equality import Equality, compare
from dist_spec.topology import assign_cores, available_cores, target_names

VARIANTS = ("speculative", "plain", "plain_all_devices", "ready")
CONTROLS = ("off", "random_drafter")
RANDOM_DRAFTER = "dist_spec.bench.random_drafter:RandomDrafter"


def variant_config(config: Config, variant: str, *, vocab_size: int = 0) -> Config | None:
    """The settings of a variant; None where it does not exist (no devices beyond the target's, no drafters).

    Args:
        vocab_size: of the target, for a random drafter.
    """
    cores = assign_cores(config, available=available_cores())
    own = config.target.cores or tuple(core for name in target_names(config) for core in cores[name])
    on_cpu = config.target.device == "cpu"
    data = config.model_dump(mode="json")
    if on_cpu:
        data["target"]["cores"] = list(own)
    everything = sorted({core for own in cores.values() for core in own})
    match variant:
        case "speculative":
            return config
        case "plain":
            data["drafters"] = []
        case "plain_all_devices":
            if not on_cpu or set(everything) == set(own):
                return None
            data["drafters"] = []
            data["target"] |= {"cores": everything, "threads": max(1, len(everything) // config.parallel.tp_size)}
        case "off":
            if not config.drafters:
                return None
            data["speculation"]["budget"] = 0
        case "random_drafter":
            if not config.drafters:
                return None
            data["drafters"] = [_random_drafter(vocab_size)]
        case "ready":
            if not config.drafters or config.speculation.budget == 0:
                return None
            for drafter in data["drafters"]:
                if drafter["kind"] in ("ngram", "suffix"):
                    drafter["placement"] = "process"
            data["speculation"] |= {"growth": "none", "delivery": "pull", "on_miss": "draft"}
    # One run, one set of files and one fixed port: those of the configuration as given.
    data["telemetry"] |= {"record": None, "trace": None, "decisions": None}
    data["transport"]["bind"] = f"{config.transport.bind.rpartition(':')[0]}:0"
    return parse_config(data)


def _random_drafter(vocab_size: int) -> dict[str, object]:
    return {"kind": "plugin", "name": "random", "target": RANDOM_DRAFTER, "options": {"vocab_size": vocab_size}}


@dataclass(kw_only=True, slots=True)
class Comparison:
    """Runs per variant, round by round.

    Attributes:
        equalities: per round and job, the speculative text against the plain one.
    """

    jobs: Sequence[Job]
    runs: dict[str, list[RunResult]] = field(default_factory=dict)
    equalities: list[Equality] = field(default_factory=list)

    def add(self, variant: str, result: RunResult) -> None:
        self.runs.setdefault(variant, []).append(result)

    def judge(self) -> None:
        """Fill `equalities` from all rounds."""
        self.equalities = [
            equality
            for ours, plain in zip(self.runs["speculative"], self.runs.get("plain", ()), strict=False)
            for equality in compare_texts(self.jobs, ours, plain)
        ]

    @property
    def equal(self) -> bool | None:
        return all(one.equal for one in self.equalities) if self.equalities else None

    def pairs(self, variant: str) -> list[tuple[RunResult, RunResult]]:
        """(ours, the variant's), side by side in one round."""
        return list(zip(self.runs["speculative"], self.runs.get(variant, ()), strict=False))

    def ratio(self, variant: str) -> float | None:
        """Median over rounds of (tokens/s of ours) / (tokens/s of the variant), side by side in one round."""
        pairs = self.pairs(variant)
        if not pairs:
            return None
        return statistics.median(ours.tokens_per_s / other.tokens_per_s for ours, other in pairs)

    def decode_ratio(self, variant: str) -> float | None:
        """The same of decoding alone (`RunResult.decode_tokens_per_s`); None where a text has but one commit."""
        pairs = [(a.decode_tokens_per_s, b.decode_tokens_per_s) for a, b in self.pairs(variant)]
        return statistics.median(a / b for a, b in pairs) if pairs and all(b > 0 for _, b in pairs) else None

    def efficiency(self) -> Efficiency | None:
        """Against the replay of the same text with a full tree at every start: that of the round in the middle."""
        rounds = [one for ours, ready in self.pairs("ready") if (one := efficiency(ours, ready)) is not None]
        rounds.sort(key=lambda one: one.value)
        return rounds[(len(rounds) - 1) // 2] if rounds else None


def merge_comparisons(parts: Sequence[Comparison]) -> Comparison:
    """Parts that ran one after another in the same deployments, as one comparison with as many rounds."""
    whole = Comparison(jobs=[job for part in parts for job in part.jobs])
    for variant in parts[0].runs:
        for turn in range(len(parts[0].runs[variant])):
            whole.add(variant, merge_runs([part.runs[variant][turn] for part in parts]))
    whole.judge()
    return whole


def compare_texts(jobs: Sequence[Job], ours: RunResult, plain: RunResult) -> list[Equality]:
    """Per job, the equality rule: identity in batch-invariant mode, else numeric differences are told apart."""
    strict = ours.stats.get("batch_invariant", 0.0) > 0 and plain.stats.get("batch_invariant", 0.0) > 0
    allowed = max(ours.stats.get("max_logit_difference", 0.0), plain.stats.get("max_logit_difference", 0.0))
    return [
        compare(
            other.tokens,
            mine.tokens,
            strict=strict,
            margins=other.margins or None,
            max_logit_difference=allowed,
            temperature=job.sampling.temperature,
        )
        for job, mine, other in zip(jobs, ours.streams, plain.streams, strict=True)
    ]
