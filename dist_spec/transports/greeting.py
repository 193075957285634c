"""The fields of a `Hello`, checked both ways; knows nothing of msgpack or frames."""

from __future__ import annotations

from typing import Any, TypeAlias

from dist_spec.core.messages import MAX_FEATURES, MAX_TOKENS, FeatureWish, Hello
from dist_spec.errors import ProtocolError
from dist_spec.transports import fields as f

Fields: TypeAlias = tuple[Any, ...]

_MAX_VOCABULARY_BYTES = 1 << 17
_ROLES = ("drafter", "frontend")
_MAX_LAYERS = 1 << 16
_MAX_CAPTURED = 16


def hello_fields(m: Hello) -> Fields:
    """Its fields by position, without protocol version."""
    wish = m.features
    wanted = () if wish is None else (wish.layers, wish.hidden_size, wish.num_layers, wish.window)
    return (m.role, m.name, m.vocabulary, m.vocab_size, m.kind, float(m.step_s), wanted)


def hello_of(fields: Fields, protocol: int) -> Hello:
    """The greeting of this protocol version.

    Raises:
        ProtocolError: it is none.
    """
    if len(fields) != 7:
        raise f.refuse("a hello", "7 fields", len(fields))
    role, name, vocabulary, vocab_size, kind, step_s, wanted = fields
    return Hello(
        role=_role(role),
        name=f.text(name, "name", limit=f.MAX_NAME, empty=False),
        protocol=protocol,
        vocabulary=f.octets(vocabulary, "vocabulary", limit=_MAX_VOCABULARY_BYTES),
        vocab_size=f.integer(vocab_size, "vocab_size", high=f.MAX_VOCABULARY),
        kind=f.text(kind, "kind", limit=f.MAX_NAME),
        step_s=f.seconds(step_s, "step_s"),
        features=_wish(f.items(wanted, "features", limit=4)),
    )


def _wish(fields: tuple[object, ...]) -> FeatureWish | None:
    if not fields:
        return None
    if len(fields) != 4:
        raise f.refuse("features", "4 fields, or none", len(fields))
    layers, hidden_size, num_layers, window = fields
    return FeatureWish(
        layers=tuple(
            f.integer(one, "features: layer", high=_MAX_LAYERS)
            for one in f.items(layers, "features: layers", limit=_MAX_CAPTURED)
        ),
        hidden_size=f.integer(hidden_size, "features: hidden_size", low=1, high=MAX_FEATURES),
        num_layers=f.integer(num_layers, "features: num_layers", low=1, high=_MAX_LAYERS),
        window=f.integer(window, "features: window", low=1, high=MAX_TOKENS),
    )


def _role(value: object) -> str:
    if value not in _ROLES:
        raise f.refuse("role", f"one of {_ROLES}", value)
    return str(value)


def foreign_hello(fields: Fields, protocol: int) -> Hello:
    """Of another version only the first two fields are certain."""
    if len(fields) < 2:
        raise ProtocolError(f"a Hello of protocol version {protocol} without role and name")
    return Hello(role=_role(fields[0]), name=f.text(fields[1], "name", limit=f.MAX_NAME), protocol=protocol)
