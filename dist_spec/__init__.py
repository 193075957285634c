"""Disaggregated speculative decoding. Importing this package imports nothing heavy: its names are loaded when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dist_spec.llm import LLM
    from dist_spec.server.outputs import CompletionOutput, RequestOutput, StreamOutput
    from dist_spec.server.params import SamplingParams

__all__ = [
    "LLM",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "StreamOutput",
    "__version__",
]

__version__ = "0.1.0"

_PLACES = {
    "LLM": "dist_spec.llm",
    "CompletionOutput": "dist_spec.server.outputs",
    "RequestOutput": "dist_spec.server.outputs",
    "SamplingParams": "dist_spec.server.params",
    "StreamOutput": "dist_spec.server.outputs",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
