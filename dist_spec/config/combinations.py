"""Settings that are fine one by one and wrong together, each refused with a way out. Knows only the schema."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dist_spec.config.large import check_large
from dist_spec.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from dist_spec.config.schema import Config

RESERVED_NAMES = ("target", "leader", "frontend")
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")


def check_combinations(config: Config) -> None:
    """Raises ConfigError (contradiction) or UnsupportedError (sensible, but not in this release)."""
    _check_speculation(config)
    if config.verification.rule == "rejection":
        _check_blind(config)
    _check_drafters(config)
    _check_links(config)
    _check_target(config)
    _check_parallel(config)
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


def _check_blind(config: Config) -> None:
    """Law 5: under a rule that weighs a draft with the law it was drawn from, whatever could prefer one drafted token to
    another is refused. Drafting off is always fine."""
    speculation = config.speculation
    if not config.drafters or speculation.budget == 0:
        return
    way_out = "or verification.rule: coupled, which allows any choice"
    if speculation.growth in ("best_first", "fan_out"):
        raise ConfigError(
            f"speculation.growth: {speculation.growth} prefers some drafted tokens to others, which looks at drafted "
            "tokens: verification.rule: rejection forbids it (law 5)",
            fix=f"set speculation.growth: optimistic and verify_shape: chain (delivery: pull: growth: none too), {way_out}",
        )
    if speculation.verify_shape != "chain":
        raise ConfigError(
            "speculation.verify_shape: tree offers several tokens per position, verification.rule: rejection weighs one",
            fix=f"set speculation.verify_shape: chain, {way_out}",
        )
    if len(config.drafters) > 1:
        names = ", ".join(drafter.name for drafter in config.drafters)
        raise ConfigError(
            f"drafters: {names} would compete for the same positions, and who comes first may depend on what was drafted: "
            "verification.rule: rejection takes the drafts of one (law 5)",
            fix=f"keep one drafter, {way_out}",
        )
    for index, drafter in enumerate(config.drafters):
        if drafter.kind == "model" and drafter.vocabulary == "text":
            raise ConfigError(
                f"drafters.{index}.vocabulary: text knows no law of its guesses in the target's tokens, and "
                "verification.rule: rejection weighs drafts with it",
                fix=f"set drafters.{index}.vocabulary: intersection, {way_out}",
            )
        if drafter.kind == "suffix" and drafter.remember:
            raise ConfigError(
                f"drafters.{index}.remember: a text remembered from a request with the same seed and prompt was chosen by "
                "the very numbers that verification.rule: rejection would judge it with",
                fix=f"set drafters.{index}.remember: false, {way_out}",
            )


def _check_drafters(config: Config) -> None:
    for name, count in Counter(drafter.name for drafter in config.drafters).items():
        if count > 1:
            raise ConfigError(f"drafters: {count} drafters are called {name!r}", fix="give each drafter another `name`")
    for index, drafter in enumerate(config.drafters):
        if drafter.name in RESERVED_NAMES:
            raise ConfigError(f"drafters.{index}.name: {drafter.name!r} is reserved", fix="choose another name")
        layers = getattr(drafter, "layers", None) or ()
        if list(layers) != sorted(set(layers)):
            raise ConfigError(
                f"drafters.{index}.layers: {list(layers)} do not ascend", fix="name each layer once, lowest first"
            )
        if drafter.kind == "model":
            check_large(drafter, place=f"drafters.{index}", target=config.target)
        if drafter.placement == "leader" and drafter.cores is not None:
            raise ConfigError(
                f"drafters.{index}.cores: a drafter inside the leader runs on the target's cores",
                fix=f"remove drafters.{index}.cores, or set drafters.{index}.placement: process",
            )


def _check_links(config: Config) -> None:
    for index, drafter in enumerate(config.drafters):
        link, place = drafter.link, f"drafters.{index}.link"
        if drafter.placement == "leader" and link != type(link)():
            raise ConfigError(f"{place}: a drafter inside the leader needs no link", fix=f"remove {place}")
        if link.messages == "collective" and link.tensors != "collective":
            raise ConfigError(
                f"{place}.messages: collective carries tensors too, but {place}.tensors: {link.tensors}",
                fix=f"set {place}.tensors: collective",
            )
        if link.backend != "auto" and link.tensors != "collective":
            raise ConfigError(
                f"{place}.backend: {link.backend} is for {place}.tensors: collective", fix=f"remove {place}.backend"
            )
        if link.tensors == "collective" and config.telemetry.record is not None:
            raise UnsupportedError(
                f"telemetry.record with {place}.tensors: collective is not in this release: a record knows one link",
                fix=f"set {place}.tensors: zmq for a run that is to be replayed",
            )
        devices = (config.target.device, getattr(drafter, "device", "cpu"))
        if link.backend == "nccl" and "cpu" in devices:
            raise ConfigError(
                f"{place}.backend: nccl joins two GPUs, but the devices are {devices[0]} and {devices[1]}",
                fix=f"set {place}.backend: gloo, or auto",
            )


def _check_target(config: Config) -> None:
    target = config.target
    if target.batch_invariant and target.device != "cpu":
        raise UnsupportedError(
            f"target.batch_invariant on device {target.device} is not in this release",
            fix="set target.batch_invariant: false (texts are then compared up to the measured rounding), or device: cpu",
        )


def _check_parallel(config: Config) -> None:
    parallel = config.parallel
    if parallel.backend == "deepspeed" and parallel.attention == "replicated":
        raise ConfigError(
            "parallel.attention: replicated is for parallel.backend: transformers; deepspeed shards any number of heads",
            fix="set parallel.attention: sharded",
        )
    if parallel.tp_size > 1 and parallel.timeout_s <= config.transport.heartbeat_s:
        raise ConfigError(
            f"parallel.timeout_s: {parallel.timeout_s:g} must be more than transport.heartbeat_s: "
            f"{config.transport.heartbeat_s:g}, at which idle ranks are told that all is well",
            fix=f"set parallel.timeout_s to {10 * config.transport.heartbeat_s:g} or more",
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
