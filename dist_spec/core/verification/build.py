"""From a rule's name to the rule; the one place that lists the kinds. It knows no configuration file."""

from __future__ import annotations

from dist_spec.core.verification.base import VerificationRule
from dist_spec.core.verification.coupled import CoupledRule
from dist_spec.core.verification.greedy import GreedyRule
from dist_spec.core.verification.rejection import RejectionRule, Rejections
from dist_spec.errors import ConfigError, RequestError, UnsupportedError

RULE_NAMES = ("auto", "greedy", "coupled", "rejection")
_PLANNED = ("block", "traversal")


def build_rule(
    name: str, *, temperature: float, with_margin: bool = False, rejections: Rejections | None = None
) -> VerificationRule:
    """The rule for one request.

    Args:
        name: `auto` (greedy at temperature 0, else coupled), `greedy`, `coupled` or `rejection` (at temperature 0 both
            are greedy: no noise, nothing to weigh).
        temperature: the request's.
        with_margin: fill `Verdict.margin`.
        rejections: counters of the rule `rejection`.

    Raises:
        RequestError: `greedy` was asked for with a temperature above 0, which would change the output law; or a
            temperature above 0 is too small to sample with.
        UnsupportedError: a rule that is not here yet.
        ConfigError: no such rule.
    """
    if name in _PLANNED:
        raise UnsupportedError(
            f"verification rule {name!r} is not here yet",
            fix="use auto, greedy or coupled, which are exact for any drafter, or rejection (chains)",
        )
    if name not in RULE_NAMES:
        raise ConfigError(f"unknown verification rule {name!r}", fix=f"use one of {', '.join(RULE_NAMES)}")
    if name == "greedy" and temperature > 0.0:
        raise RequestError(
            f"verification rule 'greedy' cannot serve temperature {temperature}",
            fix="set temperature to 0, or the rule to auto",
        )
    if temperature == 0.0:
        return GreedyRule(with_margin=with_margin)
    if name == "rejection":
        return RejectionRule(temperature=temperature, with_margin=with_margin, counts=rejections)
    return CoupledRule(temperature=temperature, with_margin=with_margin)
