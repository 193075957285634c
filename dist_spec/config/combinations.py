"""Settings that are fine one by one and wrong together, each refused with a way out. Knows only the schema."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dist_spec.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from dist_spec.config.schema import Config

RESERVED_NAMES = ("target", "leader", "frontend")
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")


def check_combinations(config: Config) -> None:
    """Raises ConfigError (contradiction) or UnsupportedError (sensible, but not in this release)."""
    _check_speculation(config)
    _check_drafters(config)
    _check_target(config)
    _check_transport(config)


def _check_speculation(config: Config) -> None:
    speculation = config.speculation
    pull = speculation.delivery == "pull"
    if speculation.growth == "none" and not pull:
        raise ConfigError(
            "speculation.growth: none drafts only when asked, but speculation.delivery: push never asks",
            fix="set speculation.delivery: pull (synchronous speculation), or speculation.growth: best_first",
        )
    if speculation.growth == "fan_out" and not pull:
        raise ConfigError(
            "speculation.growth: fan_out prepares answers to be asked for, but speculation.delivery: push never asks",
            fix="set speculation.delivery: pull, or speculation.growth: best_first (which streams such guesses)",
        )
    if speculation.on_miss == "draft" and not pull:
        raise ConfigError(
            "speculation.on_miss: draft means asking a drafter after a miss, but speculation.delivery: push never asks",
            fix="set speculation.delivery: pull, or speculation.on_miss: wait (bounded by speculation.max_wait_s)",
        )
    if config.verification.rule == "greedy" and config.sampling.temperature > 0:
        raise ConfigError(
            f"verification.rule: greedy contradicts sampling.temperature: {config.sampling.temperature}",
            fix="set verification.rule: auto, or sampling.temperature: 0",
        )


def _check_drafters(config: Config) -> None:
    for name, count in Counter(drafter.name for drafter in config.drafters).items():
        if count > 1:
            raise ConfigError(f"drafters: {count} drafters are called {name!r}", fix="give each drafter another `name`")
    inside = [drafter.name for drafter in config.drafters if drafter.placement == "leader"]
    if len(inside) > 1:
        raise ConfigError(
            f"drafters: {' and '.join(inside)} are both placed inside the leader, which asks one",
            fix="set placement: process for all but one of them",
        )
    for index, drafter in enumerate(config.drafters):
        if drafter.name in RESERVED_NAMES:
            raise ConfigError(f"drafters.{index}.name: {drafter.name!r} is reserved", fix="choose another name")
        if drafter.placement == "leader" and drafter.cores is not None:
            raise ConfigError(
                f"drafters.{index}.cores: a drafter inside the leader runs on the target's cores",
                fix=f"remove drafters.{index}.cores, or set drafters.{index}.placement: process",
            )


def _check_target(config: Config) -> None:
    target = config.target
    if target.batch_invariant and target.device != "cpu":
        raise UnsupportedError(
            f"target.batch_invariant on device {target.device} is not in this release",
            fix="set target.batch_invariant: false (texts are then compared up to the measured rounding), or device: cpu",
        )


def _check_transport(config: Config) -> None:
    transport = config.transport
    host, _, port = transport.bind.removeprefix("tcp://").rpartition(":")
    if int(port) > 65535:
        raise ConfigError(
            f"transport.bind: there is no port {port}", fix="use a port from 1 to 65535, or 0 for a free one"
        )
    if host not in LOOPBACK_HOSTS and not transport.allow_plaintext:
        raise ConfigError(
            f"transport.bind: {transport.bind} is open to other hosts, and messages are neither encrypted nor signed",
            fix="bind to 127.0.0.1 and forward the port through ssh or a VPN, or, on a network that you trust, "
            "set transport.allow_plaintext: true",
        )
    if transport.dead_after_s <= transport.heartbeat_s:
        raise ConfigError(
            f"transport.dead_after_s: {transport.dead_after_s} must be more than heartbeat_s: {transport.heartbeat_s}",
            fix=f"set transport.dead_after_s to {3 * transport.heartbeat_s:g} or more",
        )
