"""Quantised weights through transformers' own quantizers: their settings from a section of the configuration, and the
quantizer that a model needs. Keeps no list of methods; knows no devices or steps."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from dist_spec.errors import ConfigError, ModelError


def quantization_config(given: Mapping[str, Any]) -> Any:
    """transformers' configuration object for `{method: NAME, OPTION: VALUE, ...}`.

    torchao's option `quant_type` is the name of one of its classes, or `{name: CLASS, ARGUMENT: VALUE, ...}`.

    Raises:
        ConfigError: transformers knows no such method, or the method no such option; or its package is missing.
    """
    from transformers.quantizers.auto import AutoQuantizationConfig

    options = {key: value for key, value in given.items() if key != "method"}
    method = str(given["method"])
    kind = _kind(method, options)
    known = [name for name in inspect.signature(kind.__init__).parameters if name not in ("self", "kwargs")]
    unknown = [key for key in options if key not in known]
    if unknown:
        raise ConfigError(
            f"quantization: method {method} has no option {unknown[0]!r}", fix=f"its options: {', '.join(known)}"
        )
    if method == "torchao" and "quant_type" not in options:
        raise ConfigError("quantization: method torchao needs a quant_type", fix="say quant_type: Int8WeightOnlyConfig")
    try:
        if "quant_type" in options:
            options["quant_type"] = {"default": _torchao_type(options["quant_type"])}
        return AutoQuantizationConfig.from_dict({"quant_method": method, **options})
    except ConfigError:
        raise
    except Exception as error:
        raise quantization_error(error, method=method) from error


def _kind(method: str, options: Mapping[str, Any]) -> Any:
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING as KINDS

    if method in KINDS:
        return KINDS[method]
    bits = next((name for name in ("load_in_4bit", "load_in_8bit") if options.get(name)), None)
    if bits is not None and f"{method}_{bits[-4:]}" in KINDS:
        return KINDS[f"{method}_{bits[-4:]}"]
    hint = " (it needs load_in_8bit: true or load_in_4bit: true)" if f"{method}_4bit" in KINDS else ""
    raise ConfigError(
        f"quantization: transformers has no method {method!r}{hint}", fix=f"use one of {', '.join(sorted(KINDS))}"
    )


def _torchao_type(given: Any) -> Any:
    """torchao's own form of its settings, as transformers takes it."""
    from torchao import quantization as torchao
    from torchao.core.config import AOBaseConfig, config_to_dict

    described = given if isinstance(given, Mapping) else {"name": given}
    if "_type" in described or "default" in described:
        return described.get("default", described)
    kind = getattr(torchao, str(described.get("name")), None)
    if not (isinstance(kind, type) and issubclass(kind, AOBaseConfig)):
        raise ConfigError(
            f"quantization: torchao has no configuration {described.get('name')!r}",
            fix="use the name of one of its classes, say quant_type: Int8WeightOnlyConfig",
        )
    return config_to_dict(kind(**{key: value for key, value in described.items() if key != "name"}))


def quantizer_for(config: Any, wanted: Any, *, device_map: Any, method: str) -> Any:
    """transformers' quantizer of a model whose `config` says how it was stored, or that is to be quantised as `wanted` says;
    None: neither.

    Raises:
        ConfigError: its package is missing.
        ModelError: it does not work on this machine or in this place.
    """
    from transformers.quantizers.auto import get_hf_quantizer

    try:
        return get_hf_quantizer(config, wanted, device_map, True, {})[0]
    except Exception as error:
        raise quantization_error(error, method=method) from error


def quantization_error(error: Exception, *, method: str) -> ConfigError | ModelError:
    """One line for what a quantizer raised; a missing package is told with what to install."""
    text = " ".join(str(error).split())
    missing = isinstance(error, ImportError) or "pip install" in text or "to be installed" in text
    if not missing:
        return ModelError(f"quantization: method {method}: {text}"[:400], fix="correct or remove `quantization`")
    fix = "pip install 'dist_spec[quantized]'" if method == "torchao" else "install the package, or use torchao"
    return ConfigError(f"quantization: method {method} needs a package that is missing: {text}"[:400], fix=fix)
