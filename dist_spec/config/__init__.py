"""All settings: their schema, and how they are read from a file and the command line. Knows nothing of what they do;
imports no torch."""

from dist_spec.config.loading import Override, load_config, parse_config, parse_drafter_option
from dist_spec.config.schema import (
    DEFAULT_MODEL_LEN,
    Config,
    DrafterConfig,
    HeadDrafterConfig,
    LinkConfig,
    ModelDrafterConfig,
    NgramDrafterConfig,
    ParallelConfig,
    PluginDrafterConfig,
    SamplingConfig,
    ScriptedDrafterConfig,
    SpeculationConfig,
    SuffixDrafterConfig,
    TargetConfig,
    TelemetryConfig,
    TransportConfig,
    VerificationConfig,
)

__all__ = [
    "DEFAULT_MODEL_LEN",
    "Config",
    "DrafterConfig",
    "HeadDrafterConfig",
    "LinkConfig",
    "ModelDrafterConfig",
    "NgramDrafterConfig",
    "Override",
    "ParallelConfig",
    "PluginDrafterConfig",
    "SamplingConfig",
    "ScriptedDrafterConfig",
    "SpeculationConfig",
    "SuffixDrafterConfig",
    "TargetConfig",
    "TelemetryConfig",
    "TransportConfig",
    "VerificationConfig",
    "load_config",
    "parse_config",
    "parse_drafter_option",
]
